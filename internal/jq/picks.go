package jq

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/itchyny/gojq"
)

// Picks returns how many events of a batch a program for requests sends at most, if it surely picks them by their position, such as
// .events[0] or first(.events[]). It returns false for a program that may send something of all events or of none, that looks at how many
// there are, or that is not a program.
func Picks(text string) (n int, ok bool) {
	p := picker{}
	if !p.sure(text) {
		return 0, false
	}
	for _, count := range p.picked {
		n = min(n+count, math.MaxInt32)
	}
	return n, n > 0
}

// Filters returns the part of a program for requests that leaves out events by their content, such as select(.payload.email), if the program surely
// sends no event around it. It returns "" for a program with several such parts, because together they may send each event.
func Filters(text string) string {
	p := picker{filters: map[string]bool{}}
	if !p.sure(text) || len(p.picked) > 0 || len(p.filters) != 1 {
		return ""
	}
	for part := range p.filters {
		return part
	}
	return ""
}

// Cuts returns the part of a program for requests that leaves out events by their position however many there are, such as .[1:], if the program surely sends
// no event around it. It returns "" for a program with several such parts, because together they may send each event.
func Cuts(text string) string {
	p := picker{cuts: map[string]bool{}}
	if !p.sure(text) || len(p.picked) > 0 || len(p.cuts) != 1 {
		return ""
	}
	for part := range p.cuts {
		return part
	}
	return ""
}

// sure walks a program, and reports whether it surely sends nothing but what is noted.
func (p *picker) sure(text string) bool {
	query, err := parse(text)
	if err != nil {
		return false
	}
	p.picked, p.aware, p.steps = map[string]int{}, new(bool), new(int)
	return p.query(query, ofBody) == ofNone && !*p.aware && *p.steps <= maxSteps
}

// portion is what a value may contain of the events of a batch, beside those that were picked.
type portion int

const (
	ofNone portion = iota
	ofOne          // each result is of one event
	ofEach         // an array; each element is of one event
	ofAll
	ofBody // the program's input
)

// both is the portion of a value that is made of two.
func both(a, b portion) portion {
	switch {
	case a == ofNone || a == b:
		return b
	case b == ofNone:
		return a
	}
	return ofAll
}

func (s portion) element() portion {
	switch s {
	case ofEach:
		return ofOne
	case ofBody:
		return ofAll
	}
	return s
}

// array is the portion of an array of such values.
func (s portion) array() portion {
	switch s {
	case ofNone:
		return ofNone
	case ofOne:
		return ofEach
	}
	return ofAll
}

// single is the portion of a value that contains such a value, or is computed from it.
func (s portion) single() portion {
	if s > ofOne {
		return ofAll
	}
	return s
}

// picker walks a program and notes what it picks.
type picker struct {
	picked map[string]int // the number of events by what picks them
	aware  *bool          // the program decides by the number of events, or by one that is not the first
	steps  *int
	// deciding is true within a condition.
	deciding bool
	// filters are the parts that leave out events; nil if they are not looked for.
	filters map[string]bool
	// cuts are the parts that leave out events by their position; nil if they are not looked for.
	cuts map[string]bool
	// each is true within what runs once for each event, inner within a part of it that leaves out no event, such as an array.
	each, inner bool
	scope[portion]
}

// filter notes a part that leaves out events, and reports whether it is one.
func (p picker) filter(part string, s portion) bool {
	is := p.filters != nil && p.each && !p.inner && !p.deciding && s == ofOne
	if is {
		p.filters[part] = true
	}
	return is
}

// within is the walk of a part that leaves out no event if it runs for each.
func (p picker) within() picker {
	p.inner = p.inner || p.each
	return p
}

// forEach is the walk of what runs once for each result of that portion.
func (p picker) forEach(s portion) picker {
	p.each = p.each || s == ofOne
	return p
}

func (p picker) pick(what string, n int) portion {
	p.picked[what] = n
	if p.deciding && what != "0" {
		*p.aware = true
	}
	return ofNone
}

// cut notes a part that leaves out events by their position, and reports whether it does.
func (p picker) cut(part string) bool {
	if p.cuts == nil {
		return false
	}
	p.cuts[part] = true
	*p.aware = *p.aware || p.deciding
	return true
}

// decide walks a condition.
func (p picker) decide(q *gojq.Query, in portion) {
	p.deciding = true
	switch s := p.query(q, in); {
	case s == ofNone:
	case s == ofOne && p.each && p.filters != nil: // by each event
	default:
		*p.aware = true
	}
}

func (p picker) query(q *gojq.Query, in portion) portion {
	if q == nil {
		return ofNone
	}
	if *p.steps++; *p.steps > maxSteps {
		return ofAll
	}
	p.scope = p.define(q.FuncDefs)
	switch {
	case q.Term != nil:
		return p.term(q.Term, in)
	case q.Op == gojq.OpPipe && q.Patterns != nil:
		whole := p.query(q.Left, in)
		p.scope = p.bind(q.Patterns, whole, whole.single())
		return p.forEach(whole).query(q.Right, in)
	case q.Op == gojq.OpPipe:
		noted := len(p.filters)
		left := p.query(q.Left, in)
		isFiltered := len(p.filters) > noted && left == ofNone
		right := p.forEach(left).query(q.Right, left)
		switch {
		case isFiltered: // what follows is of the same events
			return ofNone
		case left == ofOne && right == ofNone && len(p.filters) == noted: // one result for each event
			return ofOne
		}
		return right
	case q.Op == gojq.OpAlt:
		isFilter := isEmpty(q.Right)
		left := p
		if !isFilter {
			left = p.within()
		}
		s := both(left.query(q.Left, in), p.query(q.Right, in))
		if isFilter && p.filter(q.String(), s) {
			return ofNone
		}
		return s
	case q.Op >= gojq.OpAssign:
		return both(in, p.query(q.Right, in)).single()
	}
	return both(p.query(q.Left, in), p.query(q.Right, in))
}

func (p picker) term(t *gojq.Term, in portion) portion {
	return suffixed(t, p.bare(t, in), portion.element, func(i *gojq.Index, of portion) portion { return p.index(i, of, in) })
}

// index is a part of a value. The programs within the brackets have the input of the term.
func (p picker) index(i *gojq.Index, of, in portion) portion {
	computed := both(p.query(i.Start, in), p.query(i.End, in))
	switch name := nameOf(i); {
	case name != "":
		return member(name, of)
	case i.Str != nil:
		return both(computed, of).single()
	}
	start, isStart := constant(i.Start)
	end, isEnd := constant(i.End)
	switch {
	case of != ofEach:
		return both(computed, of).single()
	case !i.IsSlice && isStart:
		return p.pick(strconv.Itoa(start), 1)
	case i.IsSlice && isEnd && (i.Start == nil || isStart) && 0 <= start && start < end:
		return p.pick("["+strconv.Itoa(start)+":"+strconv.Itoa(end)+"]", end-start)
	case i.IsSlice && isStart && start < 0 && i.End == nil:
		return p.pick("["+strconv.Itoa(start)+":]", -start)
	case i.IsSlice && (i.Start == nil || isStart) && (i.End == nil || isEnd) && (start > 0 || end < 0) && p.cut("."+sliceOf(i, start, end)):
		return ofNone
	case i.IsSlice:
		return ofEach
	}
	return ofAll
}

// sliceOf is a slice with constant limits as it is written.
func sliceOf(i *gojq.Index, start, end int) string {
	text := "["
	if i.Start != nil {
		text += strconv.Itoa(start)
	}
	if text += ":"; i.End != nil {
		text += strconv.Itoa(end)
	}
	return text + "]"
}

func member(name string, of portion) portion {
	switch {
	case of == ofBody && name == "events":
		return ofEach
	case of == ofBody || of == ofEach: // another member of the body, or an error
		return ofNone
	}
	return of
}

// constant returns the integer that a query is.
func constant(q *gojq.Query) (int, bool) {
	if q == nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.ReplaceAll(q.String(), " ", ""))
	return n, err == nil && n <= math.MaxInt32
}

// isEmpty reports whether a query has no result, whatever its input.
func isEmpty(q *gojq.Query) bool { return q != nil && q.String() == "empty" }

func (p picker) queries(in portion, all ...*gojq.Query) (s portion) {
	for _, q := range all {
		s = both(s, p.query(q, in))
	}
	return s
}

func (p picker) bare(t *gojq.Term, in portion) portion {
	switch t.Type {
	case gojq.TermTypeIdentity:
		return in
	case gojq.TermTypeRecurse:
		return in.single()
	case gojq.TermTypeIndex:
		return p.index(t.Index, in, in)
	case gojq.TermTypeNull, gojq.TermTypeTrue, gojq.TermTypeFalse, gojq.TermTypeNumber:
		return ofNone
	case gojq.TermTypeFunc:
		return p.function(t.Func, in)
	case gojq.TermTypeObject:
		return p.object(t.Object, in).single()
	case gojq.TermTypeArray:
		if t.Array.Query == nil {
			return ofNone
		}
		s := p.within().query(t.Array.Query, in)
		if s == ofOne && p.each && p.filters != nil { // parts of one event
			return ofOne
		}
		return s.array()
	case gojq.TermTypeUnary:
		return p.term(t.Unary.Term, in)
	case gojq.TermTypeString, gojq.TermTypeFormat:
		if t.Str == nil {
			return in.single()
		}
		return p.queries(in, t.Str.Queries...).single()
	case gojq.TermTypeIf:
		p.decide(t.If.Cond, in)
		s, other, drops := p.query(t.If.Then, in), in, isEmpty(t.If.Then) || isEmpty(t.If.Else)
		for _, elif := range t.If.Elif {
			p.decide(elif.Cond, in)
			s, drops = both(s, p.query(elif.Then, in)), drops || isEmpty(elif.Then)
		}
		if t.If.Else != nil {
			other = p.query(t.If.Else, in)
		}
		if s = both(s, other); drops && p.filter(t.String(), s) {
			return ofNone
		}
		return s
	case gojq.TermTypeTry:
		return both(p.query(t.Try.Body, in), p.query(t.Try.Catch, ofNone))
	case gojq.TermTypeQuery:
		return p.query(t.Query, in)
	}
	return ofAll // whatever else is rare
}

func (p picker) object(o *gojq.Object, in portion) (s portion) {
	for _, pair := range o.KeyVals {
		one := p.queries(in, pair.KeyQuery, pair.Val)
		switch isShort := pair.Val == nil; {
		case pair.KeyString != nil && pair.KeyString.Queries != nil:
			one = both(both(one, p.queries(in, pair.KeyString.Queries...)), in)
		case isShort && pair.KeyString != nil:
			one = member(pair.KeyString.Str, in)
		case isShort && strings.HasPrefix(pair.Key, "$"):
			one = p.variables[pair.Key]
		case isShort && pair.Key != "":
			one = member(pair.Key, in)
		case isShort:
			one = both(one, in)
		}
		s = both(s, one.single())
	}
	return s
}

// elements matches a query for elements of an array by their position.
var elements = regexp.MustCompile(`^\.\[-?\d*(:-?\d*)?\]$`)

func (p picker) function(f *gojq.Func, in portion) portion {
	body, inside, defined := p.call(f)
	switch {
	case strings.HasPrefix(f.Name, "$"):
		return p.variables[f.Name]
	case body != nil:
		p.scope = inside
		return p.query(body, in)
	case defined:
		return ofAll
	case len(f.Args) == 0:
		return p.plain(f.Name, in)
	}
	if f.Name != "select" && f.Name != "map" {
		p = p.within()
	}
	switch last := f.Args[len(f.Args)-1]; f.Name {
	case "select":
		if in == ofOne { // of each event, whether it is meant
			p.within().query(last, in)
		} else {
			p.decide(last, in)
		}
		if p.filter(f.String(), in) {
			return ofNone
		}
		return in
	case "map":
		return p.within().forEach(in.element()).query(last, in.element()).array()
	case "sort_by", "unique_by", "min_by", "max_by":
		if p.query(last, in.element()); in == ofEach {
			return p.plain(f.Name, in)
		}
	case "nth":
		if len(f.Args) == 1 {
			if n, ok := constant(last); ok && in == ofEach {
				return p.pick(strconv.Itoa(n), 1)
			}
			return both(p.query(last, in), in).single()
		}
		if p.query(last, in) == ofOne {
			return p.pick(f.String(), 1)
		}
		return p.query(last, in)
	case "skip":
		s := p.query(last, in)
		if n, ok := constant(f.Args[0]); s == ofOne && ok && n > 0 && p.cut(f.String()) {
			return ofNone
		}
		return s
	case "del":
		if in == ofEach && elements.MatchString(strings.ReplaceAll(last.String(), " ", "")) && p.cut(f.String()) {
			return ofNone
		}
	case "first", "last", "limit":
		s, n := p.query(last, in), 1
		if f.Name == "limit" {
			count, ok := constant(f.Args[0])
			if n = count; !ok || n < 1 {
				return ofAll
			}
		}
		if s == ofOne {
			return p.pick(f.String(), n)
		}
		return s
	case "error":
		p.queries(in, f.Args...)
		return ofNone
	}
	s := both(p.queries(in, f.Args...), in)
	if s == ofOne && in != ofOne { // a function may take all results of its argument
		return ofAll
	}
	return s.single()
}

// plain is the portion of a function without arguments.
func (p picker) plain(name string, in portion) portion {
	if name == "length" && in > ofOne {
		*p.aware = true
		return ofNone
	}
	switch {
	case slices.Contains([]string{"error", "empty", "not", "now", "env", "null", "true", "false"}, name):
		return ofNone
	case in != ofEach:
	case name == "first":
		return p.pick("0", 1)
	case slices.Contains([]string{"last", "min_by", "max_by"}, name):
		return p.pick(name, 1)
	case slices.Contains([]string{"sort_by", "unique_by", "reverse", "sort", "unique"}, name):
		return ofEach
	}
	return in.single()
}
