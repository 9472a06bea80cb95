package natssink

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// keyQueues keep order by key: at most one event of a key is in flight. The next one is published when a
// stream has acknowledged the one before or refused it for good. Otherwise a stream that appears between two
// publishes would store the second event before the first, or without it.
type keyQueues struct {
	batch *buffer.Batch
	next  []int // by index: the next event of the key; 0: none
	// ready are the events that may be published. It has room for all of the batch.
	ready chan int
}

func newKeyQueues(b *buffer.Batch) *keyQueues {
	q := &keyQueues{batch: b, next: make([]int, len(b.Events)), ready: make(chan int, len(b.Events))}
	last := make(map[string]int, len(b.Events))
	for i := range b.Events {
		key := b.Events[i].Key
		if key == nil {
			q.ready <- i
			continue
		}
		if before, ok := last[*key]; ok {
			q.next[before] = i
		} else {
			q.ready <- i
		}
		last[*key] = i
	}
	return q
}

// resolved makes the next event of the key ready, or gives it a *sink.KeyBlockedError.
func (q *keyQueues) resolved(f *inflight, i int, result error) {
	next := q.next[i]
	switch {
	case next == 0:
	case result == nil || errors.Is(result, sink.ErrPermanent):
		q.ready <- next
	default:
		behind, ok := errors.AsType[*sink.KeyBlockedError](result)
		if !ok {
			behind = &sink.KeyBlockedError{ID: q.batch.Events[i].ID, Err: result}
		}
		for next != 0 && !f.resolve(next, behind) { // a resolved event resolves those behind it
			next = q.next[next]
		}
	}
}

// publishInOrder publishes events as they become ready, until every event has its result or answered is done.
func (c *connection) publishInOrder(answered context.Context, p *publisher, f *inflight) {
	c.mu.Lock()
	f.queues = newKeyQueues(p.batch)
	c.mu.Unlock()
	for {
		select {
		case <-answered.Done():
			return
		case i := <-f.queues.ready:
			c.mu.Lock()
			result := f.results[i]
			pending := errors.Is(result, errPending)
			if !pending { // refused before, or stored by a fast batch
				f.queues.resolved(f, i, result)
			}
			c.mu.Unlock()
			if !pending {
				continue
			}
			if _, err := c.publishOne(p, f, i, c.replyTo(f, i)); err != nil {
				return
			}
		}
	}
}
