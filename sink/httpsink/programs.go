package httpsink

import (
	"slices"

	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/internal/jq"
)

// compile returns nil if there is no program.
func compile(text string, secrets map[string]string) (*jq.Program, error) {
	if text == "" {
		return nil, nil
	}
	return jq.Compile(text, secrets)
}

// ignoresEvents reports whether a program for results surely reads nothing but the status, the headers and
// the body. Then its events need not be decoded, which costs more than most programs do. Every use of the
// program's own input must be .status, .headers or .body.
func ignoresEvents(q *gojq.Query) bool {
	switch {
	case q == nil:
		return true
	case len(q.FuncDefs) > 0 || len(q.Patterns) > 0 || q.Op >= gojq.OpAssign:
		return false
	case q.Term != nil:
		return termIgnoresEvents(q.Term)
	case q.Op == gojq.OpPipe: // the right side has another input
		return ignoresEvents(q.Left)
	}
	return ignoresEvents(q.Left) && ignoresEvents(q.Right)
}

func termIgnoresEvents(t *gojq.Term) bool {
	for _, suffix := range t.SuffixList {
		if i := suffix.Index; i != nil && (!ignoresEvents(i.Start) || !ignoresEvents(i.End) || i.Str != nil && len(i.Str.Queries) > 0) {
			return false
		}
	}
	switch t.Type {
	case gojq.TermTypeIndex:
		return slices.Contains([]string{"status", "headers", "body"}, t.Index.Name)
	case gojq.TermTypeArray:
		return ignoresEvents(t.Array.Query)
	case gojq.TermTypeQuery:
		return ignoresEvents(t.Query)
	case gojq.TermTypeIf: // without else, the result is the input
		return t.If.Else != nil && len(t.If.Elif) == 0 && ignoresEvents(t.If.Cond) && ignoresEvents(t.If.Then) && ignoresEvents(t.If.Else)
	case gojq.TermTypeString:
		return len(t.Str.Queries) == 0
	}
	return t.Type == gojq.TermTypeNumber || t.Type == gojq.TermTypeNull || t.Type == gojq.TermTypeTrue || t.Type == gojq.TermTypeFalse
}
