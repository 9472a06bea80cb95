package pg

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Plan is a node of a plan, as EXPLAIN (FORMAT JSON) returns it.
type Plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Plans    []Plan `json:"Plans"`
}

// ParsePlan parses the result of EXPLAIN (FORMAT JSON).
func ParsePlan(result []byte) (*Plan, error) {
	var plans []struct{ Plan Plan }
	if err := json.Unmarshal(result, &plans); err != nil || len(plans) == 0 {
		return nil, fmt.Errorf("EXPLAIN returned %.100q: %w", result, err)
	}
	return &plans[0].Plan, nil
}

// Scans returns the nodes that read a relation.
func (p *Plan) Scans(relation string) (scans []Plan) {
	if p.Relation == relation && strings.HasSuffix(p.Type, "Scan") {
		scans = append(scans, *p)
	}
	for i := range p.Plans {
		scans = append(scans, p.Plans[i].Scans(relation)...)
	}
	return scans
}

// Has reports whether the plan has a node of a type.
func (p *Plan) Has(nodeType string) bool {
	return p.Type == nodeType || slices.ContainsFunc(p.Plans, func(n Plan) bool { return n.Has(nodeType) })
}
