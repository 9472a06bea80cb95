package httpsink

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// decodeEvents reads the envelopes for the programs. It removes the events that cannot be read from
// the request, and returns them.
func (r *request) decodeEvents(b *buffer.Batch) (rejected []sink.EventError) {
	indexes := r.indexes[:0]
	r.values = make([]any, 0, len(r.indexes))
	for _, i := range r.indexes {
		envelope, err := decodeEnvelope(b, i)
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: sink.Permanent(fmt.Errorf("its payload or headers are %w", err))})
			continue
		}
		indexes, r.values = append(indexes, i), append(r.values, envelope)
	}
	r.indexes = indexes
	return rejected
}

// decodeEnvelope returns the value of sink.AppendEnvelope's JSON. It decodes only the payload and the
// headers: decoding the whole envelope takes twice as long.
func decodeEnvelope(b *buffer.Batch, i int) (map[string]any, error) {
	e := &b.Events[i]
	envelope := make(map[string]any, 8)
	envelope["id"] = e.Identity()
	envelope["topic"] = e.Topic
	envelope["created_at"] = string(sink.AppendTime(nil, e.CreatedAt))
	if e.Key != nil {
		envelope["key"] = *e.Key
	}
	var err error
	if !sink.IsJSON(e, b.PayloadIsJSON) {
		envelope["payload_base64"] = base64.StdEncoding.EncodeToString(e.Payload)
	} else if envelope["payload"], err = jq.Decode(e.Payload); err != nil {
		return nil, err
	}
	if e.Headers != nil {
		if envelope["headers"], err = jq.Decode(e.Headers); err != nil {
			return nil, err
		}
	}
	if d := b.DeadLetter(i); d != nil {
		if envelope["dead_letter"], err = jq.Decode(sink.AppendDeadLetter(nil, d)); err != nil {
			return nil, err
		}
	}
	return envelope, nil
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
			return nil, nil, sink.NewSplitError(groups, rejected, false)
		}
		// The program fails on every event. If other batches are delivered meanwhile, these
		// events are the cause.
		return nil, nil, sink.MaybePoison(err)
	}
	switch {
	case s.cfg.MaxBytes == 0 || len(r.body) <= s.cfg.MaxBytes:
		return r, rejected, nil
	case len(r.indexes) == 1:
		return nil, append(rejected, sink.EventError{Index: r.indexes[0], Err: errTooManyBytes(len(r.body), s.cfg.MaxBytes)}), nil
	default:
		return nil, nil, sink.NewSplitError(halves(r.indexes), rejected, true)
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
	switch s.cfg.Format {
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

// requestError is the error of the request program. It names the event if there is only one.
func (s *Sink) requestError(b *buffer.Batch, r *request, err error) error {
	event := ""
	if len(r.indexes) == 1 {
		event = " of event " + b.Events[r.indexes[0]].Identity()
	}
	return fmt.Errorf("request%s: %s (nothing was sent; to try the program, run relay preview)", event, s.redactor.line(err.Error(), false, maxQuote))
}

// maxBisectRuns is how often bisect runs the program. One bad event among 10,000 needs 28 runs.
const maxBisectRuns = 64

// bisect finds the events that the request program fails on, by running it with halves of the batch
// and sending nothing. It returns nil if the program fails on all events, and is thus itself the
// cause. Otherwise it returns the events that can be sent, each bad event with its error, and the
// events that were not tried: they are tried when their group is sent.
func (s *Sink) bisect(ctx context.Context, b *buffer.Batch, r *request, failed error) []sink.Group {
	if len(r.indexes) < 2 || errors.Is(failed, jq.ErrLimit) || errors.Is(failed, jq.ErrResults) {
		return nil
	}
	var (
		good, untried []int
		bad           []sink.Group
		runs          int
	)
	var try func(from, to int)
	try = func(from, to int) {
		part := *r
		part.indexes, part.values = r.indexes[from:to], r.values[from:to]
		if runs == maxBisectRuns || ctx.Err() != nil {
			untried = append(untried, part.indexes...)
			return
		}
		runs++
		_, err := s.requestBody(ctx, b, &part)
		switch {
		case err == nil:
			good = append(good, part.indexes...)
		case errors.Is(err, jq.ErrLimit): // more runs would only take more time
			runs = maxBisectRuns
			untried = append(untried, part.indexes...)
		case to-from == 1:
			bad = append(bad, sink.Group{Indexes: part.indexes, Err: sink.Permanent(s.requestError(b, &part, err))})
		default:
			try(from, (from+to)/2)
			try((from+to)/2, to)
		}
	}
	middle := len(r.indexes) / 2
	try(0, middle)
	try(middle, len(r.indexes))
	if len(good) == 0 || ctx.Err() != nil {
		return nil
	}
	if len(good) == len(r.indexes) { // the program takes each half, but not the whole
		return halves(r.indexes)
	}
	groups := append([]sink.Group{{Indexes: good}}, bad...)
	if len(untried) > 0 {
		groups = append(groups, sink.Group{Indexes: untried})
	}
	return groups
}
