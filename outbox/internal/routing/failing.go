package routing

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Failing knows the batches of which each event fails for its own data, as far as this process has tried to route them. Their events are to
// blame if the projection works for others: once another batch was claimed and routed after that. The zero value knows none. It is safe for
// concurrent use.
type Failing struct {
	mu       sync.Mutex
	since    map[uuid.UUID]time.Time
	routedAt time.Time // when the last claim began of which an event was routed
}

// maxFailing bounds what is remembered. Batches that are forgotten fail once more.
const maxFailing = 10_000

// blames reports whether the events of a batch that has failed are to blame.
func (f *Failing) blames(batch *buffer.Lease) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, again := f.since[batch.GroupID]
	if again {
		return f.routedAt.After(since)
	}
	if f.since == nil || len(f.since) >= maxFailing {
		f.since = map[uuid.UUID]time.Time{}
	}
	f.since[batch.GroupID] = time.Now()
	return false
}

// Routed notes that a batch was routed whose claim or take-over began then.
func (f *Failing) Routed(batch *buffer.Lease, began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.since, batch.GroupID)
	if len(batch.Events) > 0 && began.After(f.routedAt) {
		f.routedAt = began
	}
}
