package buffertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var replayCases = []testCase{
	{name: "replay/restores all fields", run: replayComplete},
	{name: "replay/restores opaque bytes", run: replayBytes},
	{name: "replay/second death is a second dead letter", run: replayRefused},
	{name: "replay/skips ids that are in the buffer", deletesOnly: true, run: replayInBuffer},
	{name: "replay/restores one of two dead letters of an event", deletesOnly: true, integerKeysOnly: true, run: replayTwoDead},
	{name: "replay/restores an event once for two dead letters", integerKeysOnly: true, run: replaySameTwice},
	{name: "replay/stops at the limit", run: replayLimit},
	{name: "replay/concurrent calls restore nothing twice", run: replayTogether},
	{name: "replay/takes open matching dead letters only", run: replayFiltered},
	{name: "replay/ids are never handed out twice", run: replayNewIDs},
}

func replay(t *testing.T, b buffer.Buffer, f buffer.DeadFilter, limit, want int) {
	t.Helper()
	n, err := b.Replay(t.Context(), f, limit)
	ok(t, "Replay", err)
	equal(t, "dead letters replayed", n, want)
}

func replayComplete(t *testing.T, h Harness) {
	replayed(t, h.Open(t, Options{}), []outbox.Event{
		{Topic: "orders.größe", Key: text("customer-7"), Payload: []byte(`{"a": "Ü"}`), Headers: outbox.Headers(`{"trace": "00-ab"}`)},
		{Topic: "t", Key: text(""), Payload: []byte(`null`), Headers: outbox.Headers(`{}`)},
		{Topic: "t", Payload: []byte(`1`)},
		asWritten,
	})
}

func replayBytes(t *testing.T, h Harness) {
	replayed(t, h.Open(t, Options{Bytes: true}), []outbox.Event{
		{Topic: "t", Payload: []byte{0, 1, 0xff, '\'', '\\'}},
		{Topic: "t", Payload: []byte{}},
	})
}

func replayed(t *testing.T, f *Fixture, events []outbox.Event) {
	f.Insert(t, events...)
	b := claim(t, f.Buffer, 100)
	was := ledgerOf(t, f, b.GroupID)
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 3, Error: "refused"})
	empty(t, f)
	buried := f.Dead(t)

	replay(t, f.Buffer, buffer.DeadFilter{ClosedBy: "größe@host", ClosedReason: "gründe"}, 100, len(events))
	ledger := f.Ledger(t)
	equal(t, "ledger rows", len(ledger), 1)
	row := ledger[0]
	if row.GroupID == b.GroupID || row.GroupID.Version() != 7 {
		t.Fatalf("the events are back under group_id %s, want a new one of version 7", row.GroupID)
	}
	if row.DueIn > 0 || row.DueIn < -time.Minute {
		t.Fatalf("what was replayed is due in %v, want now", row.DueIn)
	}
	if !row.OldestAt.Equal(was.OldestAt) {
		t.Fatalf("oldest_at is %v, want %v", row.OldestAt, was.OldestAt)
	}
	equal(t, "ledger row", row, LedgerRow{
		GroupID: row.GroupID, Buffer: was.Buffer, Claim: row.Claim, State: "waiting", DueIn: row.DueIn, Owner: row.Owner,
		Events: len(events), FirstID: b.FirstID, LastID: b.LastID, Error: row.Error, OldestAt: row.OldestAt, ClaimedAt: row.ClaimedAt,
	})
	for i, d := range f.Dead(t) {
		about(t, "closed_at", time.Since(d.ClosedAt), 0)
		buried[i].ClosedAt, buried[i].ClosedAs, buried[i].ClosedBy, buried[i].ClosedReason = d.ClosedAt, "replayed", "größe@host", "gründe"
		equal(t, "dead letter after the replay", d, buried[i])
	}
	equal(t, "dead letters listed", dead(t, f.Buffer, buffer.DeadFilter{}), []int64(nil))
	claimNone(t, f.Buffer) // it is in the other batch

	again := takeOver(t, f.Second(t))
	equal(t, "events", again.Events, b.Events)
	equal(t, "lease_no and unfinished_leases", []int64{again.LeaseNo, int64(again.UnfinishedLeases)}, []int64{1, 1})
	equal(t, "attempts and outages", []int{again.Attempts, again.Outages}, []int{0, 0})
	equal(t, "origins", again.Origins, []uuid.UUID(nil))
	closed, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{Closed: true}, nil, 100)
	ok(t, "ListDead", err)
	for i := range closed {
		equal(t, "dead letter listed", []string{closed[i].ClosedAs, closed[i].ClosedBy, closed[i].ClosedReason}, []string{"replayed", "größe@host", "gründe"})
	}
	settle(t, f.Buffer, again, delivered())
	empty(t, f)
	replay(t, f.Buffer, buffer.DeadFilter{}, 100, 0)
	empty(t, f)
}

func replayRefused(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	first := bury(t, f, "refused", orders(2)...)
	replay(t, f.Buffer, buffer.DeadFilter{}, 100, 2)
	second := takeOver(t, f.Buffer)
	settle(t, f.Buffer, second, buffer.Outcome{Verdict: buffer.Dead, Attempts: 5, Error: "refused again"})
	empty(t, f)
	equal(t, "dead letters", len(f.Dead(t)), 4)
	for _, d := range f.Dead(t) {
		switch d.GroupID {
		case first.GroupID:
			if d.ClosedAt.IsZero() || d.Error != "refused" {
				t.Fatalf("the first dead letter of event %d: %+v", d.EventID, d)
			}
		case second.GroupID:
			if !d.ClosedAt.IsZero() || d.Error != "refused again" || d.Attempts != 5 {
				t.Fatalf("the second dead letter of event %d: %+v", d.EventID, d)
			}
		default:
			t.Fatalf("a dead letter of event %d under group_id %s", d.EventID, d.GroupID)
		}
	}
	replay(t, f.Buffer, buffer.DeadFilter{}, 100, 2)
	b := takeOver(t, f.Buffer)
	equal(t, "events", b.IDs(), first.IDs())
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	equal(t, "dead letters closed", deadIDs(t, f, isClosed), []int64{first.FirstID, first.FirstID, first.LastID, first.LastID})
}

func replayInBuffer(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	b := bury(t, f, "refused", orders(3)...)
	ids := b.IDs()
	f.Exec(t, fmt.Sprintf("INSERT INTO %s (id, topic, payload) VALUES (%d, 'restored', '1')", f.Table, ids[0]))
	for _, want := range ids[1:] { // rows that cannot be replayed do not count against the limit
		replay(t, f.Buffer, buffer.DeadFilter{}, 1, 1)
		again := takeOver(t, f.Buffer)
		equal(t, "events", again.IDs(), []int64{want})
		settle(t, f.Buffer, again, delivered())
	}
	untouched(t, f, "Replay of what is in the buffer", func() { replay(t, f.Buffer, buffer.DeadFilter{}, 10, 0) })
	equal(t, "dead letters still open", deadIDs(t, f, isOpen), ids[:1])
	equal(t, "rows", f.Rows(t), []Row{{ID: ids[0]}})
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[0]))
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	empty(t, f)
}

// replayTwoDead has two open dead letters of one event, as after a restore.
func replayTwoDead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	first, second := bury(t, f, "refused", orders(1)...), bury(t, f, "refused", orders(1)...)
	other := bury(t, f, "refused", orders(1)...)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET event_id = %d WHERE event_id = %d", first.FirstID, second.FirstID))
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 2)
	b := takeOver(t, f.Buffer)
	equal(t, "events", b.IDs(), []int64{first.FirstID, other.FirstID})
	equal(t, "dead letters open", deadIDs(t, f, isOpen), []int64{first.FirstID})
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 0)
	settle(t, f.Buffer, b, delivered())
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1) // the second dead letter is replayed too
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	empty(t, f)
	equal(t, "dead letters open", deadIDs(t, f, isOpen), []int64(nil))
}

// replaySameTwice: an event with two dead letters at the same sink goes back once, also if it is delivered before the next call. The other dead letter stays open. When it
// dies again, that is a dead letter that goes back.
func replaySameTwice(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	first, second := bury(t, f, "refused", orders(1)...), bury(t, f, "refused", orders(1)...)
	f.Exec(t, "UPDATE outbox_dead_letters SET created_at = (SELECT min(created_at) FROM outbox_dead_letters)")
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET event_id = %d WHERE event_id = %d", first.FirstID, second.FirstID))
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	settle(t, f.Buffer, takeOver(t, f.Buffer), buffer.Outcome{Verdict: buffer.Dead, Attempts: 3, Error: "refused again"})
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 0)
	equal(t, "dead letters open", deadIDs(t, f, isOpen), []int64{first.FirstID})
	count, err := f.Buffer.Discard(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Discard", err)
	equal(t, "dead letters discarded", count, 1)
}

func replayLimit(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(5)...).IDs()
	for _, n := range []int{2, 2, 1, 0} {
		replay(t, f.Buffer, buffer.DeadFilter{}, 2, n)
	}
	equal(t, "rows", rowIDs(t, f), ids)
	equal(t, "batches", len(f.Ledger(t)), 3)
	for range 3 {
		settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	}
	empty(t, f)
}

// together runs act in two processes until nothing is left, and returns the sum.
func together(t *testing.T, f *Fixture, act func(ctx context.Context, b buffer.Buffer) (int, error)) int {
	t.Helper()
	buffers := []buffer.Buffer{f.Buffer, f.Second(t)}
	did := make([]int, 2*len(buffers))
	g, ctx := errgroup.WithContext(t.Context())
	for i := range did {
		g.Go(func() error {
			for {
				n, err := act(ctx, buffers[i%len(buffers)])
				if err != nil || n == 0 {
					return err
				}
				did[i] += n
			}
		})
	}
	ok(t, "at the same time", g.Wait())
	sum := 0
	for _, n := range did {
		sum += n
	}
	return sum
}

func replayTogether(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(60)...).IDs()
	n := together(t, f, func(ctx context.Context, b buffer.Buffer) (int, error) {
		return b.Replay(ctx, buffer.DeadFilter{}, 7)
	})
	equal(t, "dead letters replayed", n, len(ids))
	equal(t, "rows", rowIDs(t, f), ids)
	equal(t, "dead letters open", deadIDs(t, f, isOpen), []int64(nil))
	wantAgreement(t, f)
	var got []int64
	for range f.Ledger(t) {
		b := takeOver(t, f.Buffer)
		got = append(got, b.IDs()...)
		settle(t, f.Buffer, b, delivered())
	}
	slices.Sort(got)
	equal(t, "events delivered", got, ids)
	empty(t, f)
}

// mixed buries four events: one is notified, one discarded, one has another topic. The
// neighbour has a dead letter too.
func mixed(t *testing.T, h Harness) (f *Fixture, ids []int64) {
	f = h.Open(t, Options{})
	events := orders(4)
	events[2].Topic = "orders.paid"
	ids = bury(t, f, "refused", events...).IDs()
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET notified_at = died_at WHERE event_id = %d", ids[0]))
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET closed_at = died_at WHERE event_id = %d", ids[1]))
	bury(t, f.Neighbour(t), "refused", orders(1)...)
	return f, ids
}

func replayFiltered(t *testing.T, h Harness) {
	f, ids := mixed(t, h)
	replay(t, f.Buffer, buffer.DeadFilter{Topic: "orders"}, 10, 0)
	replay(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2], Closed: true}, 10, 0)
	for _, c := range []struct {
		filter buffer.DeadFilter
		id     int64
	}{{buffer.DeadFilter{Notified: true}, ids[0]}, {buffer.DeadFilter{Topic: "orders.paid"}, ids[2]}, {buffer.DeadFilter{Closed: true}, ids[3]}} {
		replay(t, f.Buffer, c.filter, 10, 1)
		b := takeOver(t, f.Buffer)
		equal(t, "events replayed", b.IDs(), []int64{c.id})
		settle(t, f.Buffer, b, delivered())
	}
	empty(t, f)
	neighbourOpen(t, f)
}

// neighbourOpen expects that only the neighbour's dead letter is open.
func neighbourOpen(t *testing.T, f *Fixture) {
	t.Helper()
	open := 0
	for _, d := range f.Dead(t) {
		if d.ClosedAt.IsZero() {
			open++
			if d.Pipeline == f.Pipeline {
				t.Fatalf("the dead letter of event %d is still open", d.EventID)
			}
		}
	}
	equal(t, "open dead letters", open, 1)
}

func replayNewIDs(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	old := f.Insert(t, orders(1)...)
	last := bury(t, f, "refused", orders(1)...) // the older of the two
	equal(t, "event buried", last.IDs(), old)
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	empty(t, f)
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	if ids := f.Insert(t, orders(1)...); ids[0] <= old[0]+1 {
		t.Fatalf("event %d got the id of one that was there before", ids[0])
	}
}
