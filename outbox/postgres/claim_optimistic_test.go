package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// openOptimistic opens a buffer whose claims choose at random.
func openOptimistic(t *testing.T) *buffertest.Fixture {
	t.Helper()
	opt := buffertest.Options{Claim: buffer.ClaimOptimistic, Random: true}
	return newMigratedDB(t, opt).fixture(t, "outbox_events", "orders")
}

func ones(n int) []outbox.Event {
	return slices.Repeat([]outbox.Event{{Topic: "t", Payload: []byte("1")}}, n)
}

// TestOptimisticLoses: what others claimed since the window was read is not counted in,
// and where nothing is left of the choice another one is made.
func TestOptimisticLoses(t *testing.T) {
	t.Parallel()
	f := openOptimistic(t)
	f.Insert(t, ones(6)...)
	slow, quick := f.Buffer.(*postgres.Buffer), f.Second(t).(*postgres.Buffer)
	postgres.ChooseFirst(quick)
	claim := func(b *postgres.Buffer, limit int, want ...int64) *buffer.Lease {
		t.Helper()
		batch, err := b.Claim(t.Context(), limit, lease)
		check(t, err)
		if batch == nil || !slices.Equal(batch.IDs(), want) {
			t.Fatalf("claimed %+v, want %v", batch, want)
		}
		return batch
	}
	postgres.Choose(slow, func(int) int {
		claim(quick, 2, 1, 2)
		postgres.ChooseFirst(slow)
		return 0
	})
	claim(slow, 2, 3, 4)
	f.Insert(t, ones(2)...)
	postgres.Choose(slow, func(int) int {
		claim(quick, 1, 5)
		return 0
	})
	b := claim(slow, 3, 6, 7)
	for _, r := range f.Ledger(t) {
		if r.GroupID == b.GroupID && (r.Events != 2 || r.FirstID != 6 || r.LastID != 7) {
			t.Fatalf("the ledger says %d events from %d to %d, want 2 from 6 to 7", r.Events, r.FirstID, r.LastID)
		}
	}
	postgres.ChooseFirst(slow)
	claim(slow, 3, 8)
}

// TestOptimisticLeavesNoneBehind: what a claim passed over is beyond the cursor still,
// so that the next look and the next claim find it without a sweep.
func TestOptimisticLeavesNoneBehind(t *testing.T) {
	t.Parallel()
	f := openOptimistic(t)
	b := f.Buffer.(*postgres.Buffer)
	ids := f.Insert(t, ones(50)...)
	postgres.Choose(b, func(n int) int { return n - 1 })
	var claimed []int64
	for len(claimed) < len(ids) {
		batch, err := b.Claim(t.Context(), 4, time.Minute)
		check(t, err)
		if batch == nil {
			t.Fatalf("no claim found what is left besides %v", claimed)
		}
		claimed = append(claimed, batch.IDs()...)
		look, err := b.CountBacklog(t.Context(), 100) // only the first one sweeps
		check(t, err)
		if want := len(ids) - len(claimed); look.Unclaimed != want {
			t.Fatalf("backlog %+v, want %d events", look, want)
		}
	}
	if slices.Sort(claimed); !slices.Equal(claimed, ids) {
		t.Fatalf("claimed %v, want each of %v once", claimed, ids)
	}
}
