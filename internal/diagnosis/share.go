package diagnosis

import (
	"slices"
	"strings"
)

// Block is what a heading has below it.
type Block struct {
	Head     []string
	Findings []Finding
	source   string // the URL of a pipeline's database
}

// Blocks are the findings for people: those of each pipeline below its routes, and what all pipelines of a database found once, above the first of
// them. A block without findings has none of its own.
func (d *Report) Blocks() []Block {
	of := make([]Block, 0, len(d.Pipelines))
	for _, p := range d.Pipelines {
		of = append(of, Block{Head: p.routes, Findings: p.Findings, source: p.source})
	}
	return shareFindings(of, func(at []int) string {
		names := make([]string, len(at))
		for i, pipeline := range at {
			names[i] = d.Pipelines[pipeline].Name
		}
		return d.Pipelines[at[0]].database + ": " + strings.Join(names, ", ")
	})
}

// shareFindings moves what all pipelines of one database have in common into a block above the first of them. name is its
// heading, of the indexes of the pipelines. What is about something of a server is there once, also if it is found in several of its databases.
func shareFindings(of []Block, name func(pipelines []int) string) (all []Block) {
	bySource := map[string][]int{}
	for i := range of {
		bySource[of[i].source] = append(bySource[of[i].source], i)
	}
	shared := map[string][]Finding{}
	for source, at := range bySource {
		if len(at) == 1 {
			continue
		}
		for _, f := range of[at[0]].Findings {
			if !slices.ContainsFunc(at, func(i int) bool { return !f.in(of[i].Findings) }) && !f.in(shared[source]) {
				shared[source] = append(shared[source], f)
			}
		}
	}
	for i, one := range of {
		common := shared[one.source]
		if at := bySource[one.source]; at[0] == i && len(common) > 0 {
			all = append(all, Block{Head: []string{name(at)}, Findings: common})
		}
		one.Findings = slices.DeleteFunc(slices.Clone(one.Findings), func(f Finding) bool { return f.in(common) })
		all = append(all, one)
	}
	var known []Finding // about a server
	for i := range all {
		all[i].Findings = slices.DeleteFunc(slices.Clone(all[i].Findings), func(f Finding) bool {
			if f.about == "" {
				return false
			}
			if f.in(known) {
				return true
			}
			known = append(known, f)
			return false
		})
	}
	return all
}
