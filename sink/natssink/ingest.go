package natssink

import (
	"bytes"
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// smallest is from how many events of a stream a fast batch pays.
	smallest = 3
	// opening is how many events are under way before the stream has said how many
	// may be.
	opening = 100
	// outstanding is how many of the server's acks may be; two, says ADR-50.
	outstanding = 2
	// quiet is how long nothing is heard before the stream is asked for its last answer.
	quiet = time.Second
)

// group is the events of a batch that go to one stream, as a fast batch.
type group struct {
	to     *stream
	events []int // indexes, in order
}

// groups says which of the events go in fast batches; the others go one by one.
//
// All do that which may have been sent before: a replicated stream drops an event as
// known, and counts it, while the one that came before it may yet be lost with its
// leader. Sent alone it is told so (10158), and waits.
func (s *Sink) groups(ctx context.Context, c *connection, b *buffer.Batch, subjects []string) []group {
	if s.core || len(b.Events) < smallest || !first(b) {
		return nil
	}
	streams := s.streamsOf(ctx, c, subjects)
	var all []group
	at := map[*stream]int{}
	left := 0 // events that go one by one
	for i, to := range streams {
		if subjects[i] == "" {
			continue
		}
		if to == nil || orders(&b.Events[i]) {
			left++
			continue
		}
		n, ok := at[to]
		if !ok {
			n = len(all)
			at[to] = n
			all = append(all, group{to: to})
		}
		all[n].events = append(all[n].events, i)
	}
	if s.ordered && (left > 0 || len(all) > 1) {
		return nil // a key's events may be on both ways
	}
	worth := all[:0]
	for _, g := range all {
		if len(g.events) >= smallest {
			worth = append(worth, g)
		}
	}
	return worth
}

// orders tells whether an event's own headers may give the stream orders (Nats-TTL,
// Nats-Rollup, Nats-Expected-Last-Sequence...): some mean something else in a batch.
func orders(e *outbox.Event) bool { return bytes.Contains(e.Headers, []byte("Nats-")) }

// publishGroups publishes the groups as fast batches. When it returns, the events
// that still wait are to be published one by one, unless answered is done. missing are
// those that the stream accepted without storing them, and of which stream.
func (c *connection) publishGroups(answered context.Context, p *publisher, f *flight, groups []group) (missing map[*stream]int) {
	batches := make([]*fastBatch, 0, len(groups))
	for _, g := range groups {
		s, alive := c.publishFast(answered, p, f, g)
		batches = append(batches, s)
		if !alive {
			break
		}
	}
	for _, s := range batches {
		c.hearOut(answered, s)
		c.end(s)
		if s.missing > 0 {
			if missing == nil {
				missing = map[*stream]int{}
			}
			missing[s.stream] += s.missing
		}
	}
	return missing
}

// publishFast publishes the group until the batch is spoiled or answered is done;
// false: the connection is broken.
func (c *connection) publishFast(answered context.Context, p *publisher, f *flight, g group) (s *fastBatch, alive bool) {
	s = c.begin(f, g.to, len(g.events))
	committed, failed := false, false
	for n, i := range g.events {
		seq := c.board(answered, s, i)
		if seq == 0 {
			break
		}
		op := byte(opAppend)
		switch {
		case n == len(g.events)-1:
			op, committed = opCommit, true
		case seq == 1:
			op = opStart
		}
		published, alive := c.publishOne(p, f, i, s.reply(seq, op))
		if !alive {
			return s, false
		}
		if !published {
			committed = false
			c.leave(s)
		}
	}
	if !committed {
		failed = c.closeFast(s) != nil
	}
	return s, !failed
}

// board gives the event its number when there is room for it; 0: the batch takes no
// more.
func (c *connection) board(answered context.Context, s *fastBatch, i int) (seq int) {
	c.listenUntil(answered, s, func() bool {
		limit := opening
		if s.granted > 0 {
			limit = outstanding * s.granted
		}
		if s.spoiled > 0 || len(s.events)-s.acked >= limit {
			return s.spoiled > 0
		}
		s.events = append(s.events, i) // before it is published: the answer may be quick
		seq = len(s.events)
		return true
	})
	return seq
}

// leave takes the last event's number back: it was not published.
func (c *connection) leave(s *fastBatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.events = s.events[:len(s.events)-1]
}

// closeFast commits what was published so far. Where the batch was spoiled the answer
// tells how far it got, or that it is gone.
func (c *connection) closeFast(s *fastBatch) error {
	if s.closed {
		return nil
	}
	s.closed = true
	return c.control(s, opClose)
}

// control publishes what is no event, to where the first event went.
func (c *connection) control(s *fastBatch, op byte) error {
	c.mu.Lock()
	seq := len(s.events)
	over := s.over || seq == 0
	if op == opClose {
		seq++
	}
	c.mu.Unlock()
	if over {
		return nil
	}
	return c.nc.PublishRequest(s.flight.subjects[s.events[0]], s.reply(seq, op), nil)
}

// hearOut waits for the end of the batch.
func (c *connection) hearOut(answered context.Context, s *fastBatch) {
	spoiled := false
	c.listenUntil(answered, s, func() bool {
		spoiled = s.spoiled > 0 || len(s.events) == 0
		return spoiled
	})
	if !spoiled || c.closeFast(s) != nil {
		return
	}
	c.listenUntil(answered, s, func() bool { return len(s.events) == 0 })
}

// listenUntil returns when enough says so, under the connection's mutex, or the batch
// is over, or answered is done. When nothing is heard it asks; who has spoiled a batch
// and hears nothing gives it up.
func (c *connection) listenUntil(answered context.Context, s *fastBatch, enough func() bool) {
	var timer *time.Timer
	for {
		c.mu.Lock()
		done := s.over || enough()
		spoiled := s.spoiled > 0
		c.mu.Unlock()
		if done || answered.Err() != nil {
			return
		}
		if timer == nil {
			timer = time.NewTimer(quiet)
			defer timer.Stop()
		} else {
			timer.Reset(quiet)
		}
		select {
		case <-answered.Done():
			return
		case <-s.news:
		case <-timer.C:
			if spoiled || c.control(s, opPing) != nil {
				return
			}
		}
	}
}
