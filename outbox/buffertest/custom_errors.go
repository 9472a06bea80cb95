package buffertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var customErrorCases = []testCase{
	{name: "custom/reports projection errors", run: customErrors},
	{name: "custom/bad event does not block the others", run: customBad},
	{name: "custom/halving isolates the bad event", run: customHalved},
	{name: "custom/peek shows the events beside bad ones", run: customPeeked},
}

// wrong expects a batch of these events whose projection failed, and an error of one line that
// contains all the names.
func wrong(t *testing.T, b *buffer.Lease, ids []int64, names ...string) {
	t.Helper()
	equal(t, "events of a batch that cannot be projected", b.IDs(), ids)
	if b.ProjectErr == nil {
		t.Fatalf("a failed projection was not reported: %+v", b.Events)
	}
	equal(t, "events that can be sent", len(b.Events), 0)
	saysAll(t, b.ProjectErr, names)
}

func saysAll(t *testing.T, err error, names []string) {
	t.Helper()
	said := err.Error()
	for _, name := range names {
		if !strings.Contains(said, name) {
			t.Fatalf("the error does not name %s: %s", name, said)
		}
	}
	if strings.Contains(said, "\n") {
		t.Fatalf("the error has more than one line: %q", said)
	}
}

// wrongEvent expects that the projection failed for the event at bad alone, and an error of one
// line that contains all the names.
func wrongEvent(t *testing.T, b *buffer.Lease, ids []int64, bad int, names ...string) {
	t.Helper()
	equal(t, "events of a batch with one that cannot be sent", b.IDs(), ids)
	ok(t, "a batch with one event that cannot be sent", b.ProjectErr)
	for _, e := range b.Events {
		if e.Payload == nil {
			t.Fatalf("event %d has no payload: %+v", e.ID, e)
		}
	}
	equal(t, "rejected events", len(b.Rejected), 1)
	r := b.Rejected[0]
	equal(t, "rejected event", r.Event.ID, ids[bad])
	if errors.Is(r.Err, buffer.ErrNotProjected) || r.Event.Payload != nil || r.Event.Headers != nil {
		t.Fatalf("a rejected event has content: %+v", r)
	}
	saysAll(t, r.Err, names)
}

// overflows is 1 for every event but the bad one, for which it fails.
const overflows = `abs(CAST(CASE WHEN e.topic = 'bad' THEN -9223372036854775808 ELSE -1 END AS bigint))`

// customErrors: the projections fail for the event whose topic is bad.
func customErrors(t *testing.T, h Harness) {
	const rows = ` FROM {table} e WHERE e.group_id = {group}`
	for name, c := range map[string]struct {
		project string
		bad     outbox.Event
		says    []string // {id} is the bad event's
		event   bool     // the error is that event's
		is      error
	}{
		"an event twice": {
			project: `SELECT e.{id} AS id, e.payload AS payload FROM {table} e CROSS JOIN (SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3) AS times
			          WHERE e.group_id = {group} AND (times.n = 1 OR e.topic = 'bad')`, says: []string{"{id}", "twice"}, event: true,
		},
		"an event of no batch": {
			project: `SELECT CASE WHEN e.topic = 'bad' THEN {other} ELSE e.{id} END AS id, e.payload AS payload` + rows, says: []string{"10000"},
		},
		"no id":           {project: `SELECT CASE WHEN e.topic <> 'bad' THEN e.{id} END AS id, e.payload AS payload` + rows, says: []string{"id"}},
		"no payload":      {project: `SELECT e.{id} AS id, CASE WHEN e.topic <> 'bad' THEN e.payload END AS payload` + rows, says: []string{"{id}", "payload"}, event: true},
		"no such column":  {project: `SELECT e.{id} AS id, e.nonsense AS payload` + rows, says: []string{"nonsense"}},
		"no column id":    {project: `SELECT e.payload AS payload` + rows, says: []string{"id"}},
		"without payload": {project: `SELECT e.{id} AS id` + rows, says: []string{"payload"}},
		"no topic": {
			project: `SELECT e.{id} AS id, e.payload AS payload, CASE WHEN e.topic = 'bad' THEN '' ELSE e.topic END AS topic` + rows,
			says:    []string{"{id}", "topic"}, event: true,
		},
		"headers that are no object": {
			project: `SELECT e.{id} AS id, e.payload AS payload, e.headers AS headers` + rows,
			bad:     outbox.Event{Headers: outbox.Headers(`["a"]`)}, says: []string{"{id}", "headers"}, event: true,
		},
		"text that is no JSON": {
			project: `SELECT e.{id} AS id, CASE WHEN e.topic = 'bad' THEN '{no' ELSE '{}' END AS payload` + rows, says: []string{"{id}", "payload"}, event: true,
		},
		"an error in one row": {
			project: `SELECT e.{id} AS id, e.payload AS payload, CASE WHEN ` + overflows + ` = 1 THEN 'x' END AS topic` + rows, is: buffer.ErrEventData,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := h.Open(t, Options{Project: c.project})
			events := orders(3)
			c.bad.Topic, c.bad.Payload = "bad", events[1].Payload
			events[1] = c.bad
			ids := f.Insert(t, events...)
			says := slices.Clone(c.says)
			for i := range says {
				says[i] = strings.ReplaceAll(says[i], "{id}", fmt.Sprint(ids[1]))
			}
			if err := f.Buffer.Check(t.Context()); err != nil { // Check may find what fails for every batch
				fails(t, "Check", err, buffer.ErrNotReady)
				for _, name := range says {
					if !strings.Contains(err.Error(), name) {
						t.Fatalf("the error does not name %s: %v", name, err)
					}
				}
				return
			}
			expect := func(b *buffer.Lease) {
				t.Helper()
				if c.event {
					wrongEvent(t, b, ids, 1, says...)
					return
				}
				wrong(t, b, ids, says...)
				if c.is != nil {
					fails(t, "the projection", b.ProjectErr, c.is)
				}
			}
			if peeked := peek(t, f, 10); c.is != nil {
				wrongEvent(t, peeked, ids, 1)
			} else {
				expect(peeked)
			}
			b := claim(t, f.Buffer, 10)
			expect(b)
			equal(t, "state", ledgerOf(t, f, b.GroupID).State, "leased")
			ok(t, "Renew", f.Buffer.Renew(t.Context(), b, lease))
			settle(t, f.Buffer, b, retry(b, 0))
			expect(takeOver(t, f.Second(t)))
		})
	}
}

func customBad(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: `
		SELECT e.{id} AS id, e.key AS key, e.headers AS headers, CASE WHEN e.topic = 'bad' THEN NULL ELSE e.payload END AS payload
		FROM {table} e WHERE e.group_id = {group}`})
	events := orders(4)
	events[2].Topic, events[2].Key, events[2].Headers = "bad", text("k"), outbox.Headers(`{"a": "b"}`)
	ids := f.Insert(t, events...)
	b := claim(t, f.Buffer, 10)
	wrongEvent(t, b, ids, 2, fmt.Sprint(ids[2]))
	rest := buffer.NewGroupID()
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, IDs: ids[2:3], Attempts: 1, Error: "its projection failed"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[0], ids[1], ids[3]}, GroupID: rest})
	b = takeOver(t, f.Buffer)
	equal(t, "the rest", []any{b.GroupID, b.IDs()}, []any{rest, []int64{ids[0], ids[1], ids[3]}})
	equal(t, "rejected events", len(b.Rejected), 0)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	onlyRows(t, f, ids[2:3])
}

// onlyRows expects dead letters of these events alone, with no content but their rows.
func onlyRows(t *testing.T, f *Fixture, ids []int64) {
	t.Helper()
	for _, d := range f.Dead(t) {
		equal(t, "topic", d.Topic, named(f))
		if !json.Valid(d.Payload) {
			t.Fatalf("the payload of the dead letter of event %d is no JSON: %s", d.EventID, d.Payload)
		}
	}
	equal(t, "dead letters", deadIDs(t, f, isOpen), ids)
}

func customHalved(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: `
		SELECT e.{id} AS id, CASE WHEN ` + overflows + ` = 1 THEN '{}' END AS payload FROM {table} e WHERE e.group_id = {group}`})
	events := orders(4)
	events[2].Topic = "bad"
	ids := f.Insert(t, events...)
	b := claim(t, f.Buffer, 10)
	wrong(t, b, ids)
	left, right := buffer.NewGroupID(), buffer.NewGroupID()
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, IDs: ids[:2], GroupID: left}, buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: right})
	for range 2 {
		switch b = takeOver(t, f.Buffer); b.GroupID {
		case left:
			ok(t, "the half without the bad event", b.ProjectErr)
			settle(t, f.Buffer, b, delivered())
		default:
			wrong(t, b, ids[2:])
			settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "its projection failed"})
		}
	}
	empty(t, f)
	onlyRows(t, f, ids[2:])
}

func customPeeked(t *testing.T, h Harness) {
	f := h.Open(t, Options{Project: `
		SELECT e.{id} AS id, CASE WHEN ` + overflows + ` = 1 THEN '{}' END AS payload FROM {table} e WHERE e.group_id = {group}`})
	events := orders(7)
	f.Insert(t, events[:2]...)
	claim(t, f.Buffer, 2) // Peek skips claimed events
	events = events[2:]
	events[0].Topic, events[3].Topic = "bad", "bad"
	ids := f.Insert(t, events...)
	peeked := peek(t, f, 5)
	ok(t, "the projection of the batch", peeked.ProjectErr)
	equal(t, "all events", peeked.IDs(), ids)
	equal(t, "events that can be sent", peeked.Batch.IDs(), []int64{ids[1], ids[2], ids[4]})
	for _, e := range peeked.Events {
		equal(t, "payload", string(e.Payload), "{}")
	}
	for _, r := range peeked.Rejected {
		fails(t, "the projection of the event", r.Err, buffer.ErrEventData)
	}
	if peeked = peek(t, f, 1); !errors.Is(peeked.ProjectErr, buffer.ErrEventData) {
		t.Fatalf("the projection of a bad event alone: %v", peeked.ProjectErr)
	}
}
