package buffertest

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var customDeadCases = []testCase{
	{name: "custom/dead letter keeps the row and replay restores it", run: customReplayed},
	{name: "custom/replay leaves rejected rows open", deletesOnly: true, run: customUnique},
	{name: "custom/replay says why the table refuses a row", deletesOnly: true, run: customRefused},
	{name: "custom/never removes a group_id", run: customStamped},
	{name: "custom/archive has the projected payload", integerKeysOnly: true, run: customArchive},
}

func customReplayed(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	events := orders(4)
	events[1].Key, events[1].Headers = text(`a "key'`), outbox.Headers(`{"a": "b"}`)
	ids := insertWithParents(t, f, events...)
	f.Exec(t, "UPDATE "+f.Table+" SET seal = 'Ü 📦 \"\\ ''' WHERE id = "+fmt.Sprint(ids[1]))
	f.Exec(t, "UPDATE "+f.Table+" SET seal = '' WHERE id = "+fmt.Sprint(ids[2]))
	dropParents(t, f, ids[3])
	rows := func() (all []string) {
		for _, id := range ids {
			all = append(all, f.Row(t, id))
		}
		return all
	}
	before := rows()
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 3, Error: "refused"})
	empty(t, f)
	for i, d := range f.Dead(t) {
		e := b.AllEvents()[i]
		if !d.CreatedAt.Equal(e.CreatedAt) || (d.Headers == nil) != (e.Headers == nil) {
			t.Fatalf("dead letter: %+v, want %+v", d, e)
		}
		equal(t, "what was sent, in the dead letter", []any{d.EventID, d.Topic, d.Key, string(d.Payload), string(d.Headers), d.GroupID},
			[]any{e.ID, e.Topic, e.Key, string(e.Payload), string(e.Headers), b.GroupID})
	}
	f.Exec(t, fmt.Sprintf("INSERT INTO parents (id, name) VALUES (%d, 'orders.created')", ids[3]))
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 4)
	equal(t, "rows", rows(), before)
	again := takeOver(t, f.Buffer)
	if again.GroupID == b.GroupID {
		t.Fatalf("the events are back under the group_id they died under")
	}
	sameEvents(t, "replayed", again, true, ids, events)
	settle(t, f.Buffer, again, delivered())
	empty(t, f)
}

// customUnique: the application inserted a row that conflicts with a dead letter's row.
func customUnique(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	ids := insertWithParents(t, f, orders(3)...)
	for _, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE %s SET seal = 'of %d' WHERE id = %d", f.Table, id, id))
	}
	settle(t, f.Buffer, claim(t, f.Buffer, 10), buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	other := insertWithParents(t, f, orders(1)...)
	f.Exec(t, fmt.Sprintf("UPDATE %s SET seal = 'of %d' WHERE id = %d", f.Table, ids[0], other[0]))

	replay(t, f.Buffer, buffer.DeadFilter{}, 1, 1) // rows that cannot be replayed do not count against the limit
	equal(t, "events", takeOver(t, f.Buffer).IDs(), ids[1:2])
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	equal(t, "events", takeOver(t, f.Buffer).IDs(), ids[2:])
	untouched(t, f, "Replay of what does not go in", func() { replay(t, f.Buffer, buffer.DeadFilter{}, 10, 0) })
	equal(t, "dead letters open", deadIDs(t, f, isOpen), ids[:1])
	equal(t, "rows", rowIDs(t, f), []int64{ids[1], ids[2], other[0]})

	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 1)
	equal(t, "dead letters open", deadIDs(t, f, isOpen), []int64(nil))
}

var createdAt = regexp.MustCompile(`"created_at": ?"[^"]*"`)

// customRefused: a dead letter was edited into a row that the table refuses.
func customRefused(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	ids := insertWithParents(t, f, orders(4)...)
	settle(t, f.Buffer, claim(t, f.Buffer, 10), buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	letters, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	ok(t, "ListDead", err)
	broken := letters[2]
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), buffer.DeadEdit{
		ID: broken.ID, UUID: broken.UUID, Row: true, Old: broken.Row, New: createdAt.ReplaceAll(broken.Row, []byte(`"created_at":null`)),
	}))
	var refused []buffer.Refusal
	filter := buffer.DeadFilter{OnRefused: func(r buffer.Refusal) { refused = append(refused, r) }}
	replay(t, f.Buffer, filter, 10, 3)
	var back []int64
	for len(back) < 3 {
		back = append(back, takeOver(t, f.Buffer).IDs()...)
	}
	equal(t, "events", back, []int64{ids[0], ids[1], ids[3]})
	untouched(t, f, "Replay of what the table refuses", func() { replay(t, f.Buffer, filter, 10, 0) })
	if len(refused) == 0 {
		t.Fatalf("the refusal is not reported")
	}
	for _, r := range refused {
		equal(t, "refused", r.ID, broken.ID)
		if !strings.Contains(r.Reason, "created_at") || strings.Contains(r.Reason, "orders.created") {
			t.Fatalf("the reason is %q, want one that names the column and not the row", r.Reason)
		}
	}
}

// customStamped: an event that lost its stamp would be claimed under a new group_id, and the
// sink would not recognise it.
func customStamped(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	ids := insertWithParents(t, f, orders(6)...)
	stamped := func(after string) {
		t.Helper()
		for _, r := range f.Rows(t) {
			if r.GroupID == uuid.Nil {
				t.Fatalf("event %d has no group_id after %s", r.ID, after)
			}
		}
		claimNone(t, f.Buffer)
	}
	b := claim(t, f.Buffer, 10)
	stamped("a claim")
	settle(t, f.Buffer, b, retry(b, 0))
	stamped("a retry")
	b = takeOver(t, f.Buffer)
	settle(t, f.Buffer, b, delivered(ids[0]), buffer.Outcome{Verdict: buffer.Dead, IDs: ids[1:3], Attempts: 1, Error: "refused"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[3:], GroupID: buffer.NewGroupID()})
	stamped("a settle of parts")
	replay(t, f.Buffer, buffer.DeadFilter{}, 10, 2)
	stamped("a replay")
	for range 2 {
		b = takeOver(t, f.Buffer)
		ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, b.IDs()[:1]))
		b = lose(t, f, b, f.Buffer)
		rest := b.IDs()[1:]
		settle(t, f.Buffer, b, delivered(b.Delivered...), buffer.Outcome{Verdict: buffer.Retry, IDs: rest, GroupID: buffer.NewGroupID(), After: lease})
		stamped("a settle of a marked batch")
	}
	equal(t, "rows", rowIDs(t, f), []int64{ids[2], ids[4], ids[5]})
	_, err := f.Buffer.Repair(t.Context())
	ok(t, "Repair", err)
	stamped("a repair")
}

func customArchive(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true, Project: joined})
	ok(t, "Check", f.Buffer.Check(t.Context()))
	ids := insertWithParents(t, f, orders(3)...)
	f.Exec(t, "UPDATE parents SET name = 'by the parent'")
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[:1]))
	b = lose(t, f, b, f.Second(t))
	settle(t, f.Buffer, b, delivered(b.Delivered...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID()})
	b = takeOver(t, f.Buffer)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	all := f.Archived(t)
	equal(t, "events in the archive", len(all), 3)
	for i, a := range all {
		equal(t, "event in the archive", []any{a.ID, a.Topic, string(a.Payload)}, []any{ids[i], "by the parent", fmt.Sprintf(`{"order": %d}`, i)})
	}
}
