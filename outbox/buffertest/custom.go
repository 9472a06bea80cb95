package buffertest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var customCases = []testCase{
	{name: "custom/projection fills the fields", run: customFields},
	{name: "custom/event without a row is not projected", run: customNotProjected},
	{name: "custom/takeover projects again", run: customAgain},
	{name: "custom/peek projects and claims nothing", run: customPeek},
	{name: "custom/check names missing columns", run: customCheck},
}

// joined projects only events that have a parent.
const joined = `
SELECT e.{id} AS id, p.name AS topic, e.key AS key, e.payload AS payload, e.headers AS headers
FROM {events} e JOIN parents p ON p.id = e.parent_id
ORDER BY e.id DESC`

// insertWithParents commits events, each with a parent of the event's id and named as the
// event's topic.
func insertWithParents(t TB, f *Fixture, events ...outbox.Event) []int64 {
	t.Helper()
	ids := f.Insert(t, events...)
	for i, id := range ids {
		f.Exec(t, fmt.Sprintf("INSERT INTO parents (id, name) VALUES (%d, '%s')", id, events[i].Topic))
		f.Exec(t, fmt.Sprintf("UPDATE %s SET parent_id = id WHERE id = %d", f.Table, id))
	}
	return ids
}

// dropParents deletes parents.
func dropParents(t TB, f *Fixture, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		f.Exec(t, fmt.Sprintf("DELETE FROM parents WHERE id = %d", id))
	}
}

func customFields(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	events := orders(3)
	events[0].Key, events[0].Headers = text("k"), outbox.Headers(`{"a": "b"}`)
	ids := insertWithParents(t, f, events...)
	b := claim(t, f.Buffer, 10)
	sameEvents(t, "claimed", b, true, ids, events)
	if !b.Projected || b.ProjectErr != nil || b.Rejected != nil {
		t.Fatalf("a projected batch has Projected %t, ProjectErr %v and rejected events %+v", b.Projected, b.ProjectErr, b.Rejected)
	}
	settle(t, f.Buffer, b, delivered())
	empty(t, f)

	f = h.Open(t, Options{Project: `SELECT e.{id} AS id, e.payload AS payload FROM {table} e WHERE e.group_id = {group}`})
	ids = f.Insert(t, events...)
	for i := range events {
		events[i].Topic, events[i].Key, events[i].Headers = named(f), nil, nil
	}
	sameEvents(t, "claimed, with the least there may be", claim(t, f.Buffer, 10), true, ids, events)
}

// named returns the table's name, which is the topic of an event that has none.
func named(f *Fixture) string { return strings.ReplaceAll(strings.Trim(f.Table, `"`), `""`, `"`) }

func customNotProjected(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	ids := insertWithParents(t, f, orders(4)...)
	f.Exec(t, fmt.Sprintf("UPDATE %s SET seal = 'größe' WHERE id = %d", f.Table, ids[2]))
	dropParents(t, f, ids[0], ids[2])
	b := claim(t, f.Buffer, 10)
	ok(t, "the projection", b.ProjectErr)
	equal(t, "events", b.IDs(), ids)
	equal(t, "PayloadIsJSON", b.PayloadIsJSON, true)
	notProjected(t, b, ids[0], ids[2])
	e := b.Rejected[1].Event
	equal(t, "topic of an event without a parent", e.Topic, named(f))
	var row struct {
		ID   int64  `json:"id"`
		Seal string `json:"seal"`
	}
	ok(t, "the row as JSON", json.Unmarshal(e.Payload, &row))
	equal(t, "id and seal", []any{row.ID, row.Seal}, []any{ids[2], "größe"})

	rest := buffer.NewGroupID()
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, IDs: []int64{ids[0], ids[2]}, Error: buffer.ErrNotProjected.Error()},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[1], ids[3]}, GroupID: rest})
	dead := f.Dead(t)
	equal(t, "dead letters", len(dead), 2)
	equal(t, "dead letter", []any{dead[1].EventID, dead[1].Topic, dead[1].Error}, []any{ids[2], named(f), buffer.ErrNotProjected.Error()})
	ok(t, "the row as JSON", json.Unmarshal(dead[1].Payload, &row))
	b = takeOver(t, f.Buffer)
	equal(t, "the rest", []any{b.GroupID, b.IDs()}, []any{rest, []int64{ids[1], ids[3]}})
	dropParents(t, f, ids...)
	b = lose(t, f, b, f.Second(t))
	notProjected(t, b, ids[1], ids[3])
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Error: buffer.ErrNotProjected.Error()})
	empty(t, f)
}

// notProjected expects that the projection returned no row for these events of the batch alone.
func notProjected(t *testing.T, b *buffer.Lease, ids ...int64) {
	t.Helper()
	var got []int64
	for _, r := range b.Rejected {
		fails(t, "the rejection", r.Err, buffer.ErrNotProjected)
		got = append(got, r.Event.ID)
	}
	equal(t, "events that are not projected", got, ids)
	equal(t, "events", len(b.Events), b.Len()-len(ids))
	equal(t, "first and last id", []int64{b.FirstID, b.LastID}, []int64{b.IDs()[0], b.IDs()[b.Len()-1]})
}

func customAgain(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	ids := insertWithParents(t, f, orders(2)...)
	b := claim(t, f.Buffer, 10)
	f.Exec(t, "UPDATE parents SET name = 'changed'")
	b = lose(t, f, b, f.Buffer)
	equal(t, "Projected", b.Projected, true)
	equal(t, "topics", []string{b.Events[0].Topic, b.Events[1].Topic}, []string{"changed", "changed"})

	f.Exec(t, "ALTER TABLE parents RENAME TO elsewhere")
	b = lose(t, f, b, f.Buffer)
	wrong(t, b, ids, "parents")
	f.Exec(t, "ALTER TABLE elsewhere RENAME TO parents")
	settle(t, f.Buffer, b, retry(b, 0))
	b = takeOver(t, f.Buffer)
	ok(t, "the projection that was repaired", b.ProjectErr)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func customPeek(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: joined})
	ids := insertWithParents(t, f, orders(4)...)
	dropParents(t, f, ids[1])
	b := peek(t, f, 3)
	equal(t, "Projected", b.Projected, true)
	equal(t, "events", b.IDs(), ids[:3])
	notProjected(t, b, ids[1])
	equal(t, "topic", b.Events[0].Topic, "orders.created")
	f.Exec(t, "DROP TABLE parents")
	wrong(t, peek(t, f, 2), ids[:2], "parents")
}

func customCheck(t *testing.T, h Harness) {
	for name, c := range map[string]struct {
		project, exec string
		says          []string
	}{
		"group_id":          {exec: "ALTER TABLE %s DROP COLUMN group_id", says: []string{"%s", "ADD COLUMN group_id"}},
		"the table":         {exec: "DROP TABLE %s", says: []string{"%s"}},
		"the ledger":        {exec: "DROP TABLE outbox_batches", says: []string{"outbox_batches", "relay migrate"}},
		"a parent":          {project: joined, exec: "DROP TABLE parents", says: []string{"parents"}},
		"a column payload":  {project: "SELECT e.{id} AS id FROM {table} e WHERE group_id = {group}", says: []string{"payload"}},
		"a column id":       {project: "SELECT payload AS payload FROM {table} WHERE group_id = {group}", says: []string{"id"}},
		"the parameter":     {project: "SELECT e.{id} AS id, e.payload AS payload FROM {table} e", says: []string{"parameter"}},
		"no error, it runs": {project: joined},
	} {
		f := h.Open(t, Options{Project: c.project})
		fill := func(s string) string { return strings.ReplaceAll(s, "%s", f.Table) }
		if c.exec != "" {
			f.Exec(t, fill(c.exec))
		}
		err := f.Buffer.Check(t.Context())
		problems := 0
		for _, found := range f.Buffer.Diagnose(t.Context()) {
			if found.Level == buffer.LevelError {
				problems++
			}
		}
		if c.says == nil {
			ok(t, "Check", err)
			equal(t, "problems", problems, 0)
			continue
		}
		fails(t, "Check without "+name, err, buffer.ErrNotReady)
		if problems == 0 {
			t.Fatalf("Diagnose without %s finds no problem", name)
		}
		for _, want := range c.says {
			if !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), strings.ReplaceAll(fill(want), `"`, "")) {
				t.Fatalf("Check without %s: the error does not say %q: %v", name, fill(want), err)
			}
		}
	}
}
