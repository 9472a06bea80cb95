package sqlite_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestOptimisticLoses: what others claimed since the window was read is not counted
// in, and where nothing is left of the choice another one is made.
func TestOptimisticLoses(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimOptimistic).Open(t, buffertest.Options{Claim: buffer.ClaimOptimistic})
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
