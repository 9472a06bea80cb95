package httpsink

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// ProgramError says what is wrong with a jq program, and where.
type ProgramError = jq.Error

// CheckRequest returns a *ProgramError if text cannot be Config.Request.
func CheckRequest(text string) error {
	_, err := compileRequest(text)
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

func compileRequest(text string) (*jq.Program, error) { return jq.Compile(text) }

// compileResults also finds results of another shape, as far as they can be seen in the program.
func compileResults(text string) (*jq.Program, error) {
	p, err := jq.Compile(text)
	if err != nil {
		return nil, err
	}
	if wrong := checkResultShape(p); wrong != nil {
		return nil, wrong
	}
	return p, nil
}

// resultKeys are the keys of an element of what Results returns.
var resultKeys = []string{"id", "index", "error", "retry"}

// checkResultShape knows nothing of a program whose result is not written as a literal.
func checkResultShape(p *jq.Program) *jq.Error {
	term := resultTerm(p.Query)
	if term == nil {
		return nil
	}
	if term.Type != gojq.TermTypeArray {
		if kind := literalKinds[term.Type]; kind != "" {
			return &jq.Error{Text: "the program makes " + kind + "; expected an array of {id or index, error, retry}"}
		}
		return nil
	}
	element := resultTerm(term.Array.Query)
	if element == nil {
		return nil
	}
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
			return p.ErrorAt(name, fmt.Sprintf("a result has the key %q; expected id or index, error, retry", name))
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

// resultTerm is the term after the last pipe, or nil if the result is more than a term.
func resultTerm(q *gojq.Query) *gojq.Term {
	for q != nil && q.Op == gojq.OpPipe {
		q = q.Right
	}
	if q == nil || q.Term == nil || len(q.Term.SuffixList) > 0 {
		return nil
	}
	if q.Term.Type == gojq.TermTypeQuery {
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

// decodeEvents reads the envelopes for the programs. It removes the events that cannot be read from
// the request, and returns them.
func (r *request) decodeEvents(b *buffer.Batch) (rejected []sink.EventError) {
	var envelope []byte
	indexes := r.indexes[:0]
	for _, i := range r.indexes {
		envelope = sink.AppendEnvelope(envelope[:0], &b.Events[i], b.PayloadIsJSON)
		value, err := jq.Decode(envelope)
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: sink.Permanent(fmt.Errorf("its payload or headers are %w", err))})
			continue
		}
		indexes, r.values = append(indexes, i), append(r.values, value)
	}
	r.indexes = indexes
	return rejected
}

// runRequest makes the request's body with Config.Request. If the body is too large, the batch is split
// into halves: only the program knows how large each event makes it.
func (s *Sink) runRequest(ctx context.Context, b *buffer.Batch, r *request, rejected []sink.EventError) (*request, []sink.EventError, error) {
	var failed error
	if r.body, failed = s.requestBody(ctx, b, r); failed != nil {
		err := s.requestError(b, r, failed)
		if ctx.Err() != nil { // cancelled
			return nil, nil, sink.Unavailable(err)
		}
		if groups := s.bisect(ctx, b, r, failed); groups != nil {
			return nil, nil, split(groups, rejected, false)
		}
		// The program fails on every event. If other batches are delivered meanwhile, these
		// events are the cause.
		return nil, nil, sink.MaybePoison(err)
	}
	switch {
	case s.maxBytes == 0 || len(r.body) <= s.maxBytes:
		return r, rejected, nil
	case len(r.indexes) == 1:
		return nil, append(rejected, sink.EventError{Index: r.indexes[0], Err: errTooManyBytes(len(r.body), s.maxBytes)}), nil
	default:
		return nil, nil, split(halves(r.indexes), rejected, true)
	}
}

// requestBody runs Config.Request.
func (s *Sink) requestBody(ctx context.Context, b *buffer.Batch, r *request) ([]byte, error) {
	result, err := s.request.Run(ctx, map[string]any{
		"pipeline": b.Pipeline, "group_id": b.GroupID.String(), "events": r.values,
	})
	if err != nil {
		return nil, err
	}
	if text, ok := result.(string); ok {
		return []byte(text), nil
	}
	switch s.format {
	case Form:
		return encodeForm(result)
	case NDJSON:
		lines, ok := result.([]any)
		if !ok {
			lines = []any{result}
		}
		var text []byte
		for _, line := range lines {
			text = append(append(text, jq.Encode(line)...), '\n')
		}
		return text, nil
	}
	return jq.Encode(result), nil
}

// requestError says that the request program failed, and over which event if there is only one.
func (s *Sink) requestError(b *buffer.Batch, r *request, err error) error {
	event := ""
	if len(r.indexes) == 1 {
		event = " of event " + b.Events[r.indexes[0]].Identity()
	}
	return fmt.Errorf("request%s: %s (nothing was sent; to try the program, run relay preview)", event, s.redactor.line(err.Error(), false, maxQuote))
}
