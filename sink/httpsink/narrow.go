package httpsink

import (
	"slices"

	"github.com/itchyny/gojq"
)

// answerParts are what Results gets beside the events. A program that looks at nothing else
// spares them being read, which costs more than most programs do.
var answerParts = []string{"status", "headers", "body"}

// isNarrow tells that a program for results, wherever it uses its own input, takes one
// of answerParts of it at once. It understands what is usual, and says false of the rest.
func isNarrow(q *gojq.Query) bool {
	switch {
	case q == nil:
		return true
	case len(q.FuncDefs) > 0 || len(q.Imports) > 0 || q.Meta != nil:
		return false
	case q.Term != nil:
		return isNarrowTerm(q.Term)
	case q.Op == gojq.OpPipe && len(q.Patterns) == 0: // behind it the input is another
		return isNarrow(q.Left)
	case q.Op >= gojq.OpAssign: // makes its input anew
		return false
	}
	return arePlain(q.Patterns) && isNarrow(q.Left) && isNarrow(q.Right)
}

func isNarrowTerm(t *gojq.Term) bool {
	for _, suffix := range t.SuffixList {
		if index := suffix.Index; index != nil && (!isNarrow(index.Start) || !isNarrow(index.End) || !isNarrowString(index.Str)) {
			return false
		}
	}
	switch t.Type {
	case gojq.TermTypeIndex:
		return slices.Contains(answerParts, t.Index.Name)
	case gojq.TermTypeArray:
		return isNarrow(t.Array.Query)
	case gojq.TermTypeObject:
		return !slices.ContainsFunc(t.Object.KeyVals, func(kv *gojq.ObjectKeyVal) bool {
			short := kv.Val == nil && !slices.Contains(answerParts, kv.Key) && (kv.Key == "" || kv.Key[0] != '$')
			return short || !isNarrow(kv.Val) || !isNarrow(kv.KeyQuery) || !isNarrowString(kv.KeyString)
		})
	case gojq.TermTypeQuery:
		return isNarrow(t.Query)
	case gojq.TermTypeUnary:
		return isNarrowTerm(t.Unary.Term)
	case gojq.TermTypeString:
		return isNarrowString(t.Str)
	case gojq.TermTypeIf: // without else it makes its input
		return t.If.Else != nil && isNarrow(t.If.Cond) && isNarrow(t.If.Then) && isNarrow(t.If.Else) &&
			!slices.ContainsFunc(t.If.Elif, func(e *gojq.IfElif) bool { return !isNarrow(e.Cond) || !isNarrow(e.Then) })
	case gojq.TermTypeTry:
		return isNarrow(t.Try.Body)
	case gojq.TermTypeReduce:
		return isNarrow(t.Reduce.Query) && isNarrow(t.Reduce.Start) && arePlain(t.Reduce.Patterns)
	case gojq.TermTypeFunc: // variables too
		known := t.Func.Name[0] == '$' || t.Func.Name == "empty" || t.Func.Name == "error" && len(t.Func.Args) == 1
		return known && !slices.ContainsFunc(t.Func.Args, func(arg *gojq.Query) bool { return !isNarrow(arg) })
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
		return true
	}
	return false
}

func isNarrowString(s *gojq.String) bool {
	return s == nil || !slices.ContainsFunc(s.Queries, func(q *gojq.Query) bool { return !isNarrow(q) })
}

// arePlain tells that patterns are names alone.
func arePlain(patterns []*gojq.Pattern) bool {
	return !slices.ContainsFunc(patterns, func(p *gojq.Pattern) bool { return p.Name == "" })
}
