package jq

import (
	"slices"
	"strings"

	"github.com/itchyny/gojq"
)

// UnknownMember is a member that a program reads although its input never has it.
type UnknownMember struct {
	Name string
	// Of is what it is read of: "the body", "an event", or "the answer", which is the input of a program for results.
	Of string
}

// Known are the members that could be meant.
func (m UnknownMember) Known() []string {
	for kind, name := range kindNames {
		if name == m.Of {
			return members[kind]
		}
	}
	return nil
}

var kindNames = map[valueKind]string{body: "the body", event: "an event", answer: "the answer"}

// members are those of a body, an envelope and an answer. Those that are not always there are in a list too.
var members = map[valueKind][]string{
	body:   {"pipeline", "group_id", "events"},
	event:  {"id", "topic", "key", "payload", "headers", "created_at", "payload_base64", "dead_letter"},
	answer: {"status", "headers", "body", "events"},
}

// UnknownInRequest returns the members that a program for requests surely reads of the body or of an event, and that neither has; each once, in the order of the program.
// What the program computes, and what is within a payload, has members that are not known here. The left side of // may be absent.
func UnknownInRequest(text string) []UnknownMember { return unknownMembers(text, body) }

// UnknownInResults does so for a program for results, of the answer or of an event. What is within the body of the answer is not known. The left
// side of // is no exception for the answer: (.bodi.errors // []) would lose each event that the sink refuses.
func UnknownInResults(text string) []UnknownMember { return unknownMembers(text, answer) }

func unknownMembers(text string, input valueKind) []UnknownMember {
	query, err := parse(text)
	if err != nil {
		return nil
	}
	return read(query, input).found
}

// ReadsStatus reports whether a program for results reads the status of the answer. What is named so within the body is not meant.
func ReadsStatus(results *gojq.Query) bool {
	return read(results, answer).status
}

func read(query *gojq.Query, input valueKind) *noted {
	r := reader{noted: new(noted)}
	r.query(query, value{kind: input})
	return r.noted
}

// noted is what a reader found.
type noted struct {
	found  []UnknownMember
	status bool // of the answer
	steps  int
}

// value is what is known of a value: a body, an event or an answer, in so many arrays.
type value struct {
	kind  valueKind
	depth int
}

type valueKind int

const (
	unknown valueKind = iota
	body
	event
	answer
	never // there is no result
)

func (v value) element() value {
	if v.kind == unknown || v.kind == never || v.depth == 0 {
		return value{}
	}
	return value{v.kind, v.depth - 1}
}

func (v value) array() value {
	if v.kind == unknown || v.kind == never {
		return value{}
	}
	return value{v.kind, v.depth + 1}
}

// either is the value of one of two branches.
func either(a, b value) value {
	switch {
	case a.kind == never:
		return b
	case b.kind == never || a == b:
		return a
	}
	return value{}
}

// reader walks a program and notes the members that it reads.
type reader struct {
	*noted
	quiet bool // no unknown member is noted
	scope[value]
}

// query returns what is known of the results of a query.
func (r reader) query(q *gojq.Query, in value) value {
	if r.steps++; q == nil || r.steps > maxSteps {
		return value{}
	}
	r.scope = r.define(q.FuncDefs)
	switch {
	case q.Term != nil:
		return r.term(q.Term, in)
	case q.Op == gojq.OpPipe && q.Patterns != nil:
		return r.with(q.Patterns, r.query(q.Left, in)).query(q.Right, in)
	case q.Op == gojq.OpPipe:
		return r.query(q.Right, r.query(q.Left, in))
	case q.Op == gojq.OpComma:
		return either(r.query(q.Left, in), r.query(q.Right, in))
	case q.Op == gojq.OpAlt:
		left := r
		if in.kind != answer {
			left = r.silent()
		}
		return either(left.query(q.Left, in), r.query(q.Right, in))
	case q.Op == gojq.OpModify: // the path may be new
		r.query(q.Right, r.silent().query(q.Left, in))
		return value{}
	case q.Op >= gojq.OpAssign:
		r.query(q.Right, in)
		return value{}
	}
	r.query(q.Left, in)
	r.query(q.Right, in)
	return value{}
}

func (r reader) silent() reader {
	r.quiet = true
	return r
}

// with adds the variables of patterns.
func (r reader) with(patterns []*gojq.Pattern, v value) reader {
	for _, p := range patterns {
		for _, o := range p.Object {
			if o.KeyString != nil {
				r.silent().member(o.KeyString.Str, v)
			} else if o.Key != "" {
				r.silent().member(strings.TrimPrefix(o.Key, "$"), v)
			}
		}
	}
	r.scope = r.bind(patterns, v, value{})
	return r
}

func (r reader) term(t *gojq.Term, in value) value {
	return suffixed(t, r.bare(t, in), value.element, func(i *gojq.Index, of value) value { return r.index(i, of, in) })
}

// index reads a part of a value. The programs within the brackets have the input of the term.
func (r reader) index(i *gojq.Index, of, in value) value {
	r.queries(in, i.Start, i.End)
	switch name := nameOf(i); {
	case name != "":
		return r.member(name, of)
	case i.Str != nil:
		r.queries(in, i.Str.Queries...)
		return value{}
	case i.IsSlice:
		return of
	}
	return of.element()
}

// member reads a member, and notes one that the value never has.
func (r reader) member(name string, of value) value {
	m := UnknownMember{name, kindNames[of.kind]}
	r.status = r.status || of == value{kind: answer} && name == "status"
	switch {
	case of.kind == unknown || of.kind == never || of.depth > 0:
		return value{}
	case of.kind != event && name == "events":
		return value{event, 1}
	case !slices.Contains(members[of.kind], name) && !r.quiet && !slices.Contains(r.found, m):
		r.found = append(r.found, m)
	}
	return value{}
}

func (r reader) queries(in value, all ...*gojq.Query) {
	for _, q := range all {
		r.query(q, in)
	}
}

func (r reader) bare(t *gojq.Term, in value) value {
	switch t.Type {
	case gojq.TermTypeIdentity:
		return in
	case gojq.TermTypeIndex:
		return r.index(t.Index, in, in)
	case gojq.TermTypeFunc:
		return r.function(t.Func, in)
	case gojq.TermTypeObject:
		for _, pair := range t.Object.KeyVals {
			switch isShort := pair.Val == nil; {
			case pair.KeyString != nil && pair.KeyString.Queries != nil:
				r.queries(in, pair.KeyString.Queries...)
			case isShort && pair.KeyString != nil:
				r.member(pair.KeyString.Str, in)
			case isShort && pair.Key != "" && !strings.HasPrefix(pair.Key, "$"):
				r.member(pair.Key, in)
			}
			r.queries(in, pair.KeyQuery, pair.Val)
		}
	case gojq.TermTypeArray:
		return r.query(t.Array.Query, in).array()
	case gojq.TermTypeUnary:
		r.term(t.Unary.Term, in)
	case gojq.TermTypeString, gojq.TermTypeFormat:
		if t.Str != nil {
			r.queries(in, t.Str.Queries...)
		}
	case gojq.TermTypeIf:
		r.query(t.If.Cond, in)
		v, other := r.query(t.If.Then, in), in
		for _, elif := range t.If.Elif {
			r.query(elif.Cond, in)
			v = either(v, r.query(elif.Then, in))
		}
		if t.If.Else != nil {
			other = r.query(t.If.Else, in)
		}
		return either(v, other)
	case gojq.TermTypeReduce:
		r.query(t.Reduce.Start, in)
		r.with(t.Reduce.Patterns, r.query(t.Reduce.Query, in)).query(t.Reduce.Update, value{})
	case gojq.TermTypeForeach:
		r.query(t.Foreach.Start, in)
		r.with(t.Foreach.Patterns, r.query(t.Foreach.Query, in)).queries(value{}, t.Foreach.Update, t.Foreach.Extract)
	case gojq.TermTypeTry:
		r.query(t.Try.Body, in)
	case gojq.TermTypeQuery:
		return r.query(t.Query, in)
	}
	return value{}
}

func (r reader) function(f *gojq.Func, in value) value {
	body, inside, defined := r.call(f)
	argument := func(in value) value {
		if len(f.Args) != 1 {
			return value{}
		}
		return r.query(f.Args[0], in)
	}
	switch {
	case strings.HasPrefix(f.Name, "$"):
		return r.variables[f.Name]
	case body != nil:
		r.scope = inside
		return r.query(body, in)
	case defined:
		return value{}
	}
	switch f.Name {
	case "map":
		return argument(in.element()).array()
	case "select":
		argument(in)
		return in
	case "first", "last":
		if len(f.Args) == 1 {
			return argument(in)
		}
		return in.element()
	case "sort_by", "unique_by":
		argument(in.element())
		return in
	case "min_by", "max_by":
		argument(in.element())
		return in.element()
	case "group_by":
		argument(in.element())
		return in.array()
	case "reverse":
		return in
	case "error", "empty":
		argument(in)
		return value{kind: never}
	case "any", "all":
		argument(in.element())
	}
	return value{}
}
