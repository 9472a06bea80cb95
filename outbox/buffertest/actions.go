package buffertest

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Each action of the model changes the buffer, checks the result, and changes the model in
// the same way.

func (m *model) insert(t *rapid.T) {
	events := orders(rapid.IntRange(1, 6).Draw(t, "events"))
	if !m.delays || rapid.IntRange(0, 2).Draw(t, "delayed") > 0 {
		m.commits(m.f.Insert(t, events...))
		return
	}
	by := rapid.SampledFrom([]time.Duration{-time.Second, 20 * time.Millisecond, 200 * time.Millisecond}).Draw(t, "by")
	ids := m.f.Insert(t, delay(by, events...)...)
	m.commits(ids)
	for i, id := range ids {
		m.until[id] = events[i].AvailableAt
	}
}

func (m *model) commits(ids []int64) {
	for _, id := range ids {
		m.rows[id], m.committed[id] = uuid.Nil, true
	}
}

func (m *model) rollBack(t *rapid.T) {
	tx := m.f.Begin(t)
	tx.Insert(t, orders(2)...)
	tx.Rollback(t)
}

func (m *model) begin(t *rapid.T) {
	if len(m.open) == 3 {
		t.Skip("enough transactions are open")
	}
	tx := m.f.Begin(t)
	m.open = append(m.open, &openTx{tx, tx.Insert(t, orders(rapid.IntRange(1, 3).Draw(t, "events"))...)})
}

func (m *model) commit(t *rapid.T) {
	if len(m.open) == 0 {
		t.Skip("no transaction is open")
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(t, "transaction")
	m.end(t, m.open[i], true)
	m.open = slices.Delete(m.open, i, i+1)
}

func (m *model) end(t *rapid.T, tx *openTx, commit bool) {
	if !commit {
		tx.tx.Rollback(t)
		return
	}
	tx.tx.Commit(t)
	m.commits(tx.ids)
	for _, id := range tx.ids {
		m.slow[id] = true
	}
}

func (m *model) endTransactions(t *rapid.T, commit bool) {
	for _, tx := range m.open {
		m.end(t, tx, commit)
	}
	m.open = nil
}

// unclaimed returns the committed events without a batch, apart those that a claim need not find: those below the
// highest id ever claimed, and delayed ones.
func (m *model) unclaimed() (fresh, late []int64) {
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		switch {
		case m.rows[id] != uuid.Nil:
		case id < m.maxClaimed || !m.until[id].IsZero():
			late = append(late, id)
		default:
			fresh = append(fresh, id)
		}
	}
	return fresh, late
}

func (m *model) count(t *rapid.T) {
	m.countWith(t, rapid.SampledFrom(m.buffers).Draw(t, "buffer"))
}

func (m *model) countWith(t *rapid.T, from buffer.Buffer) {
	b, err := from.CountBacklog(t.Context(), 1000)
	ok(t, "CountBacklog", err)
	fresh, late := m.unclaimed()
	if b.Unclaimed > len(fresh)+len(late) {
		t.Fatalf("%d events are counted; unclaimed are %v and %v", b.Unclaimed, fresh, late)
	}
}

func (m *model) claim(t *rapid.T) {
	m.claimWith(t, rapid.SampledFrom(m.buffers).Draw(t, "buffer"), rapid.IntRange(1, 8).Draw(t, "limit"))
}

func (m *model) claimWith(t *rapid.T, from buffer.Buffer, limit int) {
	b, err := from.Claim(t.Context(), limit, lease)
	ok(t, "Claim", err)
	fresh, late := m.unclaimed()
	m.first(t, b, limit, fresh, late)
	if b == nil {
		return
	}
	if m.members[b.GroupID] != nil {
		t.Fatalf("group_id %s was used before", b.GroupID)
	}
	ids := b.IDs()
	m.members[b.GroupID] = ids
	m.live[b.GroupID] = &liveBatch{state: "leased", leaseNo: 1, unfinished: 1}
	for _, id := range ids {
		m.rows[id] = b.GroupID
		if at := m.until[id]; !at.IsZero() && b.ClaimedAt.Before(at.Add(-time.Millisecond)) {
			t.Fatalf("event %d was claimed at %v, before %v", id, b.ClaimedAt, at)
		}
	}
	m.maxClaimed = max(m.maxClaimed, ids[len(ids)-1])
	m.sameBatch(t, b)
	m.owners = append(m.owners, &owner{from, false, b})
}

// first expects that a claim returned the first unclaimed events, perhaps with late commits.
func (m *model) first(t *rapid.T, b *buffer.Lease, limit int, fresh, late []int64) {
	if b == nil {
		equal(t, "fresh events that a claim did not see", fresh, []int64(nil))
		return
	}
	ids := b.IDs()
	if len(ids) == 0 || len(ids) > limit || !slices.IsSorted(ids) {
		t.Fatalf("Claim(%d) returned events %v", limit, ids)
	}
	if m.anyOrder {
		unclaimed := append(fresh, late...)
		if len(ids) < min(limit, len(fresh)) || slices.ContainsFunc(ids, func(id int64) bool { return !slices.Contains(unclaimed, id) }) {
			t.Fatalf("Claim(%d) returned events %v, unclaimed were %v", limit, ids, unclaimed)
		}
		return
	}
	isLate := func(id int64) bool { return slices.Contains(late, id) }
	gotFresh := slices.DeleteFunc(slices.Clone(ids), isLate)
	if len(gotFresh) > len(fresh) {
		t.Fatalf("Claim returned events %v, unclaimed were %v and, late, %v", ids, fresh, late)
	}
	equal(t, "fresh events claimed", gotFresh, fresh[:len(gotFresh)])
	if len(gotFresh) == len(ids) && len(ids) < min(limit, len(fresh)) {
		t.Fatalf("Claim(%d) returned events %v, unclaimed were %v", limit, ids, fresh)
	}
}

// sameBatch compares a lease with the model's batch.
func (m *model) sameBatch(t *rapid.T, b *buffer.Lease) {
	l, ids := m.live[b.GroupID], m.members[b.GroupID]
	equal(t, "events of batch "+b.GroupID.String(), b.IDs(), ids)
	equal(t, "batch "+b.GroupID.String(),
		[]any{b.LeaseNo, b.UnfinishedLeases, b.Attempts, b.Outages},
		[]any{l.leaseNo, l.unfinished, l.attempts, l.outages})
	if m.knowsBounds(l) {
		equal(t, "first and last id of batch "+b.GroupID.String(), []int64{b.FirstID, b.LastID}, []int64{ids[0], ids[len(ids)-1]})
	}
	equal(t, "origins of batch "+b.GroupID.String(), b.Origins, l.origins)
	equal(t, "delivered of batch "+b.GroupID.String(), b.Delivered, l.delivered)
}

func (m *model) groupIDs() []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m.live), compareUUID)
}

func compareUUID(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

func (m *model) expireLease(t *rapid.T) {
	if len(m.live) == 0 {
		t.Skip("no batch is live")
	}
	g := rapid.SampledFrom(m.groupIDs()).Draw(t, "batch")
	m.f.ExpireLease(t, g, time.Second)
	m.live[g].due = now
}

func (m *model) takeOver(t *rapid.T) {
	from, queue := m.either(t)
	m.takeOverWith(t, from, queue, rapid.SampledFrom([]buffer.Due{buffer.DueRetry, buffer.DueSuspect}).Draw(t, "kind"))
}

// either draws a buffer or a dead-letter queue.
func (m *model) either(t *rapid.T) (from buffer.Queue, queue bool) {
	if queue = rapid.Bool().Draw(t, "from the queue"); queue {
		return rapid.SampledFrom(m.queues).Draw(t, "queue"), true
	}
	return rapid.SampledFrom(m.buffers).Draw(t, "buffer"), false
}

func (m *model) takeOverWith(t *rapid.T, from buffer.Queue, queue bool, kind buffer.Due) {
	b, err := from.TakeOver(t.Context(), lease, kind)
	ok(t, "TakeOver", err)
	if b == nil {
		for g, l := range m.live {
			if l.due == now && l.queue == queue && l.kind() == kind {
				t.Fatalf("TakeOver: nothing, although batch %s is due", g)
			}
		}
		return
	}
	l := m.live[b.GroupID]
	if l == nil || l.queue != queue || l.due == later || l.kind() != kind {
		t.Fatalf("TakeOver(%v): batch %s is not due: %+v", kind, b.GroupID, l)
	}
	if l.state == "waiting" {
		l.state = "leased"
	}
	l.due = later
	l.leaseNo++
	l.unfinished++
	m.sameBatch(t, b)
	m.owners = append(m.owners, &owner{from, queue, b})
}

func (m *model) owner(t *rapid.T) *owner {
	if len(m.owners) == 0 {
		t.Skip("no batch has an owner")
	}
	return rapid.SampledFrom(m.owners).Draw(t, "owner")
}

// fenced expects ErrLeaseLost if the owner has lost its lease, and no error otherwise.
func (m *model) fenced(t *rapid.T, what string, o *owner, err error) bool {
	if m.holds(o) {
		ok(t, what, err)
		return true
	}
	fails(t, what+" under a lost lease", err, buffer.ErrLeaseLost)
	return false
}

func (m *model) renew(t *rapid.T) {
	o := m.owner(t)
	if m.fenced(t, "Renew", o, o.buffer.Renew(t.Context(), o.batch, lease)) {
		m.live[o.batch.GroupID].due = later
	}
}

func (m *model) markDelivered(t *rapid.T) {
	o := m.owner(t)
	ids := []int64{}
	for _, id := range o.batch.IDs() {
		if slices.Contains(m.marked(o), id) || rapid.Bool().Draw(t, "delivered") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("nothing was delivered")
	}
	if m.fenced(t, "MarkDelivered", o, o.buffer.MarkDelivered(t.Context(), o.batch, ids)) {
		l := m.live[o.batch.GroupID]
		l.state, l.delivered, l.due = "delivered", ids, soon
	}
}

// marked returns the ids that the owner knows to be delivered, from its take over or from its
// own MarkDelivered.
func (m *model) marked(o *owner) []int64 {
	if m.holds(o) {
		return m.live[o.batch.GroupID].delivered
	}
	return o.batch.Delivered
}

// crash makes a process forget its lease. The batch keeps its ledger row until it is due.
func (m *model) crash(t *rapid.T) {
	o := m.owner(t)
	m.owners = slices.DeleteFunc(m.owners, func(other *owner) bool { return other == o })
}
