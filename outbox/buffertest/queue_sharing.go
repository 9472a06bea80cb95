package buffertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var queueSharingCases = []testCase{
	{name: "queue/is shared by processes", run: queueTogether},
	{name: "queue/takes open unnotified dead letters only", run: queueOpenOnly},
	{name: "queue/notifies of dead letters closed meanwhile", run: queueClosed},
	{name: "queue/separates two dead letters of one event", run: queueSameEvent},
	{name: "queue/releases orphaned dead letters", run: queueReleases},
	{name: "queue/separates its batches from the buffer's", run: queueSeparate},
	{name: "queue/reports its status", run: queueStatus},
	{name: "queue/counts no further than the limit", run: queueCounts},
}

func queueTogether(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(60)...).IDs()
	hooks := []buffer.Queue{f.Queue(t), f.Queue(t)}
	var (
		mu  sync.Mutex
		got []int64
	)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		g.Go(func() error {
			for {
				b, err := hooks[i%2].Claim(ctx, 7, lease)
				if err != nil {
					return fmt.Errorf("claiming: %w", err)
				}
				if b == nil {
					return nil
				}
				mu.Lock()
				got = append(got, b.IDs()...)
				mu.Unlock()
				if err := hooks[i%2].Settle(ctx, b, []buffer.Outcome{delivered()}); err != nil {
					return fmt.Errorf("settling: %w", err)
				}
			}
		})
	}
	ok(t, "at the same time", g.Wait())
	eventually(t, "all are claimed", func(context.Context) bool { // a claim passes over rows that others have locked
		b, err := hooks[0].Claim(t.Context(), 100, lease)
		ok(t, "Claim", err)
		if b != nil {
			got = append(got, b.IDs()...)
			settle(t, hooks[0], b, delivered())
		}
		return b == nil
	})
	slices.Sort(got)
	equal(t, "dead letters claimed", got, ids)
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
	empty(t, f)
}

func queueOpenOnly(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	ids := bury(t, f, "refused", orders(4)...).IDs()
	others := bury(t, n, "refused", orders(2)...).IDs()
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET notified_at = died_at WHERE event_id = %d AND pipeline = '%s'", ids[0], f.Pipeline))
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2]}, 1, 1)
	queue := f.Queue(t)
	countBacklog(t, queue, 100, buffer.Backlog{Unclaimed: 2})
	b := claim(t, queue, 10)
	equal(t, "dead letters claimed", b.IDs(), ids[2:])
	settle(t, queue, b, delivered())
	claimNone(t, queue)
	for _, d := range f.Dead(t) {
		if d.Pipeline == n.Pipeline && (!d.NotifiedAt.IsZero() || d.HookGroupID != uuid.Nil) {
			t.Fatalf("the hook had its hands on another pipeline's dead letter: %+v", d)
		}
	}
	equal(t, "dead letters of the neighbour", claim(t, n.Queue(t), 10).IDs(), others)
}

func queueClosed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(3)...).IDs()
	queue := f.Queue(t)
	b := claim(t, queue, 10)
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[:1]}, 1, 1)
	replay(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2]}, 1, 1)
	again := takeOver(t, f.Buffer)
	equal(t, "event replayed", again.IDs(), ids[1:2])
	b = lose(t, f, b, queue)
	equal(t, "dead letters", b.IDs(), ids)
	settle(t, queue, b, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
	equal(t, "dead letters closed", deadIDs(t, f, isClosed), ids[:2])
	equal(t, "rows", f.Rows(t), []Row{{ids[1], again.GroupID}})

	// An event that is buried again is notified again.
	settle(t, f.Buffer, again, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused again"})
	b = claim(t, queue, 10)
	equal(t, "dead letters", b.IDs(), ids[1:2])
	equal(t, "error", b.DeadLetters[0].Error, "refused again")
	settle(t, queue, b, delivered())
	empty(t, f)
}

func queueSameEvent(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	first, second, third := bury(t, f, "refused", orders(1)...), bury(t, f, "refused", orders(1)...), bury(t, f, "refused", orders(1)...)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET event_id = %d WHERE event_id = %d", first.FirstID, second.FirstID))
	queue := f.Queue(t)
	a, b := claim(t, queue, 10), claim(t, queue, 10)
	claimNone(t, queue)
	equal(t, "dead letters of the first batch", a.IDs(), []int64{first.FirstID, third.FirstID})
	equal(t, "dead letters of the second batch", b.IDs(), []int64{first.FirstID})
	if a.DeadLetters[0].GroupID == b.DeadLetters[0].GroupID {
		t.Fatalf("both batches have the same dead letter")
	}
	a = lose(t, f, a, queue)
	equal(t, "dead letters taken over", a.IDs(), []int64{first.FirstID, third.FirstID})
	settle(t, queue, a, delivered(first.FirstID), buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{third.FirstID}, GroupID: buffer.NewGroupID()})
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64{first.FirstID})
	settle(t, queue, b, delivered())
	settle(t, queue, takeOver(t, queue), delivered())
	equal(t, "notified dead letters", len(deadIDs(t, f, isNotified)), 3)
	empty(t, f)
}

// queueReleases restores the dead letters without the ledger.
func queueReleases(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	bury(t, n, "refused", orders(1)...)
	ids := bury(t, f, "refused", orders(5)...).IDs()
	queue := f.Queue(t)
	notified := claim(t, queue, 1)
	settle(t, queue, notified, delivered())
	lost, live, neighbour := claim(t, queue, 2), claim(t, queue, 2), claim(t, n.Queue(t), 1)
	f.Exec(t, fmt.Sprintf("DELETE FROM outbox_batches WHERE group_id = '%s'", lost.GroupID))
	again := f.Queue(t)
	countBacklog(t, again, 100, buffer.Backlog{Unclaimed: 2})
	b := claim(t, again, 10)
	equal(t, "dead letters claimed", b.IDs(), ids[1:3])
	if b.GroupID == lost.GroupID {
		t.Fatalf("the dead letters were claimed under the group_id that they had before")
	}
	fails(t, "Settle of what was lost", queue.Settle(t.Context(), lost, []buffer.Outcome{delivered()}), buffer.ErrLeaseLost)
	for _, d := range f.Dead(t) {
		if d.Pipeline == n.Pipeline {
			equal(t, "hook_group_id of the neighbour's dead letter", d.HookGroupID, neighbour.GroupID)
		}
	}
	settle(t, again, b, delivered())
	settle(t, queue, live, delivered())
	equal(t, "notified dead letters", len(deadIDs(t, f, isNotified)), 5)
}

func queueSeparate(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "refused", orders(3)...)
	queue := f.Queue(t)
	due, later, marked := claim(t, queue, 1), claim(t, queue, 1), claim(t, queue, 1)
	settle(t, queue, due, retry(due, 0))
	settle(t, queue, later, retry(later, lease))
	ok(t, "MarkDelivered", queue.MarkDelivered(t.Context(), marked, marked.IDs()))
	f.ExpireLease(t, marked.GroupID, -lease)

	countBacklog(t, f.Buffer, 100, buffer.Backlog{})
	takeOverNone(t, f.Buffer)
	s, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	equal(t, "reasons of the hook to wait", len(s.HookWaits), 1)
	s.OldestTransaction, s.HookWaits = 0, nil
	equal(t, "status of the buffer", s, buffer.Status{Dead: 3, Unnotified: 3})
	audit(t, f.Buffer, buffer.Audit{Dead: buffer.DeadCount{Open: 3, Unnotified: 3}})
	untouched(t, f, "Repair of the buffer", func() {
		r, err := f.Buffer.Repair(t.Context())
		ok(t, "Repair", err)
		equal(t, "repaired", r, buffer.Repair{})
	})

	f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 1)
	settle(t, f.Buffer, b, retry(b, 0))
	claim(t, f.Buffer, 1)
	settle(t, queue, takeOver(t, queue), delivered())
	takeOverNone(t, queue)
	countBacklog(t, queue, 100, buffer.Backlog{Waiting: 1, Delivered: 1})
	equal(t, "batch taken over", takeOver(t, f.Buffer).GroupID, b.GroupID)
	takeOverNone(t, f.Buffer)
	// Neither settles the other's batch.
	fails(t, "Settle of the buffer's batch by its hook", queue.Settle(t.Context(), b, []buffer.Outcome{delivered()}), buffer.ErrLeaseLost)
}

func queueStatus(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	queue := f.Queue(t)
	status := func() buffer.Status {
		t.Helper()
		s, err := queue.Status(t.Context())
		ok(t, "Status", err)
		about(t, "oldest pending", s.OldestPending, 0)
		s.OldestTransaction, s.OldestPending, s.Dead = 0, 0, 0
		return s
	}
	equal(t, "status without dead letters", status(), buffer.Status{})
	bury(t, f, "refused", orders(7)...)
	equal(t, "status", status(), buffer.Status{Pending: 7})
	waiting, marked := claim(t, queue, 1), claim(t, queue, 2)
	claim(t, queue, 1)
	settle(t, queue, waiting, retry(waiting, lease))
	ok(t, "MarkDelivered", queue.MarkDelivered(t.Context(), marked, marked.IDs()[:1]))
	equal(t, "status", status(), buffer.Status{Pending: 6, Leased: 1, Waiting: 1, Delivered: 1})
	f.Insert(t, orders(3)...)
	claim(t, f.Buffer, 1)
	equal(t, "status", status(), buffer.Status{Pending: 6, Leased: 1, Waiting: 1, Delivered: 1})
}

func queueCounts(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "refused", orders(12)...)
	queue := f.Queue(t)
	for limit, want := range map[int]int{100: 12, 12: 12, 5: 5, 0: 0} {
		countBacklog(t, queue, limit, buffer.Backlog{Unclaimed: want})
	}
	b := claim(t, queue, 4)
	f.ExpireLease(t, b.GroupID, time.Second)
	countBacklog(t, queue, 100, buffer.Backlog{Unclaimed: 8, Due: 1})
}
