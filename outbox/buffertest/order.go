package buffertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var orderCases = []testCase{
	{name: "order/live batch holds its keys", run: orderClaim},
	{name: "order/gives no key to two claimers", run: orderTogether},
	{name: "order/late commit precedes later commits", rowLocksOnly: true, run: orderLate},
	{name: "order/skips a locked event with its key", rowLocksOnly: true, run: orderLocked},
	{name: "order/parts that share a key are taken in turn", run: orderParts},
	{name: "order/stuck key hides no other", run: orderStuck},
	{name: "order/replayed events hold their keys", run: orderReplayed},
	{name: "order/adopted orphans hold their keys", run: orderAdopted},
	{name: "order/mode changes when the ledger is empty", run: orderMode},
}

// keyed are events with these keys; "" stands for NULL.
func keyed(keys ...string) []outbox.Event {
	events := orders(len(keys))
	for i, key := range keys {
		if key != "" {
			events[i].Key = &key
		}
	}
	return events
}

func orderClaim(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	other := f.Second(t)
	ids := f.Insert(t, keyed("a", "b", "a", "", "b", "c")...)
	first := claim(t, f.Buffer, 2)
	equal(t, "the first two", first.IDs(), ids[:2])
	second := claim(t, other, 10)
	equal(t, "those of other keys and of none", second.IDs(), []int64{ids[3], ids[5]})
	claimNone(t, f.Buffer)
	claimNone(t, other)
	settle(t, other, second, delivered())
	claimNone(t, f.Buffer)
	settle(t, f.Buffer, first, delivered())
	third := claim(t, other, 10)
	equal(t, "those that waited", third.IDs(), []int64{ids[2], ids[4]})
	settle(t, other, third, delivered())
	empty(t, f)
}

// orderTogether empties one table with eight goroutines on two buffers.
func orderTogether(t *testing.T, h Harness) {
	const events, keys, claimers = 3000, 25, 8
	f := h.Open(t, Options{Ordered: true})
	names := make([]string, events)
	for i := range names {
		if key := i * 7 % (keys + 1); key > 0 {
			names[i] = fmt.Sprint("key-", key)
		}
	}
	f.Insert(t, keyed(names...)...)
	buffers := []buffer.Buffer{f.Buffer, f.Second(t)}
	var (
		mu      sync.Mutex
		held    = map[string]bool{}
		last    = map[string]int64{}
		claimed int
	)
	take := func(b *buffer.Lease) error {
		mu.Lock()
		defer mu.Unlock()
		claimed += len(b.Events)
		own := map[string]bool{}
		for i := range b.Events {
			e := &b.Events[i]
			switch {
			case e.Key == nil:
				continue
			case held[*e.Key]:
				return fmt.Errorf("event %d was claimed while an earlier one of %s was in a live batch", e.ID, *e.Key)
			case e.ID <= last[*e.Key]:
				return fmt.Errorf("event %d of %s came after event %d", e.ID, *e.Key, last[*e.Key])
			}
			own[*e.Key], last[*e.Key] = true, e.ID
		}
		for key := range own {
			held[key] = true
		}
		return nil
	}
	giveBack := func(b *buffer.Lease) {
		mu.Lock()
		defer mu.Unlock()
		for i := range b.Events {
			if key := b.Events[i].Key; key != nil {
				delete(held, *key)
			}
		}
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return claimed == events
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for i := range claimers {
		g.Go(func() error {
			for !all() {
				b, err := buffers[i%2].Claim(ctx, 11, lease)
				if err != nil {
					return err
				}
				if b == nil {
					continue // others hold the keys
				}
				if err := take(b); err != nil {
					return err
				}
				giveBack(b)
				if err := buffers[i%2].Settle(ctx, b, []buffer.Outcome{delivered()}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ok(t, "claiming together", g.Wait())
	empty(t, f)
}

func orderLate(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	late := f.Begin(t)
	defer late.Rollback(t)
	lateIDs := late.Insert(t, keyed("a", "c")...)
	between := f.Insert(t, keyed("b")...)
	b := claim(t, f.Buffer, 10)
	equal(t, "what was committed", b.IDs(), between)
	late.Commit(t)
	after := f.Insert(t, keyed("a")...)
	equal(t, "what was committed since", claim(t, f.Buffer, 10).IDs(), append(lateIDs, after...))
}

func orderLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	ids := f.Insert(t, keyed("a", "b", "a", "")...)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id IN (%d, %d)", f.Table, ids[0], ids[3]))
	equal(t, "those that are free", claim(t, f.Buffer, 10).IDs(), []int64{ids[1]})
	claimNone(t, f.Buffer)
	tx.Rollback(t)
	equal(t, "those that were locked, and behind them", claim(t, f.Buffer, 10).IDs(), []int64{ids[0], ids[2], ids[3]})
}

func orderParts(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	other := f.Second(t)
	ids := f.Insert(t, keyed("a", "b", "a", "b", "c", "a", "d")...)
	part := func(ids []int64, after time.Duration) buffer.Outcome {
		return buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID(), After: after}
	}
	whole := claim(t, f.Buffer, 10)
	front, back, alone := part(ids[:3], 0), part(ids[3:6], 0), part(ids[6:], 0)
	settle(t, f.Buffer, whole, front, back, alone)
	f.ExpireLease(t, back.GroupID, time.Hour) // due before the others
	f.ExpireLease(t, alone.GroupID, time.Minute)

	equal(t, "a part that shares no key", takeOver(t, f.Buffer).GroupID, alone.GroupID)
	first := takeOver(t, f.Buffer)
	equal(t, "the part in front", first.GroupID, front.GroupID)
	takeOverNone(t, other)

	// Its b is delivered. Its a waits, and with it the part behind, which has an a too.
	again := part([]int64{ids[0], ids[2]}, time.Hour)
	settle(t, f.Buffer, first, delivered(ids[1]), again)
	takeOverNone(t, other)
	backlog, err := f.Buffer.CountBacklog(t.Context(), 0)
	ok(t, "CountBacklog", err)
	equal(t, "batches that are due", backlog.Due, 0)
	more := f.Insert(t, keyed("a", "b", "e")...)
	equal(t, "claimed by another relay", claim(t, other, 10).IDs(), more[2:])

	f.ExpireLease(t, again.GroupID, time.Second)
	second := takeOver(t, other)
	equal(t, "the part that waited", second.GroupID, again.GroupID)
	takeOverNone(t, f.Buffer)
	settle(t, other, second, delivered())
	last := takeOver(t, f.Buffer)
	equal(t, "the part behind", last.GroupID, back.GroupID)
	claimNone(t, other)

	// Its delivered events are deleted, although it waits for another part.
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), last, last.IDs()))
	f.ExpireLease(t, last.GroupID, time.Second)
	settle(t, other, takeOver(t, other), delivered())
	equal(t, "claimed at last", claim(t, f.Buffer, 10).IDs(), more[:2])
}

func orderStuck(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	names := make([]string, 20_000)
	for i := range names {
		names[i] = "stuck"
	}
	ids := f.Insert(t, keyed(append(names, "a", "b", "a", "")...)...)
	b := claim(t, f.Buffer, 100)
	settle(t, f.Buffer, b, retry(b, lease))
	eventually(t, "claim of the others", func(context.Context) bool {
		b, err := f.Buffer.Claim(t.Context(), 100, lease) // slow under the race detector
		ok(t, "Claim", err)
		if b != nil {
			equal(t, "the others", b.IDs(), ids[len(names):])
		}
		return b != nil
	})
	more := f.Insert(t, keyed("c")...)
	equal(t, "one that comes later", claim(t, f.Buffer, 100).IDs(), more)
}

func orderReplayed(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	f.Insert(t, keyed("a")...)
	settle(t, f.Buffer, claim(t, f.Buffer, 10), buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	behind := f.Insert(t, keyed("a", "b")...)
	b := claim(t, f.Buffer, 10)
	equal(t, "claimed while the replayed event is due", b.IDs(), behind[1:])
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	equal(t, "claimed after the replayed event", claim(t, f.Buffer, 10).IDs(), behind[:1])
}

func orderAdopted(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	ids := f.Insert(t, keyed("a", "b", "a", "c")...)
	ok(t, "Check", f.Buffer.Check(t.Context())) // every relay starts with it
	f.Exec(t, fmt.Sprintf("UPDATE %s SET group_id = '%s' WHERE id <= %d", f.Table, buffer.NewGroupID(), ids[1]))
	repair(t, f.Buffer, buffer.Repair{Adopted: buffer.Count{Batches: 1, Events: 2}})
	equal(t, "claimed while the adopted batch is due", claim(t, f.Buffer, 10).IDs(), ids[3:])
	b := takeOver(t, f.Buffer)
	equal(t, "what was found", b.IDs(), ids[:2])
	settle(t, f.Buffer, b, delivered())
	equal(t, "claimed after the replayed event", claim(t, f.Buffer, 10).IDs(), ids[2:3])
}

func orderMode(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true})
	plain := f.Plain(t)
	ids := f.Insert(t, keyed("a", "a", "a")...)
	refused := func(b buffer.Buffer) {
		t.Helper()
		untouched(t, f, "a claim in the other mode", func() {
			_, err := b.Claim(t.Context(), 10, lease)
			fails(t, "Claim", err, buffer.ErrNotReady)
		})
	}
	first := claim(t, plain, 1)
	refused(f.Buffer)
	ok(t, "Check", f.Buffer.Check(t.Context())) // live batches must still be sent
	first = lose(t, f, first, f.Buffer)
	refused(f.Buffer)
	settle(t, f.Buffer, first, delivered())

	var second *buffer.Lease
	eventually(t, "claim in the new mode", func(ctx context.Context) bool {
		var err error
		if second, err = f.Buffer.Claim(ctx, 1, lease); err != nil && !errors.Is(err, buffer.ErrNotReady) {
			t.Fatalf("Claim: %v", err)
		}
		return second != nil
	})
	equal(t, "claimed in order", second.IDs(), ids[1:2])
	claimNone(t, f.Second(t))
	refused(plain)
	settle(t, f.Buffer, second, delivered())
	eventually(t, "claim in the old mode", func(ctx context.Context) bool {
		b, err := plain.Claim(ctx, 10, lease)
		if err != nil && !errors.Is(err, buffer.ErrNotReady) {
			t.Fatalf("Claim: %v", err)
		}
		return b != nil && slices.Equal(b.IDs(), ids[2:])
	})
}
