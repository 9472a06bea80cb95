package buffertest

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The actions of the model: each does one thing to the buffer, says what must
// have come of it, and does the same to the world.

func (w *world) insert(t *rapid.T) {
	w.commits(w.f.Insert(t, orders(rapid.IntRange(1, 6).Draw(t, "events"))...))
}

func (w *world) commits(ids []int64) {
	for _, id := range ids {
		w.rows[id], w.committed[id] = uuid.Nil, true
	}
}

func (w *world) rollBack(t *rapid.T) {
	tx := w.f.Begin(t)
	tx.Insert(t, orders(2)...)
	tx.Rollback(t)
}

func (w *world) begin(t *rapid.T) {
	if len(w.open) == 3 {
		t.Skip("enough transactions are open")
	}
	tx := w.f.Begin(t)
	w.open = append(w.open, &openTx{tx, tx.Insert(t, orders(rapid.IntRange(1, 3).Draw(t, "events"))...)})
}

func (w *world) commit(t *rapid.T) {
	if len(w.open) == 0 {
		t.Skip("no transaction is open")
	}
	i := rapid.IntRange(0, len(w.open)-1).Draw(t, "transaction")
	w.end(t, w.open[i], true)
	w.open = slices.Delete(w.open, i, i+1)
}

func (w *world) end(t *rapid.T, tx *openTx, commit bool) {
	if !commit {
		tx.tx.Rollback(t)
		return
	}
	tx.tx.Commit(t)
	w.commits(tx.ids)
	for _, id := range tx.ids {
		w.slow[id] = true
	}
}

func (w *world) endTransactions(t *rapid.T, commit bool) {
	for _, tx := range w.open {
		w.end(t, tx, commit)
	}
	w.open = nil
}

// unclaimed returns the committed events without a batch, those below the
// highest id ever claimed apart.
func (w *world) unclaimed() (fresh, late []int64) {
	for _, id := range slices.Sorted(maps.Keys(w.rows)) {
		switch {
		case w.rows[id] != uuid.Nil:
		case id < w.maxClaimed:
			late = append(late, id)
		default:
			fresh = append(fresh, id)
		}
	}
	return fresh, late
}

func (w *world) claim(t *rapid.T) {
	w.claimWith(t, rapid.SampledFrom(w.buffers).Draw(t, "buffer"), rapid.IntRange(1, 8).Draw(t, "limit"))
}

func (w *world) claimWith(t *rapid.T, buffer Buffer, limit int) {
	b, err := buffer.Claim(t.Context(), limit, lease)
	ok(t, "Claim", err)
	fresh, late := w.unclaimed()
	w.first(t, b, limit, fresh, late)
	if b == nil {
		return
	}
	if w.members[b.GroupID] != nil {
		t.Fatalf("group_id %s was used before", b.GroupID)
	}
	ids := b.IDs()
	w.members[b.GroupID] = ids
	w.live[b.GroupID] = &liveBatch{state: "leased", leaseNo: 1, unfinished: 1}
	for _, id := range ids {
		w.rows[id] = b.GroupID
	}
	w.maxClaimed = max(w.maxClaimed, ids[len(ids)-1])
	w.sameBatch(t, b)
	w.owners = append(w.owners, &owner{buffer, false, b})
}

// first expects a claim of the first unclaimed events, and perhaps of such as were
// committed late.
func (w *world) first(t *rapid.T, b *buffer.Lease, limit int, fresh, late []int64) {
	if b == nil {
		equal(t, "fresh events that a claim did not see", fresh, []int64(nil))
		return
	}
	ids := b.IDs()
	if len(ids) == 0 || len(ids) > limit || !slices.IsSorted(ids) {
		t.Fatalf("Claim(%d) returned events %v", limit, ids)
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

// sameBatch compares what an owner was given with what it must be.
func (w *world) sameBatch(t *rapid.T, b *buffer.Lease) {
	l, ids := w.live[b.GroupID], w.members[b.GroupID]
	equal(t, "events of batch "+b.GroupID.String(), b.IDs(), ids)
	equal(t, "batch "+b.GroupID.String(),
		[]any{b.LeaseNo, b.UnfinishedLeases, b.Attempts, b.Outages, b.FirstID, b.LastID},
		[]any{l.leaseNo, l.unfinished, l.attempts, l.outages, ids[0], ids[len(ids)-1]})
	equal(t, "origins of batch "+b.GroupID.String(), b.Origins, l.origins)
	equal(t, "delivered of batch "+b.GroupID.String(), b.Delivered, l.delivered)
}

func (w *world) groupIDs() []uuid.UUID {
	return slices.SortedFunc(maps.Keys(w.live), compareUUID)
}

func compareUUID(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

func (w *world) expireLease(t *rapid.T) {
	if len(w.live) == 0 {
		t.Skip("no batch is live")
	}
	g := rapid.SampledFrom(w.groupIDs()).Draw(t, "batch")
	w.f.ExpireLease(t, g, time.Second)
	w.live[g].due = now
}

func (w *world) takeOver(t *rapid.T) {
	buffer, queue := w.either(t)
	w.takeOverWith(t, buffer, queue)
}

// either draws a buffer or a dead-letter queue.
func (w *world) either(t *rapid.T) (buffer batches, queue bool) {
	if queue = rapid.Bool().Draw(t, "from the queue"); queue {
		return rapid.SampledFrom(w.queues).Draw(t, "queue"), true
	}
	return rapid.SampledFrom(w.buffers).Draw(t, "buffer"), false
}

func (w *world) takeOverWith(t *rapid.T, buffer batches, queue bool) {
	b, err := buffer.TakeOver(t.Context(), lease)
	ok(t, "TakeOver", err)
	if b == nil {
		for g, l := range w.live {
			if l.due == now && l.queue == queue {
				t.Fatalf("TakeOver: nothing, although batch %s is due", g)
			}
		}
		return
	}
	l := w.live[b.GroupID]
	if l == nil || l.queue != queue || l.due == later {
		t.Fatalf("TakeOver: batch %s is not due: %+v", b.GroupID, l)
	}
	if l.state == "waiting" {
		l.state = "leased"
	}
	l.due = later
	l.leaseNo++
	l.unfinished++
	w.sameBatch(t, b)
	w.owners = append(w.owners, &owner{buffer, queue, b})
}

func (w *world) owner(t *rapid.T) *owner {
	if len(w.owners) == 0 {
		t.Skip("nobody owns anything")
	}
	return rapid.SampledFrom(w.owners).Draw(t, "owner")
}

// fenced compares an error with what the owner's lease is worth.
func (w *world) fenced(t *rapid.T, what string, o *owner, err error) bool {
	if w.holds(o) {
		ok(t, what, err)
		return true
	}
	fails(t, what+" under a lost lease", err, buffer.ErrLeaseLost)
	return false
}

func (w *world) renew(t *rapid.T) {
	o := w.owner(t)
	if w.fenced(t, "Renew", o, o.buffer.Renew(t.Context(), o.batch, lease)) {
		w.live[o.batch.GroupID].due = later
	}
}

func (w *world) markDelivered(t *rapid.T) {
	o := w.owner(t)
	ids := []int64{}
	for _, id := range o.batch.IDs() {
		if slices.Contains(w.marked(o), id) || rapid.Bool().Draw(t, "delivered") {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("nothing was delivered")
	}
	if w.fenced(t, "MarkDelivered", o, o.buffer.MarkDelivered(t.Context(), o.batch, ids)) {
		l := w.live[o.batch.GroupID]
		l.state, l.delivered, l.due = "delivered", ids, soon
	}
}

// marked is what the owner knows to be delivered: what it was told when it took
// the batch over, or marked itself.
func (w *world) marked(o *owner) []int64 {
	if w.holds(o) {
		return w.live[o.batch.GroupID].delivered
	}
	return o.batch.Delivered
}

// crash: a process forgets what it holds. The batch stays where it is until its
// time has come.
func (w *world) crash(t *rapid.T) {
	o := w.owner(t)
	w.owners = slices.DeleteFunc(w.owners, func(other *owner) bool { return other == o })
}
