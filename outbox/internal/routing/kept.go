package routing

import (
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// keptSize is how many kept events a row may have when others are added.
const keptSize = 1000

// Kept are the events that wait until a sink takes them.
func Kept(batch *buffer.Lease, ids []int64) Delivery {
	return Delivery{GroupID: buffer.NewGroupID(), Sink: buffer.Unrouted, IDs: ids, OldestAt: Oldest(batch.Events), BatchSize: keptSize}
}

// Oldest returns the created_at of the oldest of events.
func Oldest(events []outbox.Event) (at time.Time) {
	for i := range events {
		if e := events[i].Waiting(); at.IsZero() || e.Before(at) {
			at = e
		}
	}
	return at
}
