package buffertest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var modelCases = []testCase{
	{name: "model/loses nothing and sends nothing twice", run: model},
}

// model runs random sequences of everything that applications, owners, former
// owners and crashes do, and compares the tables with what they must hold after
// every step.
func model(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true, Random: true})
	buffers, queues := []Buffer{f.Buffer, f.Second(t)}, []Queue{f.Queue(t), f.Queue(t)}
	rapid.Check(t, func(t *rapid.T) {
		for _, table := range []string{f.Table, "outbox_batches", "outbox_dead_letters", "outbox_archive"} {
			f.Exec(t, "DELETE FROM "+table)
		}
		w := &world{
			f: f, buffers: buffers, queues: queues, slow: map[int64]bool{},
			committed: map[int64]bool{}, rows: map[int64]uuid.UUID{}, fate: map[int64]string{},
			members: map[uuid.UUID][]int64{}, live: map[uuid.UUID]*liveBatch{}, dead: map[buffer.DeadKey]*deadLetter{},
		}
		actions := map[string]func(*rapid.T){
			"":          w.compare,
			"insert":    w.insert,
			"roll back": w.rollBack,
			"claim":     w.claim,
			"expired":   w.expireLease,
			"take over": w.takeOver,
			"renew":     w.renew,
			"settle":    w.settle,
			"mark":      w.markDelivered,
			"crash":     w.crash,
			"retry now": w.retryNow,
			"queue":     w.claimDead,
			"replay":    w.replay,
			"discard":   w.discard,
			"repair":    w.repair,
		}
		// Late commits are waited for at the end, so not every run has them.
		if h.RowLocks && rapid.IntRange(0, 7).Draw(t, "late commits") == 0 {
			defer w.endTransactions(t, false)
			actions["begin"] = w.begin
			actions["commit"] = w.commit
		}
		t.Repeat(actions)
		w.drain(t)
	})
}

// world is what the tables must hold, and who holds which batch.
type world struct {
	f       *Fixture
	buffers []Buffer
	queues  []Queue

	committed  map[int64]bool                 // every event there ever was
	rows       map[int64]uuid.UUID            // the buffer table
	live       map[uuid.UUID]*liveBatch       // the ledger
	dead       map[buffer.DeadKey]*deadLetter // the dead letters
	fate       map[int64]string               // delivered, dead or discarded, of events that are gone
	members    map[uuid.UUID][]int64          // of every group_id there ever was
	maxClaimed int64                          // unclaimed ids below it were committed late
	slow       map[int64]bool                 // drawn in transactions that stayed open for a while
	owners     []*owner                       // of today and of the past
	open       []*openTx
}

// liveBatch is a batch of events or, of a hook, of their dead letters.
type liveBatch struct {
	queue                         bool
	state                         string
	due                           due
	leaseNo                       int64
	unfinished, attempts, outages int
	origins                       []uuid.UUID
	delivered                     []int64
	address                       *string
}

type deadLetter struct {
	notified, closed bool
	queueGroup       uuid.UUID
}

// due says whether a take over may, must or must not take the batch.
type due int

const (
	later due = iota
	soon      // marked a moment ago
	now
)

// owner is somebody who leased a batch, and may not know that it lost it.
type owner struct {
	buffer batches
	queue  bool
	batch  *buffer.Lease
}

type openTx struct {
	tx  Tx
	ids []int64
}

// holds tells whether the owner's lease is the batch's current one.
func (w *world) holds(o *owner) bool {
	b := w.live[o.batch.GroupID]
	return b != nil && b.state != "waiting" && b.leaseNo == o.batch.LeaseNo
}

// compare looks at the tables, and whether every event is in one place.
func (w *world) compare(t *rapid.T) {
	var rows []Row
	for id, g := range w.rows {
		rows = append(rows, Row{id, g})
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	equal(t, "rows", w.f.Rows(t), rows)

	var want []LedgerRow
	for _, g := range w.groupIDs() {
		l, ids := w.live[g], w.members[g]
		want = append(want, LedgerRow{
			GroupID: g, State: l.state, LeaseNo: l.leaseNo, UnfinishedLeases: l.unfinished, Attempts: l.attempts, Outages: l.outages,
			Events: len(ids), FirstID: ids[0], LastID: ids[len(ids)-1], Origins: l.origins, Delivered: l.delivered, Address: l.address,
		})
	}
	var got []LedgerRow
	for _, r := range w.f.Ledger(t) {
		got = append(got, LedgerRow{
			GroupID: r.GroupID, State: r.State, LeaseNo: r.LeaseNo, UnfinishedLeases: r.UnfinishedLeases, Attempts: r.Attempts, Outages: r.Outages,
			Events: r.Events, FirstID: r.FirstID, LastID: r.LastID, Origins: r.Origins, Delivered: r.Delivered, Address: r.Address,
		})
	}
	equal(t, "ledger", got, want)

	wantDead, gotDead := map[buffer.DeadKey]deadLetter{}, map[buffer.DeadKey]deadLetter{}
	open := map[int64]int{}
	for key, l := range w.dead {
		wantDead[key] = l.compared()
	}
	for _, d := range w.f.Dead(t) {
		l := deadLetter{notified: isNotified(&d), closed: isClosed(&d), queueGroup: d.HookGroupID}
		gotDead[buffer.DeadKey{EventID: d.EventID, GroupID: d.GroupID}] = l.compared()
		if !l.closed {
			open[d.EventID]++
		}
	}
	if !maps.Equal(gotDead, wantDead) {
		t.Fatalf("dead letters are %+v, want %+v", gotDead, wantDead)
	}

	for id := range w.committed {
		_, waits := w.rows[id]
		fate := w.fate[id]
		if waits == (fate != "") || (fate == "dead") != (open[id] == 1) || open[id] > 1 {
			t.Fatalf("event %d: in the buffer %t, fate %q, %d open dead letters", id, waits, fate, open[id])
		}
	}
}

// compared is a dead letter as it is to be found: under which group_id it was told is
// of no interest any more.
func (l deadLetter) compared() deadLetter {
	if l.notified {
		l.queueGroup = uuid.Nil
	}
	return l
}

// drain ends as every relay does: all processes but one are gone, and that one
// goes on until nothing is left.
func (w *world) drain(t *rapid.T) {
	w.endTransactions(t, true)
	w.owners = nil
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for g, l := range w.live {
			w.f.ExpireLease(t, g, time.Second)
			l.due = now
		}
		for len(w.live) > 0 {
			w.takeOverWith(t, w.buffers[0], false)
			w.takeOverWith(t, w.queues[0], true)
			w.deliver(t)
		}
		w.claimWith(t, w.buffers[0], 100)
		w.claimDeadWith(t, w.queues[0], 100)
		w.deliver(t)
		if len(w.rows) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			fresh, late := w.unclaimed()
			t.Fatalf("events %v and, committed late, %v were not claimed", fresh, late)
		}
	}
	w.compare(t)
	for key, l := range w.dead {
		if !l.closed && !l.notified {
			t.Fatalf("the hook has not heard of the dead letter of event %d", key.EventID)
		}
	}
	var archived, delivered []int64
	for _, e := range w.f.Archived(t) {
		archived = append(archived, e.ID)
	}
	for id, fate := range w.fate {
		if fate == "delivered" {
			delivered = append(delivered, id)
		}
	}
	slices.Sort(delivered)
	equal(t, "events in the archive", archived, delivered)
}

// deliver settles all that is owned.
func (w *world) deliver(t *rapid.T) {
	for _, o := range w.owners {
		outcomes := []buffer.Outcome{delivered()}
		err := o.buffer.Settle(t.Context(), o.batch, outcomes)
		if errors.Is(err, buffer.ErrLeaseLost) {
			t.Fatalf("the only process left lost batch %s", o.batch.GroupID)
		}
		ok(t, "Settle", err)
		w.settled(t, o, outcomes)
	}
	w.owners = nil
}
