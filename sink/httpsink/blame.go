package httpsink

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// mostBlames is how often a program is run to find the events that it cannot take: one
// among ten thousand needs 28 runs.
const mostBlames = 64

// blame finds the events that the program cannot take, by running it over halves of the
// batch; nothing is sent meanwhile. Where it takes others of the same batch it is these
// events' doing, and they are refused. What was not looked at is a part of its own, and
// looked at when that is sent. nil: the program takes none, and is to blame itself. It is
// so whoever held the batch before: what a program fails over was not sent, unless the
// projection has changed since.
func (s *Sink) blame(ctx context.Context, b *buffer.Batch, r *request, failed error) []sink.Group {
	if len(r.events) < 2 || isLimit(failed) || errors.Is(failed, errNone) || errors.Is(failed, errSeveral) {
		return nil
	}
	var (
		good, unseen []int
		bad          []sink.Group
		runs         int
	)
	var part func(from, to int)
	part = func(from, to int) {
		if runs == mostBlames || ctx.Err() != nil {
			unseen = append(unseen, r.events[from:to]...)
			return
		}
		runs++
		some := *r
		some.events, some.values = r.events[from:to], r.values[from:to]
		_, err := s.program(ctx, b, &some)
		switch {
		case err == nil:
			good = append(good, some.events...)
		case isLimit(err): // however often it is run
			runs = mostBlames
			unseen = append(unseen, some.events...)
		case to-from == 1:
			bad = append(bad, sink.Group{Indexes: some.events, Err: sink.Permanent(s.requestError(b, &some, err))})
		default:
			part(from, (from+to)/2)
			part((from+to)/2, to)
		}
	}
	middle := len(r.events) / 2
	part(0, middle)
	part(middle, len(r.events))
	if len(good) == 0 || ctx.Err() != nil {
		return nil
	}
	parts := append([]sink.Group{{Indexes: good}}, bad...)
	if len(unseen) > 0 {
		parts = append(parts, sink.Group{Indexes: unseen})
	}
	if len(parts) == 1 { // it takes each half, and not the whole
		return []sink.Group{{Indexes: r.events[:middle]}, {Indexes: r.events[middle:]}}
	}
	return parts
}

func isLimit(err error) bool { return errors.Is(err, errTime) || errors.Is(err, errMemory) }

// requestError says which program failed, over which event where it is one alone.
func (s *Sink) requestError(b *buffer.Batch, r *request, err error) error {
	of := ""
	if len(r.events) == 1 {
		of = " of event " + b.Events[r.events[0]].Identity()
	}
	return fmt.Errorf("request%s: %s (nothing was sent; relay preview tries it)", of, s.redactor.line(err.Error(), false, quoteBytes))
}
