package natssink

import (
	"bytes"
	"context"
	"maps"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/natssink/internal/fastbatch"
)

// minFastBatch is from how many events on a fast batch costs less than single publishes.
const minFastBatch = 3

// groups returns the events that go in fast batches, by stream: their indexes, in order. The others are published singly.
//
// An event that may have been sent before is always published singly. A replicated stream drops a known event
// and counts it as stored, although the first copy may yet be lost with its leader. Published singly, the
// event is refused instead (10158), and waits.
func (s *Sink) groups(ctx context.Context, c *connection, b *buffer.Batch, subjects []string) map[*stream][]int {
	if s.core || len(b.Events) < minFastBatch || !firstAttempt(b) {
		return nil
	}
	groups := map[*stream][]int{}
	singles := 0
	for i, stream := range s.streamsOf(ctx, c, subjects) {
		if subjects[i] == "" {
			continue
		}
		if stream == nil || hasServerHeaders(&b.Events[i]) {
			singles++
			continue
		}
		groups[stream] = append(groups[stream], i)
	}
	if s.ordered && (singles > 0 || len(groups) > 1) {
		return nil // the events of one key may be in several groups
	}
	maps.DeleteFunc(groups, func(_ *stream, events []int) bool { return len(events) < minFastBatch })
	return groups
}

// hasServerHeaders reports whether an event's own headers may contain instructions for the stream (Nats-TTL,
// Nats-Rollup, Nats-Expected-Last-Sequence...). Some of them have another meaning in a batch.
func hasServerHeaders(e *outbox.Event) bool { return bytes.Contains(e.Headers, []byte("Nats-")) }

// publishGroups publishes each group as a fast batch. Events that have no result afterwards must be published
// singly, unless answered is done.
func (c *connection) publishGroups(answered context.Context, p *publisher, f *inflight, groups map[*stream][]int) {
	type published struct {
		stream *stream
		batch  *fastbatch.Batch
	}
	batches := make([]published, 0, len(groups))
	for stream, events := range groups {
		batch, err := c.fast.Publish(answered, events, func(i int, reply string) (string, error) {
			sent, err := c.publishOne(p, f, i, reply)
			if !sent {
				return "", err
			}
			return f.subjects[i], nil
		})
		batches = append(batches, published{stream: stream, batch: batch})
		if err != nil {
			break
		}
	}
	for _, b := range batches {
		c.recordFast(f, b.stream, b.batch.Wait(answered))
	}
}

// recordFast records what became of a fast batch.
func (c *connection) recordFast(f *inflight, s *stream, r fastbatch.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range r.Stored {
		f.resolve(i, nil)
	}
	c.streams.update(s, r.Err)
}
