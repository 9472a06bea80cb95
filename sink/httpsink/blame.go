package httpsink

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// mostBlames is how often a program is run to find the events that it cannot take: one
// among ten thousand needs 28 runs.
const mostBlames = 64

// blame parts the events of a batch that the program failed over into those that it
// takes together and those that it does not, by halving. Nothing is sent meanwhile, so
// the good need not wait with the bad. nil: it takes none, and the program itself is to
// blame; or nobody knows whether the batch was sent before, and under which body.
func (s *Sink) blame(ctx context.Context, b *outbox.Batch, r *request, failed error) []sink.Group {
	fresh := b.Starts <= 1 && b.Outages == 0 && b.Attempts == 0
	if !fresh || len(r.events) < 2 || errors.Is(failed, errTime) || errors.Is(failed, errMemory) {
		return nil
	}
	var good, bad []int
	runs := 0
	var part func(from, to int)
	part = func(from, to int) {
		if runs == mostBlames || ctx.Err() != nil {
			bad = append(bad, r.events[from:to]...)
			return
		}
		runs++
		some := *r
		some.events, some.values = r.events[from:to], r.values[from:to]
		_, err := s.program(ctx, b, &some)
		switch {
		case err == nil:
			good = append(good, some.events...)
		case to-from == 1:
			bad = append(bad, some.events...)
		default:
			part(from, (from+to)/2)
			part((from+to)/2, to)
		}
	}
	middle := len(r.events) / 2
	part(0, middle)
	part(middle, len(r.events))
	if len(good) == 0 || len(bad) == 0 || ctx.Err() != nil {
		return nil
	}
	return []sink.Group{{Indexes: good}, {Indexes: bad}}
}
