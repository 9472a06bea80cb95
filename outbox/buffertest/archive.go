package buffertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var archiveCases = []testCase{
	{name: "archive/keeps all fields of delivered events", integerKeysOnly: true, run: archiveFields},
	{name: "archive/keeps opaque bytes", integerKeysOnly: true, run: archiveBytes},
	{name: "archive/takes delivered events only", integerKeysOnly: true, run: archiveMixed},
	{name: "archive/takes events of a batch marked delivered", integerKeysOnly: true, run: archiveDelivered},
	{name: "archive/has one row an id and group_id", deletesOnly: true, integerKeysOnly: true, run: archiveOnce},
	{name: "archive/has one row although some events were locked", rowLocksOnly: true, integerKeysOnly: true, run: archiveLocked},
	{name: "archive/check names a missing table", integerKeysOnly: true, run: archiveMissing},
}

// archived returns the archive in a short form.
func archived(t *testing.T, f *Fixture) []Row {
	t.Helper()
	var rows []Row
	for _, e := range f.Archived(t) {
		rows = append(rows, Row{e.ID, e.GroupID})
	}
	return rows
}

func archiveFields(t *testing.T, h Harness) {
	archivesUnchanged(t, h.Open(t, Options{Archive: true}), []outbox.Event{
		{Topic: "orders.größe", Key: text("customer-7"), Payload: []byte(`{"a": "Ü"}`), Headers: outbox.Headers(`{"trace": "00-ab"}`)},
		{Topic: "t", Key: text(""), Payload: []byte(`null`), Headers: outbox.Headers(`{}`)},
		{Topic: "t", Payload: []byte(`1`)},
		asWritten,
	})
}

func archiveBytes(t *testing.T, h Harness) {
	archivesUnchanged(t, h.Open(t, Options{Archive: true, Bytes: true}), []outbox.Event{
		{Topic: "t", Payload: []byte{0, 1, 0xff, '\'', '\\'}},
		{Topic: "t", Payload: []byte{}},
	})
}

func archivesUnchanged(t *testing.T, f *Fixture, events []outbox.Event) {
	ok(t, "Check", f.Buffer.Check(t.Context()))
	f.Insert(t, events...)
	b := claim(t, f.Buffer, 100)
	equal(t, "archive before the settle", archived(t, f), []Row(nil))
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	got := f.Archived(t)
	equal(t, "events in the archive", len(got), len(events))
	for i, a := range got {
		e := b.Events[i]
		about(t, "archived_at", time.Since(a.ArchivedAt), 0)
		if !a.CreatedAt.Equal(e.CreatedAt) || (a.Headers == nil) != (e.Headers == nil) {
			t.Fatalf("archived: %+v, want %+v", a, e)
		}
		equal(t, "event in the archive", a, ArchivedEvent{
			ID: e.ID, Topic: e.Topic, Key: e.Key, Payload: events[i].Payload, Headers: e.Headers, GroupID: b.GroupID,
			CreatedAt: a.CreatedAt, ArchivedAt: a.ArchivedAt,
		})
	}
}

func archiveMixed(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(6)...)
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, retry(b, 0))
	equal(t, "archive after a retry of all", archived(t, f), []Row(nil))
	b = takeOver(t, f.Buffer)
	part := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(ids[0], ids[4]),
		buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{ids[1], ids[5]}, Attempts: 1, Error: "refused"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:4], GroupID: part})
	want := []Row{{ids[0], b.GroupID}, {ids[4], b.GroupID}}
	equal(t, "archive after a part", archived(t, f), want)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	want = []Row{{ids[0], b.GroupID}, {ids[2], part}, {ids[3], part}, {ids[4], b.GroupID}}
	equal(t, "archive", archived(t, f), want)
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2]}, 10, 1)
	equal(t, "archive after a discard", archived(t, f), want)

	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	b = takeOver(t, f.Buffer)
	settle(t, f.Buffer, b, delivered())
	equal(t, "archive after a replay", archived(t, f), append(want, Row{ids[5], b.GroupID}))

	// A settle under a lost lease archives nothing.
	f.Insert(t, orders(1)...)
	b = claim(t, f.Buffer, 10)
	lose(t, f, b, f.Buffer)
	before := archived(t, f)
	fails(t, "Settle", f.Buffer.Settle(t.Context(), b, []buffer.Outcome{delivered()}), buffer.ErrLeaseLost)
	equal(t, "archive after a lost lease", archived(t, f), before)
}

func archiveDelivered(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, []int64{ids[0], ids[2]}))
	b = lose(t, f, b, f.Buffer)
	rest := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(b.Delivered...), buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[1], ids[3]}, GroupID: rest})
	equal(t, "archive", archived(t, f), []Row{{ids[0], b.GroupID}, {ids[2], b.GroupID}})
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	equal(t, "archive", archived(t, f), []Row{{ids[0], b.GroupID}, {ids[1], rest}, {ids[2], b.GroupID}, {ids[3], rest}})
}

// archiveOnce restores buffer and ledger without the archive: events that are in the archive are sent
// again under the same group_id.
func archiveOnce(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	restore := backup(t, f, b)
	settle(t, f.Buffer, b, delivered(ids[:2]...), buffer.Outcome{Verdict: buffer.Dead, IDs: ids[2:], Attempts: 1, Error: "refused"})
	before := f.Archived(t)
	restore()
	b = takeOver(t, f.Buffer)
	equal(t, "events", b.IDs(), ids)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	after := f.Archived(t)
	equal(t, "what was archived before", after[:2], before)
	equal(t, "archive", archived(t, f), []Row{{ids[0], b.GroupID}, {ids[1], b.GroupID}, {ids[2], b.GroupID}})
}

// backup saves a batch's ledger row. The function that it returns puts row and events back, when the batch is gone.
func backup(t TB, f *Fixture, b *buffer.Lease) (restore func()) {
	t.Helper()
	row := ledgerOf(t, f, b.GroupID)
	f.Exec(t, fmt.Sprintf("CREATE TABLE saved AS SELECT * FROM outbox_batches WHERE group_id = '%s'", b.GroupID))
	group := "'" + b.GroupID.String() + "'"
	if row.Claim == "range" {
		group = "NULL"
	}
	return func() {
		t.Helper()
		for _, id := range b.IDs() {
			f.Exec(t, fmt.Sprintf(`INSERT INTO %s (id, topic, key, payload, headers, created_at, group_id)
				VALUES (%d, 'restored', 'k', '%d', '{}', '2020-01-02T03:04:05.678Z', %s)`, f.Table, id, id, group))
		}
		f.Exec(t, "INSERT INTO outbox_batches SELECT * FROM saved")
		f.ExpireLease(t, b.GroupID, time.Second)
	}
}

func archiveLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[:3]))
	b = lose(t, f, b, f.Buffer)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id = %d", f.Table, ids[1]))
	rest := buffer.NewGroupID()
	outcomes := []buffer.Outcome{delivered(ids[:3]...), {Verdict: buffer.Retry, IDs: ids[3:], GroupID: rest}}
	fails(t, "Settle in front of a lock", f.Buffer.Settle(t.Context(), b, outcomes), buffer.ErrLocked)
	equal(t, "archive: what was deleted", archived(t, f), []Row{{ids[0], b.GroupID}, {ids[2], b.GroupID}})
	tx.Rollback(t)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered()) // the rest
	b = lose(t, f, b, f.Buffer)
	settle(t, f.Buffer, b, delivered(b.Delivered...))
	empty(t, f)
	equal(t, "archive", archived(t, f), []Row{{ids[0], b.GroupID}, {ids[1], b.GroupID}, {ids[2], b.GroupID}, {ids[3], rest}})
}

func archiveMissing(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 10)
	f.Exec(t, "DROP TABLE outbox_archive")
	err := f.Buffer.Check(t.Context())
	fails(t, "Check", err, buffer.ErrNotReady)
	for _, want := range []string{"outbox_archive", "relay migrate"} {
		if !strings.Contains(err.Error(), want) {
			t.Fatalf("Check without the archive: the error does not say %q: %v", want, err)
		}
	}
	fails(t, "Settle", f.Buffer.Settle(t.Context(), b, []buffer.Outcome{delivered()}), buffer.ErrNotReady)
	equal(t, "rows left", rowIDs(t, f), ids)
	equal(t, "state", ledgerOf(t, f, b.GroupID).State, "leased")
}
