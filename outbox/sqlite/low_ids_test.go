package sqlite_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// insertLow inserts six events. An application may choose ids itself: they are -3 to 2.
func insertLow(t *testing.T, f *buffertest.Fixture, keys ...string) {
	t.Helper()
	events := make([]outbox.Event, 6)
	for i := range events {
		events[i] = outbox.Event{Topic: "t", Payload: []byte("1")}
		if keys != nil {
			events[i].Key = &keys[i]
		}
	}
	for i, id := range f.Insert(t, events...) {
		f.Exec(t, fmt.Sprintf("UPDATE outbox_events SET id = %d WHERE id = %d", i-3, id))
	}
}

func expectClaim(t *testing.T, b buffer.Buffer, limit int, want ...int64) *buffer.Lease {
	t.Helper()
	batch := claim(t, b, limit)
	if !slices.Equal(batch.IDs(), want) {
		t.Fatalf("claimed %v, want %v", batch.IDs(), want)
	}
	return batch
}

func TestClaim_LowIDs(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := harness("outbox_events", mode).Open(t, buffertest.Options{Claim: mode})
			insertLow(t, f)
			backlog, err := f.Buffer.CountBacklog(t.Context(), 100)
			testkit.NoError(t, err)
			testkit.Equal(t, "counted", backlog.Unclaimed, 6)
			status, err := f.Buffer.Status(t.Context())
			testkit.NoError(t, err)
			testkit.Equal(t, "pending", status.Pending, 6)
			deliver(t, f.Buffer, expectClaim(t, f.Buffer, 10, -3, -2, -1, 0, 1, 2))
			testkit.Equal(t, "rows", len(f.Rows(t)), 0)
		})
	}
}

// TestClaim_LowIDsInOrder: an event that waits for its key is not passed, whichever id it has.
func TestClaim_LowIDsInOrder(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", "").Open(t, buffertest.Options{Ordered: true})
	insertLow(t, f, "a", "b", "b", "a", "c", "d")
	first, second := expectClaim(t, f.Buffer, 1, -3), expectClaim(t, f.Buffer, 1, -2)
	expectClaim(t, f.Buffer, 10, 1, 2)
	deliver(t, f.Buffer, second)
	expectClaim(t, f.Buffer, 10, -1)
	deliver(t, f.Buffer, first)
	expectClaim(t, f.Buffer, 10, 0)
}
