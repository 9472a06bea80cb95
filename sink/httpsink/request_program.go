package httpsink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// removeUnreadable removes the events from the request that are no JSON for a program, and returns them.
func (r *request) removeUnreadable(b *buffer.Batch) (rejected []sink.EventError) {
	indexes := make([]int, 0, len(r.indexes))
	for _, i := range r.indexes {
		e := &b.Events[i]
		var err error
		if sink.IsJSON(e, b.PayloadIsJSON) {
			err = jq.Valid(e.Payload)
		}
		if err == nil && e.Headers != nil {
			err = jq.Valid(e.Headers)
		}
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: sink.Permanent(fmt.Errorf("its payload or headers are %w", err))})
			continue
		}
		indexes = append(indexes, i)
	}
	r.indexes = indexes
	return rejected
}

// runRequest makes the request's body with Config.Request. If the body is too large, the batch is split
// into halves: only the program knows how large each event makes it.
func (s *Sink) runRequest(ctx context.Context, b *buffer.Batch, r *request, rejected []sink.EventError) (*request, []sink.EventError, error) {
	var failed error
	r.body, failed = s.requestBody(ctx, b, r.indexes)
	if errors.Is(failed, jq.ErrInput) {
		if unreadable := r.removeUnreadable(b); len(unreadable) > 0 {
			if rejected = append(rejected, unreadable...); len(r.indexes) == 0 {
				return nil, rejected, nil
			}
			r.body, failed = s.requestBody(ctx, b, r.indexes)
		}
	}
	if failed != nil {
		return nil, rejected, s.requestFailed(ctx, b, r, rejected, failed)
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

// requestFailed finds out whether the program or one of the events is the cause of a failure. Nothing was sent.
func (s *Sink) requestFailed(ctx context.Context, b *buffer.Batch, r *request, rejected []sink.EventError, failed error) error {
	err := s.requestError(b, r.indexes, failed)
	var groups []sink.Group
	switch {
	case ctx.Err() != nil:
		return sink.Unavailable(err)
	case errors.Is(failed, jq.ErrKilled) && len(r.indexes) > 1 && s.hasWorked.Load():
		groups = divide(r.indexes) // the memory of the machine may have run out because of one event
	case errors.Is(failed, jq.ErrProcess): // says nothing about program or events
		return sink.Unavailable(err)
	case len(r.indexes) == 1 && errors.Is(failed, jq.ErrLimit) && s.hasWorked.Load():
		return sink.NewBatchError(append(rejected, sink.EventError{Index: r.indexes[0], Err: err}))
	case len(r.indexes) == 1:
	case errors.Is(failed, jq.ErrLimit):
		groups = s.isolate(ctx, b, r.indexes)
	case !errors.Is(failed, jq.ErrResults):
		groups = s.bisect(ctx, b, r.indexes)
	}
	if groups != nil {
		return sink.NewSplitError(groups, rejected, false)
	}
	// The program fails on every event. If other batches are delivered meanwhile, these
	// events are the cause.
	return sink.MaybePoison(err)
}

// requestBody runs Config.Request for these events.
func (s *Sink) requestBody(ctx context.Context, b *buffer.Batch, indexes []int) ([]byte, error) {
	body, err := s.request.Request(ctx, defaultFormat(b).makeBody(b, indexes), s.shape())
	if err == nil {
		s.hasWorked.Store(true)
	}
	return body, err
}

// shape is what the request program makes.
func (s *Sink) shape() jq.Shape {
	switch s.cfg.Format {
	case Form:
		return jq.Form
	case NDJSON:
		return jq.Lines
	}
	return jq.JSON
}

// requestError is the error of the request program. It names the event if there is only one.
func (s *Sink) requestError(b *buffer.Batch, indexes []int, err error) error {
	event := ""
	if len(indexes) == 1 {
		event = " of event " + b.Events[indexes[0]].Identity()
	}
	return fmt.Errorf("request%s: %s (nothing was sent; to try the program, run relay preview)", event, s.redactor.line(err.Error(), false, maxQuote))
}

// isolateParts is into how many parts isolate divides a batch: one bad event among 1000 is alone after 5 divisions.
const isolateParts = 4

func divide(indexes []int) []sink.Group {
	var groups []sink.Group
	for part := range slices.Chunk(indexes, (len(indexes)+isolateParts-1)/isolateParts) {
		groups = append(groups, sink.Group{Indexes: part})
	}
	return groups
}

// isolate divides a batch for which the request program exceeds a limit. A run that does so may take 5 s, so isolate
// does not look for the event: the parts are tried when they are sent, and all but one are soon delivered. If the program has
// not worked yet, isolate tries three events alone. It returns nil if none passes, because the program itself may be the cause.
func (s *Sink) isolate(ctx context.Context, b *buffer.Batch, indexes []int) []sink.Group {
	if s.hasWorked.Load() {
		return divide(indexes)
	}
	var bad []sink.Group
	rest, passed := slices.Clone(indexes), false
	for _, i := range slices.Compact([]int{indexes[0], indexes[len(indexes)/2], indexes[len(indexes)-1]}) {
		switch _, err := s.requestBody(ctx, b, []int{i}); {
		case err == nil:
			passed = true
		case ctx.Err() != nil || errors.Is(err, jq.ErrProcess):
		default:
			reason := s.requestError(b, []int{i}, err)
			if !errors.Is(err, jq.ErrLimit) { // a limit may be the machine's fault, and is an attempt
				reason = sink.Permanent(reason)
			}
			bad = append(bad, sink.Group{Indexes: []int{i}, Err: reason})
			rest = slices.DeleteFunc(rest, func(other int) bool { return other == i })
		}
	}
	switch {
	case !passed:
		return nil
	case len(bad) > 0: // the others are probably good
		return append([]sink.Group{{Indexes: rest}}, bad...)
	}
	return divide(rest)
}

// maxBisectRuns is how often bisect runs the program. One bad event among 10,000 needs 28 runs.
const maxBisectRuns = 64

// bisect finds the events that the request program fails on, by running it with halves of the batch
// and sending nothing. It returns nil if the program fails on all events, and is thus itself the
// cause. Otherwise it returns the events that can be sent, each bad event with its error, and the
// events that were not tried: they are tried when their group is sent.
func (s *Sink) bisect(ctx context.Context, b *buffer.Batch, indexes []int) []sink.Group {
	var (
		good, untried []int
		bad           []sink.Group
		runs          int
	)
	var try func(part []int)
	try = func(part []int) {
		if runs == maxBisectRuns || ctx.Err() != nil {
			untried = append(untried, part...)
			return
		}
		runs++
		_, err := s.requestBody(ctx, b, part)
		switch {
		case err == nil:
			good = append(good, part...)
		case errors.Is(err, jq.ErrLimit), errors.Is(err, jq.ErrProcess): // more runs would only take more time
			runs = maxBisectRuns
			untried = append(untried, part...)
		case len(part) == 1:
			bad = append(bad, sink.Group{Indexes: part, Err: sink.Permanent(s.requestError(b, part, err))})
		default:
			try(part[:len(part)/2])
			try(part[len(part)/2:])
		}
	}
	middle := len(indexes) / 2
	try(indexes[:middle])
	try(indexes[middle:])
	if len(good) == 0 || ctx.Err() != nil {
		return nil
	}
	if len(good) == len(indexes) { // the program takes each half, but not the whole
		return halves(indexes)
	}
	groups := append([]sink.Group{{Indexes: good}}, bad...)
	if len(untried) > 0 {
		groups = append(groups, sink.Group{Indexes: untried})
	}
	return groups
}
