package jq

import (
	"maps"

	"github.com/itchyny/gojq"
)

// maxSteps bounds the calls of functions that call functions.
const maxSteps = 10_000

// scope has the variables and functions that a part of a program sees. V is what a walk knows of a value.
type scope[V any] struct {
	variables map[string]V
	functions map[string]*gojq.FuncDef
}

// define adds functions.
func (s scope[V]) define(all []*gojq.FuncDef) scope[V] {
	for _, f := range all {
		s.functions = with(s.functions, f.Name, f)
	}
	return s
}

// bind adds the variables of patterns. A single name stands for the whole value, the variables of other patterns for a part of it.
func (s scope[V]) bind(patterns []*gojq.Pattern, whole, part V) scope[V] {
	walk(patterns, func(node any) {
		switch n := node.(type) {
		case *gojq.Pattern:
			s.variables = with(s.variables, n.Name, part)
		case *gojq.PatternObject:
			s.variables = with(s.variables, n.Key, part)
		}
	})
	if len(patterns) == 1 && patterns[0].Name != "" {
		s.variables = with(s.variables, patterns[0].Name, whole)
	}
	return s
}

// call returns what a call of a function runs, and what that sees. body is nil if the program does not define the function, and if the walk does not
// follow it: it has parameters, or calls itself.
func (s scope[V]) call(f *gojq.Func) (body *gojq.Query, inside scope[V], defined bool) {
	found := s.functions[f.Name]
	if found == nil || len(f.Args) > 0 {
		return nil, s, found != nil
	}
	s.functions = with(s.functions, f.Name, &gojq.FuncDef{Name: f.Name})
	return found.Body, s, true
}

func with[V any](m map[string]V, name string, v V) map[string]V {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]V{}
	}
	m[name] = v
	return m
}

// nameOf returns the name that an index is, as in .name, ."name" and .["name"]; "" if it is another one.
func nameOf(i *gojq.Index) string {
	switch {
	case i.Str != nil && i.Str.Queries == nil:
		return i.Str.Str
	case i.Start != nil && !i.IsSlice && isText(i.Start):
		return i.Start.Term.Str.Str
	}
	return i.Name
}

func isText(q *gojq.Query) bool {
	return q.Term != nil && q.Term.Type == gojq.TermTypeString && q.Term.Str.Queries == nil && q.Term.SuffixList == nil
}

// suffixed returns what a term with its suffixes is, from what it is without them.
func suffixed[V any](t *gojq.Term, v V, element func(V) V, index func(*gojq.Index, V) V) V {
	for _, suffix := range t.SuffixList {
		switch {
		case suffix.Iter:
			v = element(v)
		case suffix.Index != nil:
			v = index(suffix.Index, v)
		}
	}
	return v
}
