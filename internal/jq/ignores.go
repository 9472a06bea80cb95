package jq

import (
	"maps"
	"slices"
	"strings"

	"github.com/itchyny/gojq"
)

// Ignores reports whether a program for requests surely sends nothing of a field of the events: it sends no event as a whole, and names
// other fields only. It reports false if that is not clear, and for a text that is not a program.
func Ignores(text, field string) bool {
	query, err := parse(text)
	if err != nil {
		return false
	}
	named := false
	walk(query, func(node any) {
		switch n := node.(type) {
		case *gojq.Index:
			named = named || n.Name == field
		case *gojq.String:
			named = named || n.Str == field
		case *gojq.ObjectKeyVal:
			named = named || n.Val == nil && n.Key == field
		case *gojq.PatternObject:
			named = named || strings.TrimPrefix(n.Key, "$") == field
		}
	})
	return !named && !scope{}.keeps(query, true)
}

// scope has the variables and functions that a query sees. The value says whether that of the variable may contain an event.
type scope struct {
	variables map[string]bool
	functions map[string]*gojq.FuncDef
}

// keeps reports whether the results of a query may contain an event as a whole. in says so of its input.
func (s scope) keeps(q *gojq.Query, in bool) bool {
	if q == nil {
		return false
	}
	for _, f := range q.FuncDefs {
		s.functions = maps.Clone(s.functions)
		if s.functions == nil {
			s.functions = map[string]*gojq.FuncDef{}
		}
		s.functions[f.Name] = f
	}
	switch {
	case q.Term != nil:
		return s.term(q.Term, in)
	case q.Op == gojq.OpPipe && q.Patterns != nil: // binds variables; the right side has the same input
		return s.with(q.Patterns, s.keeps(q.Left, in)).keeps(q.Right, in)
	case q.Op == gojq.OpPipe:
		return s.keeps(q.Right, s.keeps(q.Left, in))
	case q.Op >= gojq.OpEq && q.Op <= gojq.OpOr: // a boolean
		return false
	case q.Op >= gojq.OpAssign: // the input, changed
		return in || s.keeps(q.Right, in)
	}
	return s.keeps(q.Left, in) || s.keeps(q.Right, in)
}

// with adds the variables of patterns.
func (s scope) with(patterns []*gojq.Pattern, keeps bool) scope {
	s.variables = maps.Clone(s.variables)
	if s.variables == nil {
		s.variables = map[string]bool{}
	}
	walk(patterns, func(node any) {
		switch n := node.(type) {
		case *gojq.Pattern:
			s.variables[n.Name] = keeps
		case *gojq.PatternObject:
			s.variables[n.Key] = keeps
		}
	})
	return s
}

// term is keeps for a term with its suffixes.
func (s scope) term(t *gojq.Term, in bool) bool {
	kept := s.bare(t, in)
	for _, suffix := range t.SuffixList {
		if suffix.Index != nil {
			kept = kept && isWhole(suffix.Index)
		}
	}
	return kept
}

// isWhole reports whether an index into a request's body or an event may have an event, and not only a field of it.
func isWhole(i *gojq.Index) bool {
	if i.Str != nil {
		return i.Str.Str == "events" || i.Str.Queries != nil
	}
	return i.Name == "" || i.Name == "events"
}

func (s scope) bare(t *gojq.Term, in bool) bool {
	some := func(queries ...*gojq.Query) bool {
		return slices.ContainsFunc(queries, func(q *gojq.Query) bool { return s.keeps(q, in) })
	}
	switch t.Type {
	case gojq.TermTypeIndex:
		return in && isWhole(t.Index)
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber, gojq.TermTypeBreak:
		return false
	case gojq.TermTypeFunc:
		return s.function(t.Func, in)
	case gojq.TermTypeObject:
		return slices.ContainsFunc(t.Object.KeyVals, func(pair *gojq.ObjectKeyVal) bool {
			if pair.Val == nil { // {name} and {$name}
				return pair.KeyQuery != nil || pair.KeyString != nil || s.variables[pair.Key] || in && pair.Key == "events"
			}
			return some(pair.Val, pair.KeyQuery)
		})
	case gojq.TermTypeArray:
		return some(t.Array.Query)
	case gojq.TermTypeUnary:
		return s.term(t.Unary.Term, in)
	case gojq.TermTypeString:
		return some(t.Str.Queries...)
	case gojq.TermTypeFormat:
		return in && t.Str == nil || t.Str != nil && some(t.Str.Queries...)
	case gojq.TermTypeIf:
		kept := some(t.If.Then, t.If.Else) || in && t.If.Else == nil
		for _, elif := range t.If.Elif {
			kept = kept || some(elif.Then)
		}
		return kept
	case gojq.TermTypeQuery:
		return some(t.Query)
	}
	return in // whatever else is rare: the input may be a part of it
}

// values are functions whose results are no part of their input.
var values = []string{"length", "type", "has", "any", "all", "range", "error", "empty", "not", "tonumber", "contains", "test", "now", "true", "false", "null"}

func (s scope) function(f *gojq.Func, in bool) bool {
	defined := s.functions[f.Name]
	switch {
	case strings.HasPrefix(f.Name, "$"):
		return s.variables[f.Name]
	case defined != nil && len(f.Args) == 0:
		s.functions = maps.Clone(s.functions)
		delete(s.functions, f.Name) // one that calls itself gets the default
		return s.keeps(defined.Body, in)
	case defined != nil:
	case slices.Contains(values, f.Name):
		return false
	case f.Name == "map" && len(f.Args) == 1:
		return s.keeps(f.Args[0], in)
	}
	return in || slices.ContainsFunc(f.Args, func(q *gojq.Query) bool { return s.keeps(q, in) })
}
