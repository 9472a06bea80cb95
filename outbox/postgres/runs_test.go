package postgres

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRunsProperties: in whatever order batches are claimed, the floor passes only ids
// that were claimed, and goes as far as batches without a gap take it; and nothing
// between the cursor and what is left to look at is free.
func TestRunsProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var batches []*buffer.Lease
		for id := int64(1); id < 60; {
			b := &buffer.Lease{}
			for range rapid.IntRange(1, 6).Draw(t, "ids") {
				if rapid.IntRange(0, 9).Draw(t, "fate") > 0 { // else it is not there yet
					b.Events = append(b.Events, outbox.Event{ID: id})
				}
				id++
			}
			batches = append(batches, b)
		}
		var (
			r       runs
			floor   int64
			claimed = map[int64]bool{}
			whole   = map[int64]bool{} // in a batch without a gap
		)
		for _, b := range rapid.Permutation(batches).Draw(t, "batches") {
			r.add(b)
			n := int64(len(b.Events))
			for _, e := range b.Events {
				claimed[e.ID] = true
				whole[e.ID] = b.Events[n-1].ID-b.Events[0].ID == n-1
			}
			for cursor := floor; cursor <= 66; cursor++ {
				from := r.before(cursor)
				for id := from + 1; id <= cursor; id++ {
					if !claimed[id] {
						t.Fatalf("%d is free, and with the cursor at %d nobody looks beyond %d", id, cursor, from)
					}
				}
			}
			floor = r.follow(floor)
			for id := int64(1); id <= floor; id++ {
				if !claimed[id] {
					t.Fatalf("the floor is %d, and %d is free", floor, id)
				}
			}
			if whole[floor+1] {
				t.Fatalf("the floor stays at %d before a batch without a gap", floor)
			}
		}
	})
}

// What is forgotten costs a sweep, and is no mistake.
func TestRunsAreNotKeptWithoutEnd(t *testing.T) {
	t.Parallel()
	var r runs
	for n := range int64(2 * mostRuns) {
		r.add(&buffer.Lease{Batch: buffer.Batch{Events: []outbox.Event{{ID: 10 + 2*n}}}})
	}
	if len(r) != mostRuns || r[len(r)-1].last != 10+2*(2*mostRuns-1) {
		t.Errorf("%d are kept, up to %d", len(r), r[len(r)-1].last)
	}
}
