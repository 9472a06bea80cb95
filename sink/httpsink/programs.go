package httpsink

import (
	"fmt"
	"slices"
	"strings"

	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/internal/jq"
)

// ProgramError says what is wrong with a jq program, and where.
type ProgramError = jq.Error

// CheckRequest returns a *ProgramError if text cannot be Config.Request.
func CheckRequest(text string) error {
	_, err := jq.Compile(text)
	return err
}

// CheckResults returns a *ProgramError if text cannot be Config.Results.
func CheckResults(text string) error {
	_, err := compileResults(text)
	return err
}

// compile returns nil if there is no program.
func compile(text string, compiler func(string) (*jq.Program, error)) (*jq.Program, error) {
	if text == "" {
		return nil, nil
	}
	return compiler(text)
}

// compileResults also finds results of another shape, as far as they can be seen in the program.
func compileResults(text string) (*jq.Program, error) {
	p, err := jq.Compile(text)
	if err != nil {
		return nil, err
	}
	if wrong := checkResultShape(p.Query); wrong != nil {
		return nil, wrong
	}
	return p, nil
}

// resultKeys are the keys of an element of what Results returns.
var resultKeys = []string{"id", "index", "error", "retry"}

// checkResultShape checks a program whose result is written as a literal, and accepts all others.
func checkResultShape(q *gojq.Query) *jq.Error {
	array := resultTerm(q)
	if kind := literalKinds[array.Type]; kind != "" {
		return &jq.Error{Text: "the program makes " + kind + "; expected an array of {id or index, error, retry}"}
	}
	if array.Type != gojq.TermTypeArray {
		return nil
	}
	element := resultTerm(array.Array.Query)
	if element.Type != gojq.TermTypeObject {
		if kind := literalKinds[element.Type]; kind != "" {
			return &jq.Error{Text: "the program makes an array of " + kind + "; expected an array of {id or index, error, retry}"}
		}
		return nil
	}
	hasEvent := false
	for _, field := range element.Object.KeyVals {
		name := strings.TrimPrefix(field.Key, "$")
		switch {
		case field.KeyString != nil && len(field.KeyString.Queries) == 0:
			name = field.KeyString.Str
		case name == "": // calculated
			return nil
		}
		if !slices.Contains(resultKeys, name) {
			return &jq.Error{Text: fmt.Sprintf("a result has the key %q; expected id or index, error, retry", name)}
		}
		hasEvent = hasEvent || name == "id" || name == "index"
	}
	if !hasEvent {
		return &jq.Error{Text: "a result has neither id nor index; expected one of them"}
	}
	return nil
}

var literalKinds = map[gojq.TermType]string{
	gojq.TermTypeObject: "an object", gojq.TermTypeString: "a string", gojq.TermTypeNumber: "a number",
	gojq.TermTypeNull: "null", gojq.TermTypeTrue: "true", gojq.TermTypeFalse: "false",
}

// resultTerm is the term after the last pipe. It has no type if the result is more than a term.
func resultTerm(q *gojq.Query) *gojq.Term {
	for q != nil && q.Op == gojq.OpPipe {
		q = q.Right
	}
	switch {
	case q == nil || q.Term == nil || len(q.Term.SuffixList) > 0:
		return &gojq.Term{}
	case q.Term.Type == gojq.TermTypeQuery:
		return resultTerm(q.Term.Query)
	}
	return q.Term
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
