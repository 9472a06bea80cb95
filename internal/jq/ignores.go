package jq

import (
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
	return !named && !keeper{}.keeps(query, true)
}

// keeper walks a program. The value says whether that of a variable may contain an event.
type keeper struct{ scope[bool] }

// keeps reports whether the results of a query may contain an event as a whole. in says so of its input.
func (k keeper) keeps(q *gojq.Query, in bool) bool {
	if q == nil {
		return false
	}
	k.scope = k.define(q.FuncDefs)
	switch {
	case q.Term != nil:
		return k.term(q.Term, in)
	case q.Op == gojq.OpPipe && q.Patterns != nil: // binds variables; the right side has the same input
		kept := k.keeps(q.Left, in)
		k.scope = k.bind(q.Patterns, kept, kept)
		return k.keeps(q.Right, in)
	case q.Op == gojq.OpPipe:
		return k.keeps(q.Right, k.keeps(q.Left, in))
	case q.Op >= gojq.OpEq && q.Op <= gojq.OpOr: // a boolean
		return false
	case q.Op >= gojq.OpAssign: // the input, changed
		return in || k.keeps(q.Right, in)
	}
	return k.keeps(q.Left, in) || k.keeps(q.Right, in)
}

// term is keeps for a term with its suffixes.
func (k keeper) term(t *gojq.Term, in bool) bool {
	return suffixed(t, k.bare(t, in), func(kept bool) bool { return kept }, func(i *gojq.Index, kept bool) bool { return kept && isWhole(i) })
}

// isWhole reports whether an index into a request's body or an event may have an event, and not only a field of it.
func isWhole(i *gojq.Index) bool {
	if i.Str != nil {
		return i.Str.Str == "events" || i.Str.Queries != nil
	}
	return i.Name == "" || i.Name == "events"
}

func (k keeper) bare(t *gojq.Term, in bool) bool {
	some := func(queries ...*gojq.Query) bool {
		return slices.ContainsFunc(queries, func(q *gojq.Query) bool { return k.keeps(q, in) })
	}
	switch t.Type {
	case gojq.TermTypeIndex:
		return in && isWhole(t.Index)
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber, gojq.TermTypeBreak:
		return false
	case gojq.TermTypeFunc:
		return k.function(t.Func, in)
	case gojq.TermTypeObject:
		return slices.ContainsFunc(t.Object.KeyVals, func(pair *gojq.ObjectKeyVal) bool {
			if pair.Val == nil { // {name} and {$name}
				return pair.KeyQuery != nil || pair.KeyString != nil || k.variables[pair.Key] || in && pair.Key == "events"
			}
			return some(pair.Val, pair.KeyQuery)
		})
	case gojq.TermTypeArray:
		return some(t.Array.Query)
	case gojq.TermTypeUnary:
		return k.term(t.Unary.Term, in)
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

func (k keeper) function(f *gojq.Func, in bool) bool {
	body, inside, defined := k.call(f)
	switch {
	case strings.HasPrefix(f.Name, "$"):
		return k.variables[f.Name]
	case body != nil:
		return keeper{inside}.keeps(body, in)
	case defined:
	case slices.Contains(values, f.Name):
		return false
	case f.Name == "map" && len(f.Args) == 1:
		return k.keeps(f.Args[0], in)
	}
	return in || slices.ContainsFunc(f.Args, func(q *gojq.Query) bool { return k.keeps(q, in) })
}
