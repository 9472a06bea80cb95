package watermark

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// In any order of claims, the floor passes only claimed ids and moves over all batches without a gap,
// and no id that a sweep leaves out is unclaimed.
func TestAddClaimed_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var batches []*buffer.Lease
		for id := int64(1); id < 60; {
			b := &buffer.Lease{}
			for range rapid.IntRange(1, 6).Draw(t, "ids") {
				if rapid.IntRange(0, 9).Draw(t, "fate") > 0 { // otherwise it commits later
					b.Events = append(b.Events, outbox.Event{ID: id})
				}
				id++
			}
			batches = append(batches, b)
		}
		var (
			w       = New(false)
			claimed = map[int64]bool{}
			whole   = map[int64]bool{} // in a batch without a gap
		)
		for _, b := range rapid.Permutation(batches).Draw(t, "batches") {
			w.addClaimed(b)
			floor := w.floor
			n := int64(len(b.Events))
			for _, e := range b.Events {
				claimed[e.ID] = true
				whole[e.ID] = b.Events[n-1].ID-b.Events[0].ID == n-1
			}
			for cursor := floor; cursor <= 66; cursor++ {
				from := w.claimed.Before(cursor)
				for id := from + 1; id <= cursor; id++ {
					if !claimed[id] {
						t.Fatalf("%d is unclaimed; with the cursor at %d a sweep ends at %d", id, cursor, from)
					}
				}
			}
			for id := int64(1); id <= floor; id++ {
				if !claimed[id] {
					t.Fatalf("floor is %d, but %d is unclaimed", floor, id)
				}
			}
			if whole[floor+1] {
				t.Fatalf("floor is %d, although a batch without a gap follows", floor)
			}
		}
	})
}

// A range that is forgotten costs a sweep.
func TestAddClaimed_Bounded(t *testing.T) {
	t.Parallel()
	w := New(false)
	for n := range int64(2 * maxClaimed) {
		w.addClaimed(&buffer.Lease{Batch: buffer.Batch{Events: []outbox.Event{{ID: 10 + 2*n}}}})
	}
	if len(w.claimed) != maxClaimed || w.claimed[len(w.claimed)-1].Last != 10+2*(2*maxClaimed-1) {
		t.Errorf("%d ranges remembered, up to %d", len(w.claimed), w.claimed[len(w.claimed)-1].Last)
	}
}
