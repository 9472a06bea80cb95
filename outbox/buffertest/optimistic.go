package buffertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

var optimisticCases = []testCase{
	{name: "optimistic/two processes choose in one window", optimistic: true, run: optimisticTogether},
	{name: "optimistic/a window at the end of the backlog", optimistic: true, run: optimisticEnd},
	{name: "optimistic/what is locked does not hold up the others", optimistic: true, rowLocks: true, run: optimisticLocked},
	{name: "optimistic/a choice that rolls back in another process", optimistic: true, rowLocks: true, run: optimisticRollback},
}

// optimisticTogether: they never share an event, and leave none behind: what a claim
// passed over is found by the next one, no sweep is due meanwhile.
func optimisticTogether(t *testing.T, h Harness) {
	const limit = 20
	f := h.Open(t, Options{Random: true})
	var ids []int64
	for range 10 {
		ids = append(ids, f.Insert(t, orders(101)...)...)
	}
	processes := []Buffer{f.Buffer, f.Second(t)}
	var (
		mu   sync.Mutex
		seen = map[int64]uuid.UUID{}
		full int
	)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		g.Go(func() error {
			for vain := 0; vain < 3; {
				b, err := processes[i%2].Claim(ctx, limit, lease)
				if err != nil {
					return err
				}
				if b == nil {
					vain++
					continue
				}
				mu.Lock()
				for _, id := range b.IDs() {
					if other, twice := seen[id]; twice {
						err = fmt.Errorf("event %d is in %s and in %s", id, other, b.GroupID)
					}
					seen[id] = b.GroupID
				}
				if len(b.Events) == limit {
					full++
				}
				mu.Unlock()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	ok(t, "claiming together", g.Wait())
	for _, r := range f.Rows(t) {
		equal(t, fmt.Sprintf("batch of event %d", r.ID), r.GroupID, seen[r.ID])
	}
	equal(t, "events claimed", len(seen), len(ids))
	if full < len(ids)/limit/2 {
		t.Fatalf("%d of %d batches were full: what a choice leaves behind is to be batches again", full, len(f.Ledger(t)))
	}
}

// optimisticEnd: at the end of the backlog the window is less than a batch, or not a
// multiple of one, and all of it is claimed.
func optimisticEnd(t *testing.T, h Harness) {
	f := h.Open(t, Options{Random: true})
	for events := 1; events <= 12; events++ {
		ids := f.Insert(t, orders(events)...)
		var got []int64
		for len(got) < len(ids) {
			b := claim(t, f.Buffer, 5)
			equal(t, fmt.Sprintf("events of a batch, of %d that are left", len(ids)-len(got)), len(b.Events), min(5, len(ids)-len(got)))
			got = append(got, b.IDs()...)
			settle(t, f.Buffer, b, delivered())
		}
		slices.Sort(got)
		equal(t, "events claimed", got, ids)
		claimNone(t, f.Buffer)
	}
	empty(t, f)
}

// optimisticLocked: nothing is passed over because it is locked, so claims choose fewer
// until their choice is free.
func optimisticLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{Random: true})
	ids := f.Insert(t, orders(8)...)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id IN (%d, %d)", f.Table, ids[0], ids[5]))
	var got []int64
	claims := func(until int) func(ctx context.Context) bool {
		return func(ctx context.Context) bool {
			b, err := f.Buffer.Claim(ctx, 10, lease)
			ok(t, "Claim", err)
			if b != nil {
				got = append(got, b.IDs()...)
			}
			return len(got) >= until
		}
	}
	eventually(t, "claims of what is not locked", claims(6))
	slices.Sort(got)
	equal(t, "events claimed around the locks", got, slices.Concat(ids[1:5], ids[6:]))
	claimNone(t, f.Buffer)
	tx.Commit(t)
	got = nil
	eventually(t, "claims of what was locked", claims(2))
	slices.Sort(got)
	equal(t, "events claimed after the locks", got, []int64{ids[0], ids[5]})
}

// optimisticRollback: a claim of another process stamped some of what is chosen, and
// is rolled back.
func optimisticRollback(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(6)...)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET group_id = '%s' WHERE id IN (%d, %d)", f.Table, uuid.New(), ids[0], ids[1]))
	got := make(chan []int64, 1)
	go func() {
		defer close(got)
		for {
			b, err := f.Buffer.Claim(t.Context(), 6, lease)
			if err != nil {
				t.Errorf("Claim: %v", err)
				return
			}
			if b != nil {
				got <- b.IDs()
				return
			}
		}
	}()
	tx.Rollback(t)
	claimed := <-got
	for len(claimed) < len(ids) {
		claimed = append(claimed, claim(t, f.Buffer, 6).IDs()...)
	}
	slices.Sort(claimed)
	equal(t, "events claimed", claimed, ids)
}
