package buffertest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var editCases = []testCase{
	{name: "edit/replay sends the new text", deletesOnly: true, run: editReplayed},
	{name: "edit/replaces headers too", relayTableOnly: true, run: editHeaders},
	{name: "edit/replaces opaque bytes", relayTableOnly: true, run: editBytes},
	{name: "edit/replaces all open dead letters of an event", deletesOnly: true, integerKeysOnly: true, run: editTwoDead},
	{name: "edit/refuses what was closed or changed", deletesOnly: true, run: editChanged},
	{name: "edit/refuses an event that is in the buffer", deletesOnly: true, run: editInBuffer},
	{name: "edit/refuses the wrong part", run: editWrongPart},
	{name: "edit/beside a replay", deletesOnly: true, run: editBesideReplay},
}

var sinksEditCases = []sinksTestCase{
	{name: "edit/only once no sink waits for the event", run: editRouted},
	{name: "edit/all sinks where the event is dead", run: editRoutedTwice},
	{name: "edit/beside a replay", run: editRoutedBesideReplay},
}

// anEdit returns an edit of a dead letter: its topic in a custom table, otherwise its payload.
func anEdit(t *testing.T, h Harness, b buffer.Buffer, id int64) buffer.DeadEdit {
	t.Helper()
	events, err := b.ListDead(t.Context(), buffer.DeadFilter{IDs: []int64{id}}, nil, 1)
	ok(t, "ListDead", err)
	equal(t, "dead letters", len(events), 1)
	e := buffer.DeadEdit{ID: id, Row: h.Custom, Old: events[0].Payload, New: []byte(`{"order":12345678901234567890.10,"größe":"<&>"}`)}
	if h.Custom {
		e.Old, e.New = events[0].Row, bytes.Replace(events[0].Row, []byte("orders.created"), []byte("orders.größe"), 1)
	}
	return e
}

// wantEdited expects that a replay of an event puts back what an edit says, once.
func wantEdited(t *testing.T, f *Fixture, e buffer.DeadEdit) {
	t.Helper()
	replay(t, f.Buffer, buffer.DeadFilter{IDs: []int64{e.ID}}, 1, 1)
	wantPutBack(t, f, e, true)
}

// wantPutBack expects that an event is in the buffer, as an edit says or as before it, and delivers it.
func wantPutBack(t *testing.T, f *Fixture, e buffer.DeadEdit, isEdited bool) {
	t.Helper()
	b := takeOver(t, f.Buffer)
	equal(t, "events", b.IDs(), []int64{e.ID})
	switch {
	case e.Row && isEdited:
		equal(t, "topic", b.Events[0].Topic, "orders.größe")
	case e.Row:
		equal(t, "topic", b.Events[0].Topic, "orders.created")
	case isEdited:
		equal(t, "payload", string(b.Events[0].Payload), string(e.New))
	default:
		equal(t, "payload", string(b.Events[0].Payload), string(e.Old))
	}
	settle(t, f.Buffer, b, delivered())
}

func editReplayed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	b := bury(t, f, "refused", orders(3)...)
	bury(t, f.Neighbour(t), "refused", orders(3)...)
	e := anEdit(t, h, f.Buffer, b.IDs()[1])
	before := f.Dead(t)
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), e))
	after := f.Dead(t)
	for i := range after {
		if !h.Custom && after[i].EventID == e.ID && after[i].Pipeline == f.Pipeline {
			equal(t, "payload of the dead letter", string(after[i].Payload), string(e.New))
			after[i].Payload = before[i].Payload
		}
	}
	equal(t, "dead letters but for the payload", after, before)
	equal(t, "the next edit starts from", string(anEdit(t, h, f.Buffer, e.ID).Old), string(e.New))
	wantEdited(t, f, e)
	empty(t, f)
}

func editHeaders(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	with := outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers(`{"a": "1"}`)}
	id := bury(t, f, "refused", with, with).FirstID
	edit := func(old, headers string) buffer.DeadEdit {
		e := buffer.DeadEdit{ID: id, Old: []byte("1"), New: []byte("1"), Headers: true}
		if old != "" {
			e.OldHeaders = outbox.Headers(old)
		}
		if headers != "" {
			e.NewHeaders = outbox.Headers(headers)
		}
		return e
	}
	untouched(t, f, "an edit of other headers", func() {
		fails(t, "EditDead", f.Buffer.EditDead(t.Context(), edit(`{"a":"1"}`, `{"a":"2"}`)), buffer.ErrDeadChanged)
		fails(t, "EditDead", f.Buffer.EditDead(t.Context(), edit("", `{"a":"2"}`)), buffer.ErrDeadChanged)
	})
	want := func(headers string) {
		t.Helper()
		events, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
		ok(t, "ListDead", err)
		equal(t, "headers", string(events[0].Headers), headers)
		equal(t, "headers of the other one", string(events[1].Headers), string(with.Headers))
	}
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), edit(`{"a": "1"}`, "")))
	want("")
	untouched(t, f, "an edit of headers that are not there any more", func() {
		fails(t, "EditDead", f.Buffer.EditDead(t.Context(), edit(`{"a": "1"}`, "")), buffer.ErrDeadChanged)
	})
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), edit("", `{"größe":"<&>"}`)))
	want(`{"größe":"<&>"}`)
	ok(t, "EditDead of the payload", f.Buffer.EditDead(t.Context(), buffer.DeadEdit{ID: id, Old: []byte("1"), New: []byte("2")}))
	want(`{"größe":"<&>"}`)
	replay(t, f.Buffer, buffer.DeadFilter{IDs: []int64{id}}, 1, 1)
	b := takeOver(t, f.Buffer)
	equal(t, "headers", string(b.Events[0].Headers), `{"größe":"<&>"}`)
	equal(t, "payload", string(b.Events[0].Payload), "2")
	settle(t, f.Buffer, b, delivered())
}

func editBytes(t *testing.T, h Harness) {
	f := h.Open(t, Options{Bytes: true})
	b := bury(t, f, "refused", outbox.Event{Topic: "t", Payload: []byte(`{"a": 1}`)}, outbox.Event{Topic: "t", Payload: []byte{0, 0xff}})
	ids := b.IDs()
	e := buffer.DeadEdit{ID: ids[0], Old: b.Events[0].Payload, New: []byte(`{"a":2}`)}
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), e))
	wantEdited(t, f, e)
	e = buffer.DeadEdit{ID: ids[1], Old: b.Events[1].Payload, New: []byte{1, 0, 0xfe, '\\'}}
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), e))
	wantEdited(t, f, e)
}

func editTwoDead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	first, second := bury(t, f, "refused", orders(1)...), bury(t, f, "refused", orders(1)...)
	id := first.FirstID
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET event_id = %d WHERE event_id = %d", id, second.FirstID))
	e := anEdit(t, h, f.Buffer, id)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET payload = '2', event_row = '{}' WHERE group_id = '%s'", second.GroupID))
	untouched(t, f, "an edit of one that was edited in part", func() {
		fails(t, "EditDead", f.Buffer.EditDead(t.Context(), e), buffer.ErrDeadChanged)
	})
	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET payload = (SELECT payload FROM outbox_dead_letters WHERE group_id = '%s'), "+
		"event_row = (SELECT event_row FROM outbox_dead_letters WHERE group_id = '%[1]s') WHERE group_id = '%s'", first.GroupID, second.GroupID))
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), e))
	wantEdited(t, f, e)
	wantEdited(t, f, e)
}

func editChanged(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(3)...).IDs()
	edits := []buffer.DeadEdit{anEdit(t, h, f.Buffer, ids[0]), anEdit(t, h, f.Buffer, ids[1]), anEdit(t, h, f.Buffer, ids[2])}
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[:1]}, 1, 1)
	replay(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2]}, 1, 1)
	unknown, stale := edits[2], edits[2]
	unknown.ID += 1000
	stale.Old = append([]byte(" "), stale.Old...)
	untouched(t, f, "an edit of what was closed or changed", func() {
		for _, e := range append(edits[:2:2], unknown, stale) {
			fails(t, "EditDead", f.Buffer.EditDead(t.Context(), e), buffer.ErrDeadChanged)
		}
		fails(t, "EditDead of another pipeline", f.Neighbour(t).Buffer.EditDead(t.Context(), edits[2]), buffer.ErrDeadChanged)
	})
	again := edits[2]
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), edits[2]))
	untouched(t, f, "the same edit again", func() {
		fails(t, "EditDead", f.Buffer.EditDead(t.Context(), again), buffer.ErrDeadChanged)
	})
}

func editInBuffer(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	id := bury(t, f, "refused", orders(1)...).FirstID
	e := anEdit(t, h, f.Buffer, id)
	f.Exec(t, fmt.Sprintf("INSERT INTO %s (id, topic, payload) VALUES (%d, 'restored', '1')", f.Table, id))
	untouched(t, f, "an edit of what is in the buffer", func() {
		fails(t, "EditDead", f.Buffer.EditDead(t.Context(), e), buffer.ErrEventWaits)
	})
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, id))
	ok(t, "EditDead", f.Buffer.EditDead(t.Context(), e))
	wantEdited(t, f, e)
}

func editWrongPart(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	e := anEdit(t, h, f.Buffer, bury(t, f, "refused", orders(1)...).FirstID)
	e.Row = !e.Row
	untouched(t, f, "an edit of the wrong part", func() {
		if err := f.Buffer.EditDead(t.Context(), e); err == nil {
			t.Fatal("EditDead: got no error")
		}
	})
}

// buryAt makes a dead letter of what a sink takes over.
func buryAt(t *testing.T, b RoutedBuffer, sink string) {
	t.Helper()
	batch, _ := takeOf(t, b, sink)
	ok(t, "Settle", b.Sink(sink).Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}}))
}

// expectPayload delivers what a sink takes over, one event with a payload.
func expectPayload(t *testing.T, b RoutedBuffer, sink, want string) {
	t.Helper()
	batch, _ := takeOf(t, b, sink)
	if batch == nil || len(batch.Events) != 1 {
		t.Fatalf("sink %s got %+v, want one event", sink, batch)
	}
	equal(t, "payload at "+sink, string(batch.Events[0].Payload), want)
	deliver(t, b, sink, batch)
}

// The payload of an event that another sink waits for stays as it is. Once that has it, only the sink of the dead letter gets the new one.
func editRouted(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "bus", BatchSize: 10}, buffer.Route{Sink: "crm", BatchSize: 10})
	p.topics(t, "a.1")
	routeTo(t, b, "[bus crm]")
	buryAt(t, b, "crm")
	letters, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	ok(t, "ListDead", err)
	equal(t, "dead letters", len(letters), 1)
	e := buffer.DeadEdit{ID: letters[0].ID, Old: letters[0].Payload, New: []byte(`{"new":1}`)}
	fails(t, "EditDead", b.EditDead(t.Context(), e), buffer.ErrEventWaits)
	expectPayload(t, b, "bus", string(e.Old))
	ok(t, "EditDead", b.EditDead(t.Context(), e))
	n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Replay", err)
	equal(t, "dead letters replayed", n, 1)
	expectPayload(t, b, "crm", `{"new":1}`)
	expectDrained(t, b, "bus", "")
	p.expectEmpty(t)
}

func editRoutedTwice(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "bus", BatchSize: 10}, buffer.Route{Sink: "crm", BatchSize: 10})
	p.topics(t, "a.1")
	routeTo(t, b, "[bus crm]")
	buryAt(t, b, "crm")
	buryAt(t, b, "bus")
	letters, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	ok(t, "ListDead", err)
	equal(t, "dead letters", len(letters), 2)
	e := buffer.DeadEdit{ID: letters[0].ID, Old: letters[0].Payload, New: []byte(`{"new":1}`)}
	ok(t, "EditDead", b.EditDead(t.Context(), e))
	n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Replay", err)
	equal(t, "dead letters replayed", n, 2)
	expectPayload(t, b, "crm", `{"new":1}`)
	expectPayload(t, b, "bus", `{"new":1}`)
	p.expectEmpty(t)
}

// besideReplays is how often an edit and a replay start together.
const besideReplays = 10

// editBeside runs an edit beside a replay of the same dead letters, and reports whether it changed them. If not, the replay was first. Which of them
// starts first depends on the round.
func editBeside(t *testing.T, round int, editing, replaying buffer.Buffer, e buffer.DeadEdit, letters int) (isEdited bool) {
	t.Helper()
	var (
		beside            sync.WaitGroup
		n                 int
		editErr, replayed error
	)
	edit := func() { editErr = editing.EditDead(t.Context(), e) }
	replay := func() { n, replayed = replaying.Replay(t.Context(), buffer.DeadFilter{}, 10) }
	if round%2 == 0 {
		beside.Go(replay)
		edit()
	} else {
		beside.Go(edit)
		replay()
	}
	beside.Wait()
	ok(t, "Replay", replayed)
	equal(t, "dead letters replayed", n, letters)
	if editErr != nil && !errors.Is(editErr, buffer.ErrDeadChanged) {
		t.Fatalf("EditDead: %v", editErr)
	}
	return editErr == nil
}

// Of an edit and a replay of the same event, one is first: the event goes back once, with the new text if the edit says that it changed it.
func editBesideReplay(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	second := f.Second(t)
	for round := range besideReplays {
		e := anEdit(t, h, f.Buffer, bury(t, f, "refused", orders(1)...).IDs()[0])
		wantPutBack(t, f, e, editBeside(t, round, f.Buffer, second, e, 1))
		empty(t, f)
	}
}

func editRoutedBesideReplay(t *testing.T, p *sinksCase) {
	routes := []buffer.Route{{Sink: "bus", BatchSize: 10}, {Sink: "crm", BatchSize: 10}}
	b := p.open(t, routes...)
	second := p.Buffer(t, p.mode, routes...)
	for round := range besideReplays {
		p.topics(t, "a.1")
		routeTo(t, b, "[bus crm]")
		buryAt(t, b, "crm")
		buryAt(t, b, "bus")
		letters, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
		ok(t, "ListDead", err)
		equal(t, "dead letters", len(letters), 2)
		e := buffer.DeadEdit{ID: letters[0].ID, Old: letters[0].Payload, New: []byte(`{"new":1}`)}
		want := string(e.Old)
		if editBeside(t, round, b, second, e, 2) {
			want = string(e.New)
		}
		expectPayload(t, b, "crm", want)
		expectPayload(t, b, "bus", want)
		p.expectEmpty(t)
	}
}
