package buffertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var settleCases = []testCase{
	{name: "settle/delivered batch leaves nothing", run: settleDelivered},
	{name: "settle/deletes exactly the delivered events", run: settleMixed},
	{name: "settle/spares events between its first and last id", stampOnly: true, run: settleBetween},
	{name: "settle/retry of the whole batch keeps the group_id", run: settleRetryAll},
	{name: "settle/retry of a part has a new group_id and origins", run: settleOrigins},
	{name: "settle/split batch waits in parts", run: settleSplit},
	{name: "settle/dead letters have all fields", run: settleDead},
	{name: "settle/dead letters keep opaque bytes", run: settleDeadBytes},
	{name: "settle/event can die twice", run: settleDeadTwice},
	{name: "settle/open dead letter stays unchanged", integerKeysOnly: true, run: settleDeadAlready},
	{name: "settle/closed dead letter is opened again", deletesOnly: true, integerKeysOnly: true, run: settleDeadClosed},
	{name: "settle/ignores events deleted meanwhile", run: settleVanished},
	{name: "settle/locked events block neither side for long", rowLocksOnly: true, run: settleLocked},
}

func settleDelivered(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(6)...)
	first, second := claim(t, f.Buffer, 3), claim(t, f.Buffer, 3)
	settle(t, f.Buffer, first, delivered())
	equal(t, "rows left", rowIDs(t, f), ids[3:])
	settle(t, f.Buffer, second, delivered(ids[3:]...)) // naming all events is the same as nil
	empty(t, f)
	equal(t, "dead letters", f.Dead(t), []DeadLetter(nil))
}

func settleMixed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(9)...)
	b := claim(t, f.Buffer, 7)
	equal(t, "events claimed", b.IDs(), ids[:7])
	part := buffer.NewGroupID()
	settle(t, f.Buffer, b,
		delivered(ids[0], ids[3], ids[6]),
		buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{ids[1]}, Attempts: 4, Error: "refused"},
		buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{ids[5]}, Attempts: 2, Error: "too large"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[2], ids[4]}, GroupID: part, After: lease, Attempts: 1, Outages: 2, Error: "busy"},
	)
	equal(t, "rows left", f.Rows(t), []Row{{ids[2], part}, {ids[4], part}, {ids[7], uuid.Nil}, {ids[8], uuid.Nil}})
	ledger := f.Ledger(t)
	equal(t, "ledger rows", len(ledger), 1)
	row := ledger[0]
	about(t, "due_at of the part", row.DueIn, lease)
	if !row.OldestAt.Equal(b.Events[2].CreatedAt) {
		t.Fatalf("oldest_at of the part is %v, want %v", row.OldestAt, b.Events[2].CreatedAt)
	}
	equal(t, "ledger row of the part", row, LedgerRow{
		GroupID: part, Buffer: row.Buffer, Claim: row.Claim, State: "waiting", DueIn: row.DueIn, Owner: row.Owner,
		Attempts: 1, Outages: 2, Events: 2, FirstID: ids[2], LastID: ids[4],
		Origins: []uuid.UUID{b.GroupID}, Error: "busy", OldestAt: row.OldestAt, ClaimedAt: row.ClaimedAt,
	})
	dead := f.Dead(t)
	equal(t, "dead letters", len(dead), 2)
	for i, want := range [][]any{{ids[1], 4, "refused", b.GroupID}, {ids[5], 2, "too large", b.GroupID}} {
		equal(t, "dead letter", []any{dead[i].EventID, dead[i].Attempts, dead[i].Error, dead[i].GroupID}, want)
	}
}

// settleBetween puts an event that is not in the batch between its first and last id, as a late
// commit does.
func settleBetween(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	f.Exec(t, fmt.Sprintf("UPDATE %s SET group_id = NULL WHERE id = %d", f.Table, ids[1]))
	b = lose(t, f, b, f.Buffer)
	equal(t, "events taken over", b.IDs(), []int64{ids[0], ids[2]})
	settle(t, f.Buffer, b, delivered())
	equal(t, "rows left", f.Rows(t), []Row{{ID: ids[1]}})
}

func settleRetryAll(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, After: 2 * lease, Attempts: 1, Error: "refused"})
	row := ledgerOf(t, f, b.GroupID)
	equal(t, "state", row.State, "waiting")
	equal(t, "origins", row.Origins, []uuid.UUID(nil))
	about(t, "due_at", row.DueIn, 2*lease)
	takeOverNone(t, f.Buffer)
	takeOverNone(t, f.Second(t))
	claimNone(t, f.Buffer)

	f.ExpireLease(t, b.GroupID, 0)
	again := takeOver(t, f.Buffer)
	equal(t, "group_id", again.GroupID, b.GroupID)
	equal(t, "events", again.IDs(), ids)
	equal(t, "origins", again.Origins, []uuid.UUID(nil))

	settle(t, f.Buffer, again, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID}) // at once
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	empty(t, f)
}

func settleOrigins(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	var origins []uuid.UUID
	for i := range 3 {
		part := buffer.NewGroupID()
		settle(t, f.Buffer, b, delivered(ids[i]), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[i+1:], GroupID: part, After: lease})
		origins = append(origins, b.GroupID)
		equal(t, "origins in the ledger", ledgerOf(t, f, part).Origins, origins)
		f.ExpireLease(t, part, time.Second)
		b = takeOver(t, f.Buffer)
		equal(t, "group_id", b.GroupID, part)
		equal(t, "events", b.IDs(), ids[i+1:])
		equal(t, "origins", b.Origins, origins)
	}
	// A retry of the whole batch keeps its origins.
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID})
	b = takeOver(t, f.Buffer)
	equal(t, "origins", b.Origins, origins)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func settleSplit(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(5)...)
	b := claim(t, f.Buffer, 10)
	left, right := buffer.NewGroupID(), buffer.NewGroupID()
	settle(t, f.Buffer, b,
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[:2], GroupID: left, Error: "too large"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: right, Error: "too large"})
	equal(t, "rows", f.Rows(t), []Row{{ids[0], left}, {ids[1], left}, {ids[2], right}, {ids[3], right}, {ids[4], right}})
	parts := map[uuid.UUID][]int64{left: ids[:2], right: ids[2:]}
	for range 2 {
		p := takeOver(t, f.Buffer)
		equal(t, "events of the part", p.IDs(), parts[p.GroupID])
		equal(t, "first and last id", []int64{p.FirstID, p.LastID}, []int64{p.IDs()[0], p.IDs()[len(p.Events)-1]})
		equal(t, "origins", p.Origins, []uuid.UUID{b.GroupID})
		settle(t, f.Buffer, p, delivered())
	}
	takeOverNone(t, f.Buffer)
	empty(t, f)
}

func settleDead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	deadComplete(t, f, []outbox.Event{
		{Topic: "orders.größe", Key: text("customer-7"), Payload: []byte(`{"a": "Ü"}`), Headers: outbox.Headers(`{"trace": "00-ab"}`)},
		{Topic: "t", Key: text(""), Payload: []byte(`null`), Headers: outbox.Headers(`{}`)},
		{Topic: "t", Payload: []byte(`1`)},
	})
}

func settleDeadBytes(t *testing.T, h Harness) {
	f := h.Open(t, Options{Bytes: true})
	deadComplete(t, f, []outbox.Event{
		{Topic: "t", Payload: []byte{0, 1, 0xff, '\'', '\\'}},
		{Topic: "t", Payload: []byte{}},
	})
}

func deadComplete(t *testing.T, f *Fixture, events []outbox.Event) {
	ids := f.Insert(t, events...)
	b := claim(t, f.Buffer, 100)
	const reason = "422 refused: \"größe\" is not 'a' size\nline two"
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 3, Error: reason})
	empty(t, f)
	dead := f.Dead(t)
	equal(t, "dead letters", len(dead), len(events))
	for i, d := range dead {
		e := b.Events[i]
		about(t, "died_at", time.Since(d.DiedAt), 0)
		equal(t, "dead letter", d, DeadLetter{
			Pipeline: f.Pipeline, EventID: ids[i], Topic: e.Topic, Key: e.Key, Payload: events[i].Payload, Headers: e.Headers,
			CreatedAt: e.CreatedAt, GroupID: b.GroupID, Attempts: 3, Error: reason, DiedAt: d.DiedAt,
		})
		if (d.Headers == nil) != (e.Headers == nil) {
			t.Fatalf("headers of the dead letter are %q, want %q", d.Headers, e.Headers)
		}
	}
}

// settleDeadTwice: a replayed event is buried again under another group_id.
func settleDeadTwice(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(2)...)
	first, second := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1)
	settle(t, f.Buffer, first, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET event_id = %d WHERE event_id = %d", ids[1], ids[0]))
	settle(t, f.Buffer, second, buffer.Outcome{Verdict: buffer.Dead, Attempts: 2, Error: "refused again"})
	dead := map[uuid.UUID]string{}
	for _, d := range f.Dead(t) {
		equal(t, "event buried", d.EventID, ids[1])
		dead[d.GroupID] = d.Error
	}
	equal(t, "dead letters", dead, map[uuid.UUID]string{first.GroupID: "refused", second.GroupID: "refused again"})
	empty(t, f)
}

func settleDeadAlready(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 10)
	f.Exec(t, fmt.Sprintf(`INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error)
		SELECT '%s', id, topic, payload, created_at, '%s', 1, 'before' FROM %s WHERE id = %d`, f.Pipeline, b.GroupID, f.Table, ids[0]))
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 2, Error: "refused"})
	dead := map[int64]string{}
	for _, d := range f.Dead(t) {
		dead[d.EventID] = d.Error
	}
	equal(t, "dead letters", dead, map[int64]string{ids[0]: "before", ids[1]: "refused"})
	empty(t, f)
}

// settleDeadClosed: after a restore of buffer and ledger, events are refused again under the group_id
// under which they were buried before. Three of their dead letters are closed, one is open.
func settleDeadClosed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids, queue := f.Insert(t, orders(4)...), f.Queue(t)
	first := claim(t, f.Buffer, 10)
	restore := backup(t, f, first)
	settle(t, f.Buffer, first, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	settle(t, queue, claim(t, queue, 1), delivered())
	notifying := claim(t, queue, 1)
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[:3]}, 10, 3)
	f.Exec(t, "UPDATE outbox_dead_letters SET died_at = '2020-01-01T00:00:00.000Z'")
	before := f.Dead(t)
	restore()
	again := takeOver(t, f.Buffer)
	equal(t, "batch that came back", []any{again.GroupID, again.IDs()}, []any{first.GroupID, ids})
	settle(t, f.Buffer, again, buffer.Outcome{Verdict: buffer.Dead, Attempts: 7, Error: "refused again"})
	equal(t, "rows", f.Rows(t), []Row(nil))

	after := f.Dead(t)
	equal(t, "dead letters", len(after), len(ids))
	for i, d := range after[:3] {
		about(t, "died_at", time.Since(d.DiedAt), 0)
		equal(t, "dead letter", d, DeadLetter{
			Pipeline: f.Pipeline, EventID: ids[i], Topic: "restored", Key: text("k"), Payload: fmt.Append(nil, ids[i]), Headers: []byte("{}"),
			CreatedAt: again.Events[i].CreatedAt, GroupID: first.GroupID, Attempts: 7, Error: "refused again", DiedAt: d.DiedAt,
		})
	}
	equal(t, "dead letter that was open", after[3], before[3])

	settle(t, queue, notifying, delivered()) // of the earlier dead letter
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64(nil))
	equal(t, "unnotified dead letters", claim(t, queue, 10).IDs(), ids)
	discard(t, f.Buffer, buffer.DeadFilter{}, 10, 4)
}

func settleVanished(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	vanish := func(ids ...int64) {
		for _, id := range ids {
			f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, id))
		}
	}
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	vanish(ids[1])
	settle(t, f.Buffer, b, delivered())
	empty(t, f)

	ids = f.Insert(t, orders(4)...)
	b = claim(t, f.Buffer, 10)
	vanish(ids[0], ids[3])
	settle(t, f.Buffer, b, delivered(ids[:2]...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID()})
	b = takeOver(t, f.Buffer)
	equal(t, "events left", b.IDs(), ids[2:3])
	vanish(ids[2])
	b = lose(t, f, b, f.Buffer)
	equal(t, "events left", b.IDs(), []int64(nil))
	equal(t, "events that the ledger counts", b.Counted, 1)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

// settleLocked: the application has locked a row of the batch. The settle ends in time and
// changes nothing; MarkDelivered, which needs only the ledger row, works.
func settleLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id = %d", f.Table, ids[1]))
	untouched(t, f, "a settle in front of a lock", func() {
		if err := f.Buffer.Settle(t.Context(), b, []buffer.Outcome{delivered()}); err == nil {
			t.Fatalf("Settle went through although a row is locked")
		}
	})
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids))
	tx.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[0])) // the application continues
	tx.Commit(t)
	f.ExpireLease(t, b.GroupID, time.Second)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	if h.Marked { // the second one was changed
		equal(t, "sent again", claimAgain(t, f).IDs(), ids[1:2])
		return
	}
	empty(t, f)
}
