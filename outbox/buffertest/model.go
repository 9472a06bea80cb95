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
	{name: "model/loses nothing and sends nothing twice", run: randomSequences},
}

// randomSequences runs random sequences of everything that applications, owners, former owners
// and crashes do, and compares the tables with a model after every step.
func randomSequences(t *testing.T, h Harness) {
	archive := !h.UUIDKeys // a custom table with uuid keys has no archive
	f := h.Open(t, Options{Archive: archive, Delays: h.Delays})
	tables := []string{f.Table, "outbox_batches", "outbox_dead_letters"}
	if archive {
		tables = append(tables, "outbox_archive")
	}
	buffers, queues := []buffer.Buffer{f.Buffer, f.Second(t)}, []buffer.Queue{f.Queue(t), f.Queue(t)}
	rapid.Check(t, func(t *rapid.T) {
		for _, table := range tables {
			f.Exec(t, "DELETE FROM "+table)
		}
		m := &model{
			f: f, archive: archive, anyOrder: h.UUIDKeys, buffers: buffers, queues: queues, slow: map[int64]bool{},
			delays: h.Delays, until: map[int64]time.Time{}, committed: map[int64]bool{}, rows: map[int64]uuid.UUID{}, fate: map[int64]string{},
			members: map[uuid.UUID][]int64{}, live: map[uuid.UUID]*liveBatch{}, dead: map[buffer.DeadKey]*deadLetter{},
		}
		actions := map[string]func(*rapid.T){
			"":          m.compare,
			"insert":    m.insert,
			"roll back": m.rollBack,
			"count":     m.count,
			"claim":     m.claim,
			"expired":   m.expireLease,
			"take over": m.takeOver,
			"renew":     m.renew,
			"settle":    m.settle,
			"mark":      m.markDelivered,
			"crash":     m.crash,
			"retry now": m.retryNow,
			"retry one": m.retryBatch,
			"divide":    m.divide,
			"queue":     m.claimDead,
			"replay":    m.replay,
			"discard":   m.discard,
			"repair":    m.repair,
		}
		// Not every run has late commits, because the end of the run waits for them.
		if h.RowLocks && rapid.IntRange(0, 7).Draw(t, "late commits") == 0 {
			defer m.endTransactions(t, false)
			actions["begin"] = m.begin
			actions["commit"] = m.commit
		}
		t.Repeat(actions)
		m.drain(t)
	})
}

// model is the expected content of the tables, and the owner of each batch.
type model struct {
	f        *Fixture
	archive  bool // whether delivered events are archived
	anyOrder bool // whether claims take events in any order
	delays   bool // whether some events are delayed
	buffers  []buffer.Buffer
	queues   []buffer.Queue

	committed  map[int64]bool                 // all events
	rows       map[int64]uuid.UUID            // the buffer table
	live       map[uuid.UUID]*liveBatch       // the ledger
	dead       map[buffer.DeadKey]*deadLetter // the dead letters
	fate       map[int64]string               // delivered, dead or discarded, of events that are gone
	members    map[uuid.UUID][]int64          // of all group_ids
	maxClaimed int64                          // unclaimed ids below it were committed late
	slow       map[int64]bool                 // inserted by transactions that stayed open
	until      map[int64]time.Time            // when delayed events are available; a claim finds them after a count
	owners     []*owner                       // present and former ones
	open       []*openTx
}

// liveBatch is a batch of events or of dead letters.
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

// kind is which take over finds the batch when it is due.
func (l *liveBatch) kind() buffer.Due {
	if l.unfinished >= buffer.SuspectAfter && l.state != "delivered" {
		return buffer.DueSuspect
	}
	return buffer.DueRetry
}

// knowsBounds reports whether the first and last id of a batch are the lowest and the highest. Dead letters are in the order of event_id,
// which for uuids is a number that the event had in the batch in which it died.
func (m *model) knowsBounds(l *liveBatch) bool { return !m.anyOrder || !l.queue }

type deadLetter struct {
	notified, closed bool
	queueGroup       uuid.UUID
}

// due is whether a take over may, must or must not take the batch.
type due int

const (
	later due = iota
	soon      // just marked delivered
	now
)

// owner has leased a batch, and may have lost it.
type owner struct {
	buffer buffer.Queue
	queue  bool
	batch  *buffer.Lease
}

type openTx struct {
	tx  Tx
	ids []int64
}

// holds reports whether the owner's lease is the batch's current one.
func (m *model) holds(o *owner) bool {
	b := m.live[o.batch.GroupID]
	return b != nil && b.state != "waiting" && b.leaseNo == o.batch.LeaseNo
}

// compare compares the tables with the model, and expects every event in exactly one place.
func (m *model) compare(t *rapid.T) {
	var rows []Row
	for id, g := range m.rows {
		rows = append(rows, Row{id, g})
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	equal(t, "rows", m.f.Rows(t), rows)

	var want []LedgerRow
	for _, g := range m.groupIDs() {
		l, ids := m.live[g], m.members[g]
		want = append(want, LedgerRow{
			GroupID: g, State: l.state, LeaseNo: l.leaseNo, UnfinishedLeases: l.unfinished, Attempts: l.attempts, Outages: l.outages,
			Events: len(ids), FirstID: ids[0], LastID: ids[len(ids)-1], Origins: l.origins, Delivered: l.delivered, Address: l.address,
		})
	}
	var got []LedgerRow
	for _, r := range m.f.Ledger(t) {
		if l, ids := m.live[r.GroupID], m.members[r.GroupID]; l != nil && !m.knowsBounds(l) {
			r.FirstID, r.LastID = ids[0], ids[len(ids)-1]
		}
		got = append(got, LedgerRow{
			GroupID: r.GroupID, State: r.State, LeaseNo: r.LeaseNo, UnfinishedLeases: r.UnfinishedLeases, Attempts: r.Attempts, Outages: r.Outages,
			Events: r.Events, FirstID: r.FirstID, LastID: r.LastID, Origins: r.Origins, Delivered: r.Delivered, Address: r.Address,
		})
	}
	equal(t, "ledger", got, want)

	wantDead, gotDead := map[buffer.DeadKey]deadLetter{}, map[buffer.DeadKey]deadLetter{}
	open := map[int64]int{}
	for key, l := range m.dead {
		wantDead[key] = l.compared()
	}
	for _, d := range m.f.Dead(t) {
		l := deadLetter{notified: isNotified(&d), closed: isClosed(&d), queueGroup: d.HookGroupID}
		gotDead[buffer.DeadKey{EventID: d.EventID, GroupID: d.GroupID}] = l.compared()
		if !l.closed {
			open[d.EventID]++
		}
	}
	if !maps.Equal(gotDead, wantDead) {
		t.Fatalf("dead letters are %+v, want %+v", gotDead, wantDead)
	}

	for id := range m.committed {
		_, waits := m.rows[id]
		fate := m.fate[id]
		if waits == (fate != "") || (fate == "dead") != (open[id] == 1) || open[id] > 1 {
			t.Fatalf("event %d: in the buffer %t, fate %q, %d open dead letters", id, waits, fate, open[id])
		}
	}
}

// compared returns the dead letter as the table must have it. The group_id of a finished
// notification does not matter.
func (l deadLetter) compared() deadLetter {
	if l.notified {
		l.queueGroup = uuid.Nil
	}
	return l
}

// drain ends all processes but one, which delivers until nothing is left.
func (m *model) drain(t *rapid.T) {
	m.endTransactions(t, true)
	m.owners = nil
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for g, l := range m.live {
			m.f.ExpireLease(t, g, time.Second)
			l.due = now
		}
		for len(m.live) > 0 {
			for _, kind := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} {
				m.takeOverWith(t, m.buffers[0], false, kind)
				m.takeOverWith(t, m.queues[0], true, kind)
			}
			m.deliver(t)
		}
		m.countWith(t, m.buffers[0])
		m.claimWith(t, m.buffers[0], 100)
		m.claimDeadWith(t, m.queues[0], 100)
		m.deliver(t)
		if len(m.rows) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			fresh, late := m.unclaimed()
			t.Fatalf("events %v and, committed late, %v were not claimed", fresh, late)
		}
	}
	m.compare(t)
	for key, l := range m.dead {
		if !l.closed && !l.notified {
			t.Fatalf("the hook was not notified of the dead letter of event %d", key.EventID)
		}
	}
	if !m.archive {
		return
	}
	var archived, delivered []int64
	for _, e := range m.f.Archived(t) {
		archived = append(archived, e.ID)
	}
	for id, fate := range m.fate {
		if fate == "delivered" {
			delivered = append(delivered, id)
		}
	}
	slices.Sort(delivered)
	equal(t, "events in the archive", archived, delivered)
}

// deliver settles every owned batch as delivered.
func (m *model) deliver(t *rapid.T) {
	for _, o := range m.owners {
		outcomes := []buffer.Outcome{delivered()}
		err := o.buffer.Settle(t.Context(), o.batch, outcomes)
		if errors.Is(err, buffer.ErrLeaseLost) {
			t.Fatalf("the only process left lost batch %s", o.batch.GroupID)
		}
		ok(t, "Settle", err)
		m.settled(t, o, outcomes)
	}
	m.owners = nil
}
