package postgres_test

import (
	"slices"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// insertLow inserts six events; the sequence draws -3 to 2 for them.
func insertLow(t *testing.T, f *buffertest.Fixture, keys ...string) {
	t.Helper()
	f.Exec(t, "ALTER SEQUENCE outbox_events_id_seq MINVALUE -3 RESTART -3")
	events := make([]outbox.Event, 6)
	for i := range events {
		events[i] = outbox.Event{Topic: "t", Payload: []byte("{}")}
		if keys != nil {
			events[i].Key = &keys[i]
		}
	}
	f.Insert(t, events...)
}

func expectNextClaim(t *testing.T, b buffer.Buffer, limit int, want ...int64) *buffer.Lease {
	t.Helper()
	batch, err := b.Claim(t.Context(), limit, lease)
	check(t, err)
	if batch == nil || !slices.Equal(batch.IDs(), want) {
		t.Fatalf("claimed %v, want %v", batch, want)
	}
	return batch
}

func TestClaim_LowIDs(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := harness(mode).Open(t, buffertest.Options{Claim: mode})
			insertLow(t, f)
			backlog, err := f.Buffer.CountBacklog(t.Context(), 100)
			check(t, err)
			if backlog.Unclaimed != 6 {
				t.Errorf("counted %d events, want 6", backlog.Unclaimed)
			}
			expectNextClaim(t, f.Buffer, 10, -3, -2, -1, 0, 1, 2)
		})
	}
}

// Events of a sequence that begins below 0 keep their order as others do, also while another session counts.
func TestClaim_LowIDsInOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		before, counts bool
	}{{name: "first claim"}, {name: "counted", counts: true}, {name: "altered", before: true, counts: true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := harness("").Open(t, buffertest.Options{Ordered: true})
			count := func() {
				if c.counts {
					_, err := f.Buffer.CountBacklog(t.Context(), 100)
					check(t, err)
				}
			}
			if c.before {
				f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
				expectNextClaim(t, f.Buffer, 10, 1)
				f.Exec(t, "DELETE FROM outbox_batches")
				f.Exec(t, "DELETE FROM outbox_events")
			}
			insertLow(t, f, "a", "b", "b", "a", "c", "d")
			count()
			first := expectNextClaim(t, f.Buffer, 1, -3)
			count()
			second := expectNextClaim(t, f.Buffer, 1, -2)
			for range 4 { // the floor moves in steps
				count()
			}
			expectNextClaim(t, f.Buffer, 10, 1, 2)
			check(t, f.Buffer.Settle(t.Context(), second, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			expectNextClaim(t, f.Buffer, 10, -1)
			count()
			check(t, f.Buffer.Settle(t.Context(), first, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			count()
			expectNextClaim(t, f.Buffer, 10, 0)
		})
	}
}
