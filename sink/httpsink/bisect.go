package httpsink

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

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
