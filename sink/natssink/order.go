package natssink

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// queues keep the events of a key behind each other: one of them at the most is under
// way, and the next is published when a stream has acknowledged the one before, or
// has refused it for good. A stream that takes the first event a little later than the
// second would have them in the wrong order else, or the second alone.
type queues struct {
	batch *buffer.Batch
	next  []int // by index: the next event of the key; 0: there is none
	// ready are those that may be published. It has room for all of the batch.
	ready chan int
}

// newQueues lines up the events of the batch.
func newQueues(b *buffer.Batch) *queues {
	q := &queues{batch: b, next: make([]int, len(b.Events)), ready: make(chan int, len(b.Events))}
	last := make(map[string]int, len(b.Events))
	for i := range b.Events {
		key := b.Events[i].Key
		if key == nil {
			q.ready <- i
			continue
		}
		if before, known := last[*key]; known {
			q.next[before] = i
		} else {
			q.ready <- i
		}
		last[*key] = i
	}
	return q
}

// settled lets the next event of the key go, or says why it does not.
func (q *queues) settled(f *flight, i int, verdict error) {
	next := q.next[i]
	switch {
	case next == 0:
	case verdict == nil || errors.Is(verdict, sink.ErrPermanent):
		q.ready <- next
	default:
		behind, ok := errors.AsType[*sink.BehindError](verdict)
		if !ok {
			behind = &sink.BehindError{ID: q.batch.Events[i].ID, Err: verdict}
		}
		for next != 0 && !f.settle(next, behind) { // whoever is settled tells the rest
			next = q.next[next]
		}
	}
}

// publishInOrder publishes as the queues say until every event has its verdict, or
// answered is done. Events that have theirs let the next one go, or not, as well.
func (c *connection) publishInOrder(answered context.Context, p *publisher, f *flight) {
	c.mu.Lock()
	f.queues = newQueues(p.batch)
	c.mu.Unlock()
	for {
		select {
		case <-answered.Done():
			return
		case i := <-f.queues.ready:
			c.mu.Lock()
			verdict := f.verdicts[i]
			if !errors.Is(verdict, errWaiting) { // it cannot be published, or not without leave, or is stored
				f.queues.settled(f, i, verdict)
			}
			c.mu.Unlock()
			if !errors.Is(verdict, errWaiting) {
				continue
			}
			if _, alive := c.publishOne(p, f, i, c.replyTo(f, i)); !alive {
				return
			}
		}
	}
}
