package natssink_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// A database hands ids out twice after TRUNCATE RESTART IDENTITY, and after a failover to a standby that had not
// received them. The stream must not take the new events for those that it knows.
func TestDuplicates(t *testing.T) {
	const n = 5
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC)
	for _, c := range []struct {
		name string
		// again makes the second batch of the first, which has the same ids.
		again func(b *buffer.Batch)
		// arrive reports whether the events of the second batch are other events.
		arrive bool
	}{
		{"IDReused", func(b *buffer.Batch) { b.GroupID, b.Events = buffer.NewGroupID(), eventsAt(n, epoch.Add(time.Hour)) }, true},
		{"IDReusedAfterAnOutage", func(b *buffer.Batch) {
			b.GroupID, b.Events, b.FirstSend = buffer.NewGroupID(), eventsAt(n, epoch.Add(time.Hour)), false
		}, true},
		{"IDReusedAndSplit", func(b *buffer.Batch) {
			b.GroupID, b.Events, b.Origins = buffer.NewGroupID(), eventsAt(n, epoch.Add(time.Hour)), []uuid.UUID{buffer.NewGroupID()}
		}, true},
		// The application sets created_at.
		{"IDAndTimeReused", func(b *buffer.Batch) { b.GroupID = buffer.NewGroupID() }, true},
		// The table was truncated while the batch was in the ledger, which names its events by their ids.
		{"IDReusedInTheSameBatch", func(b *buffer.Batch) { b.Events, b.FirstSend = eventsAt(n, epoch.Add(time.Microsecond)), false }, true},

		{"SentAgain", func(b *buffer.Batch) { b.FirstSend = false }, false},
		{"SplitOnce", func(b *buffer.Batch) { b.GroupID, b.Origins = buffer.NewGroupID(), []uuid.UUID{b.GroupID} }, false},
		{"SplitTwice", func(b *buffer.Batch) {
			b.GroupID, b.Origins = buffer.NewGroupID(), []uuid.UUID{b.GroupID, buffer.NewGroupID()}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			singlyAndFast(t, func(t *testing.T, fast bool) {
				o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
				b := batchOf(n, "orders.a")
				b.Events = eventsAt(n, epoch)
				testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
				c.again(b)
				want := idsExcept(n)
				if c.arrive {
					want = strings.Join([]string{want, want}, " ")
				}
				for range 2 { // the second batch may be sent again too
					testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
					b.FirstSend = false
					testkit.Equal(t, "stored", o.ids(t), want)
				}
			})
		})
	}
}

// The events of a projection may have another created_at each time. They are the same events nevertheless.
func TestDuplicates_Projected(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		const n = 5
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		b := batchOf(n, "orders.a")
		b.Projected = true
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
		b.FirstSend = false
		for i := range b.Events {
			b.Events[i].CreatedAt = b.Events[i].CreatedAt.Add(time.Hour)
		}
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
		testkit.Equal(t, "stored", o.ids(t), idsExcept(n))
		b.GroupID, b.FirstSend = buffer.NewGroupID(), true
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
		testkit.Equal(t, "stored after the ids were used again", o.ids(t), idsExcept(n)+" "+idsExcept(n))
	})
}

// eventsAt returns events with ids from 1 that were created at one time.
func eventsAt(n int, at time.Time) []outbox.Event {
	events := batchOf(n, "orders.a").Events
	for i := range events {
		events[i].CreatedAt = at
	}
	return events
}
