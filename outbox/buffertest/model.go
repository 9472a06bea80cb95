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

	"github.com/outboxrelay/relay/outbox"
)

var modelCases = []testCase{
	{name: "model/nothing lost nothing twice no batch changed", run: model},
}

// model runs random sequences of everything that applications, owners, former
// owners and crashes do, and compares the tables with what they must hold after
// every step.
func model(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	buffers := []Buffer{f.Buffer, f.Second(t)}
	rapid.Check(t, func(t *rapid.T) {
		for _, table := range []string{f.Table, "outbox_batches", "outbox_dead_letters"} {
			f.Exec(t, "DELETE FROM "+table)
		}
		w := &world{
			f: f, buffers: buffers,
			rows: map[int64]uuid.UUID{}, fate: map[int64]string{},
			members: map[uuid.UUID][]int64{}, live: map[uuid.UUID]*liveBatch{}, dead: map[int64]uuid.UUID{},
		}
		actions := map[string]func(*rapid.T){
			"":          w.compare,
			"insert":    w.insert,
			"roll back": w.rollBack,
			"claim":     w.claim,
			"overdue":   w.overdue,
			"take over": w.takeOver,
			"renew":     w.renew,
			"settle":    w.settle,
			"mark":      w.mark,
			"crash":     w.crash,
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

	rows       map[int64]uuid.UUID      // the buffer table
	live       map[uuid.UUID]*liveBatch // the ledger
	dead       map[int64]uuid.UUID      // the dead letters
	fate       map[int64]string         // delivered or dead, of events that are gone
	members    map[uuid.UUID][]int64    // of every group_id there ever was
	maxClaimed int64                    // unclaimed ids below it were committed late
	owners     []*owner                 // of today and of the past
	open       []*openTx
}

type liveBatch struct {
	state                     string
	due                       due
	leaseNo                   int64
	starts, attempts, outages int
	origins                   []uuid.UUID
	delivered                 []int64
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
	buffer Buffer
	batch  *outbox.Batch
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

func (w *world) insert(t *rapid.T) {
	for _, id := range w.f.Insert(t, orders(rapid.IntRange(1, 6).Draw(t, "events"))...) {
		w.rows[id] = uuid.Nil
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
	for _, id := range tx.ids {
		w.rows[id] = uuid.Nil
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
	if w.members[b.GroupID] != nil {
		t.Fatalf("group_id %s was used before", b.GroupID)
	}
	w.members[b.GroupID] = ids
	w.live[b.GroupID] = &liveBatch{state: "leased", leaseNo: 1, starts: 1}
	for _, id := range ids {
		w.rows[id] = b.GroupID
	}
	w.maxClaimed = max(w.maxClaimed, ids[len(ids)-1])
	w.sameBatch(t, b)
	w.owners = append(w.owners, &owner{buffer, b})
}

// sameBatch compares what an owner was given with what it must be.
func (w *world) sameBatch(t *rapid.T, b *outbox.Batch) {
	l, ids := w.live[b.GroupID], w.members[b.GroupID]
	equal(t, "events of batch "+b.GroupID.String(), b.IDs(), ids)
	equal(t, "batch "+b.GroupID.String(),
		[]any{b.LeaseNo, b.Starts, b.Attempts, b.Outages, b.FirstID, b.LastID},
		[]any{l.leaseNo, l.starts, l.attempts, l.outages, ids[0], ids[len(ids)-1]})
	equal(t, "origins of batch "+b.GroupID.String(), b.Origins, l.origins)
	equal(t, "delivered of batch "+b.GroupID.String(), b.Delivered, l.delivered)
}

func (w *world) groupIDs() []uuid.UUID {
	return slices.SortedFunc(maps.Keys(w.live), compareUUID)
}

func compareUUID(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

func (w *world) overdue(t *rapid.T) {
	if len(w.live) == 0 {
		t.Skip("no batch is live")
	}
	g := rapid.SampledFrom(w.groupIDs()).Draw(t, "batch")
	w.f.Overdue(t, g, time.Second)
	w.live[g].due = now
}

func (w *world) takeOver(t *rapid.T) {
	w.takeOverWith(t, rapid.SampledFrom(w.buffers).Draw(t, "buffer"))
}

func (w *world) takeOverWith(t *rapid.T, buffer Buffer) {
	b, err := buffer.TakeOver(t.Context(), lease)
	ok(t, "TakeOver", err)
	if b == nil {
		for g, l := range w.live {
			if l.due == now {
				t.Fatalf("TakeOver: nothing, although batch %s is due", g)
			}
		}
		return
	}
	l := w.live[b.GroupID]
	if l == nil || l.due == later {
		t.Fatalf("TakeOver: batch %s is not due: %+v", b.GroupID, l)
	}
	if l.state == "waiting" {
		l.state = "leased"
	}
	l.due = later
	l.leaseNo++
	l.starts++
	w.sameBatch(t, b)
	w.owners = append(w.owners, &owner{buffer, b})
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
	fails(t, what+" under a lost lease", err, outbox.ErrLeaseLost)
	return false
}

func (w *world) renew(t *rapid.T) {
	o := w.owner(t)
	if w.fenced(t, "Renew", o, o.buffer.Renew(t.Context(), o.batch, lease)) {
		w.live[o.batch.GroupID].due = later
	}
}

func (w *world) mark(t *rapid.T) {
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
	if w.fenced(t, "Mark", o, o.buffer.Mark(t.Context(), o.batch, ids)) {
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

func (w *world) settle(t *rapid.T) {
	o := w.owner(t)
	outcomes := w.outcomes(t, o)
	if w.fenced(t, "Settle", o, o.buffer.Settle(t.Context(), o.batch, outcomes)) {
		w.settled(t, o, outcomes)
	}
}

// outcomes draws one for every event of the batch: delivered, dead, or one of
// two parts to be sent again.
func (w *world) outcomes(t *rapid.T, o *owner) []outbox.Outcome {
	const toDeliver, toBury, toRetry, toRetryToo, fates = 0, 1, 2, 3, 4
	mixture := rapid.SampledFrom([][]int{
		{toDeliver},
		{toBury},
		{toRetry},
		{toRetry, toRetryToo},
		{toDeliver, toRetry},
		{toDeliver, toBury, toRetry, toRetryToo},
	}).Draw(t, "mixture")
	var parts [fates][]int64
	for _, id := range o.batch.IDs() {
		fate := toDeliver
		if !slices.Contains(w.marked(o), id) {
			fate = rapid.SampledFrom(mixture).Draw(t, "fate")
		}
		parts[fate] = append(parts[fate], id)
	}
	var outcomes []outbox.Outcome
	for fate, ids := range parts {
		if len(ids) == 0 {
			continue
		}
		out := outbox.Outcome{Verdict: outbox.Delivered, IDs: ids}
		switch fate {
		case toBury:
			out.Verdict, out.Attempts, out.Error = outbox.Dead, rapid.IntRange(1, 9).Draw(t, "attempts"), "refused"
		case toRetry, toRetryToo:
			out.Verdict, out.GroupID, out.Error = outbox.Retry, outbox.NewGroupID(), "busy"
			out.Attempts, out.Outages = rapid.IntRange(0, 9).Draw(t, "attempts"), rapid.IntRange(0, 9).Draw(t, "outages")
			out.After = rapid.SampledFrom([]time.Duration{0, lease}).Draw(t, "after")
		}
		if len(ids) == len(o.batch.Events) && rapid.Bool().Draw(t, "as a whole") {
			out.IDs = nil
			if out.Verdict == outbox.Retry {
				out.GroupID = o.batch.GroupID
			}
		}
		outcomes = append(outcomes, out)
	}
	return outcomes
}

// settled does to the model what Settle must have done to the tables.
func (w *world) settled(t *rapid.T, o *owner, outcomes []outbox.Outcome) {
	was := w.live[o.batch.GroupID]
	delete(w.live, o.batch.GroupID)
	for _, out := range outcomes {
		ids := out.IDs
		if ids == nil {
			ids = o.batch.IDs()
		}
		if out.Verdict == outbox.Retry {
			l := &liveBatch{state: "waiting", attempts: out.Attempts, outages: out.Outages, due: later}
			if out.After == 0 {
				l.due = now
			}
			if out.GroupID == o.batch.GroupID {
				l.leaseNo, l.origins = was.leaseNo, was.origins
			} else {
				l.origins = append(slices.Clone(was.origins), o.batch.GroupID)
				w.members[out.GroupID] = ids
			}
			w.live[out.GroupID] = l
			for _, id := range ids {
				w.rows[id] = out.GroupID
			}
			continue
		}
		for _, id := range ids {
			if w.fate[id] != "" {
				t.Fatalf("event %d is %s although it was %s", id, out.Verdict, w.fate[id])
			}
			w.fate[id] = out.Verdict.String()
			delete(w.rows, id)
			if out.Verdict == outbox.Dead {
				w.dead[id] = o.batch.GroupID
			}
		}
	}
}

// crash: a process forgets what it holds. The batch stays where it is until its
// time has come.
func (w *world) crash(t *rapid.T) {
	o := w.owner(t)
	w.owners = slices.DeleteFunc(w.owners, func(other *owner) bool { return other == o })
}

// compare looks at all three tables.
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
			GroupID: g, State: l.state, LeaseNo: l.leaseNo, Starts: l.starts, Attempts: l.attempts, Outages: l.outages,
			Events: len(ids), FirstID: ids[0], LastID: ids[len(ids)-1], Origins: l.origins, Delivered: l.delivered,
		})
	}
	var got []LedgerRow
	for _, r := range w.f.Ledger(t) {
		got = append(got, LedgerRow{
			GroupID: r.GroupID, State: r.State, LeaseNo: r.LeaseNo, Starts: r.Starts, Attempts: r.Attempts, Outages: r.Outages,
			Events: r.Events, FirstID: r.FirstID, LastID: r.LastID, Origins: r.Origins, Delivered: r.Delivered,
		})
	}
	equal(t, "ledger", got, want)

	dead := map[int64]uuid.UUID{}
	for _, d := range w.f.Dead(t) {
		if _, twice := dead[d.EventID]; twice {
			t.Fatalf("event %d is buried twice", d.EventID)
		}
		dead[d.EventID] = d.GroupID
	}
	equal(t, "dead letters", dead, w.dead)
}

// drain ends as every relay does: all processes but one are gone, and that one
// goes on until nothing is left.
func (w *world) drain(t *rapid.T) {
	w.endTransactions(t, true)
	committed := len(w.rows) + len(w.fate)
	w.owners = nil
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for g, l := range w.live {
			w.f.Overdue(t, g, time.Second)
			l.due = now
		}
		for len(w.live) > 0 {
			w.takeOverWith(t, w.buffers[0])
			w.deliver(t)
		}
		w.claimWith(t, w.buffers[0], 100)
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
	if len(w.fate) != committed {
		t.Fatalf("%d events were committed, %d were delivered or buried", committed, len(w.fate))
	}
}

// deliver settles all that is owned.
func (w *world) deliver(t *rapid.T) {
	for _, o := range w.owners {
		outcomes := []outbox.Outcome{delivered()}
		err := o.buffer.Settle(t.Context(), o.batch, outcomes)
		if errors.Is(err, outbox.ErrLeaseLost) {
			t.Fatalf("the only process left lost batch %s", o.batch.GroupID)
		}
		ok(t, "Settle", err)
		w.settled(t, o, outcomes)
	}
	w.owners = nil
}
