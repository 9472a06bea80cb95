package sqlite_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestOptimisticTogether: two processes choose in the same window. They never share an
// event, and leave none behind their cursors: no sweep is due before the end.
func TestOptimisticTogether(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", outbox.ClaimOptimistic).Open(t, buffertest.Options{Claim: outbox.ClaimOptimistic, Random: true})
	const events = 1003
	f.Insert(t, ones(events)...)
	batches := make([][]*outbox.Batch, 2)
	var g errgroup.Group
	for i, b := range []buffertest.Buffer{f.Buffer, f.Second(t)} {
		g.Go(func() error {
			for vain := 0; vain < 3; {
				batch, err := b.Claim(t.Context(), 20, time.Hour)
				if err != nil {
					return err
				}
				if batch == nil {
					vain++
					continue
				}
				batches[i] = append(batches[i], batch)
			}
			return nil
		})
	}
	check(t, g.Wait())
	seen := map[int64]uuid.UUID{}
	for _, of := range batches {
		for _, b := range of {
			for _, id := range b.IDs() {
				if other, twice := seen[id]; twice {
					t.Fatalf("event %d is in %s and in %s", id, other, b.GroupID)
				}
				seen[id] = b.GroupID
			}
		}
	}
	for _, r := range f.Rows(t) {
		if r.GroupID == uuid.Nil || seen[r.ID] != r.GroupID {
			t.Fatalf("event %d is stamped with %s, and was claimed by %s", r.ID, r.GroupID, seen[r.ID])
		}
	}
	if len(seen) != events {
		t.Fatalf("%d of %d events were claimed", len(seen), events)
	}
}

// TestOptimisticLoses: what others claimed since the window was read is not counted
// in, and where nothing is left of the choice another one is made.
func TestOptimisticLoses(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", outbox.ClaimOptimistic).Open(t, buffertest.Options{Claim: outbox.ClaimOptimistic})
	f.Insert(t, ones(6)...)
	slow, quick := f.Buffer.(*sqlite.Buffer), f.Second(t)
	sqlite.Choose(slow, func(int) int {
		expectIDs(t, "the other's batch", claim(t, quick, 2).IDs(), []int64{1, 2})
		sqlite.ChooseFirst(slow)
		return 0
	})
	expectIDs(t, "the second choice", claim(t, slow, 2).IDs(), []int64{3, 4})
	f.Insert(t, ones(2)...)
	sqlite.Choose(slow, func(int) int {
		expectIDs(t, "the other's batch", claim(t, quick, 1).IDs(), []int64{5})
		return 0
	})
	b := claim(t, slow, 3)
	expectIDs(t, "what is left of the choice", b.IDs(), []int64{6, 7})
	if b.FirstID != 6 || b.LastID != 7 {
		t.Fatalf("the batch is from %d to %d, want from 6 to 7", b.FirstID, b.LastID)
	}
	for _, r := range f.Ledger(t) {
		if r.GroupID == b.GroupID && (r.Events != 2 || r.FirstID != 6 || r.LastID != 7) {
			t.Fatalf("the ledger says %d events from %d to %d, want 2 from 6 to 7", r.Events, r.FirstID, r.LastID)
		}
	}
	sqlite.ChooseFirst(slow)
	expectIDs(t, "the rest", claim(t, slow, 3).IDs(), []int64{8})
}
