package buffertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var archiveReplayCases = []testCase{
	{name: "archive replay/events as they were, under new group_ids", relayTableOnly: true, run: archiveReplayed},
	{name: "archive replay/each event once", relayTableOnly: true, run: archiveReplayedOnce},
	{name: "archive replay/a window and topics", relayTableOnly: true, run: archiveReplayWindow},
	{name: "archive replay/an id that another event has now", relayTableOnly: true, run: archiveReplayReused},
	{name: "archive replay/until a time that has not come", relayTableOnly: true, run: archiveReplayUntil},
	{name: "archive replay/an event that died at a replay", relayTableOnly: true, run: archiveReplayDied},
	{name: "archive replay/in order by key", relayTableOnly: true, run: archiveReplayOrdered},
	{name: "archive replay/without an archive", relayTableOnly: true, run: archiveReplayNone},
}

// archiver is the buffer of a fixture.
func archiver(f *Fixture) buffer.Archiver { return f.Buffer.(buffer.Archiver) }

// expectReplayed expects these counts of a dry run, and of a replay.
func expectReplayed(t *testing.T, b buffer.Archiver, f buffer.ArchiveFilter, events, waiting, repeated int64) (until time.Time) {
	t.Helper()
	return expectReplayedOf(t, b, f, buffer.Replayed{Events: events, Waiting: waiting, Repeated: repeated})
}

func expectReplayedOf(t *testing.T, b buffer.Archiver, f buffer.ArchiveFilter, want buffer.Replayed) (until time.Time) {
	t.Helper()
	if f.BatchSize == 0 {
		f.BatchSize, f.PageSize = 3, 4
	}
	for _, dry := range []bool{true, false} {
		var last buffer.Replayed
		got, err := b.ReplayArchived(t.Context(), f, dry, func(r buffer.Replayed) { last = r })
		ok(t, "ReplayArchived", err)
		if until = got.Until; f.Until.IsZero() {
			about(t, "until", time.Since(until), 0)
		}
		want.Until = until
		equal(t, fmt.Sprintf("replayed (dry: %v)", dry), got, want)
		if want.Events > 0 {
			equal(t, "progress", last, got)
		}
	}
	return until
}

func deliverAll(t *testing.T, b buffer.Queue) (events []outbox.Event) {
	t.Helper()
	for {
		batch, err := takeOverAny(t.Context(), b)
		ok(t, "TakeOver", err)
		if batch == nil {
			return events
		}
		equal(t, "attempts and outages", batch.Attempts+batch.Outages, 0)
		events = append(events, batch.Events...)
		settle(t, b, batch, delivered())
	}
}

func archiveReplayed(t *testing.T, h Harness) {
	for _, opt := range []Options{{Archive: true}, {Archive: true, Bytes: true}} {
		f := h.Open(t, opt)
		f.Insert(t, outbox.Event{Topic: "orders.größe", Key: text("customer-7"), Payload: []byte(`{"a": "Ü"}`), Headers: outbox.Headers(`{"trace": "00-ab"}`)},
			outbox.Event{Topic: "t", Payload: []byte(`1`)}, outbox.Event{Topic: "t", Key: text(""), Payload: []byte(`null`)}, outbox.Event{Topic: "t", Payload: []byte(`4`)})
		first := claim(t, f.Buffer, 100)
		settle(t, f.Buffer, first, delivered())
		before := f.Archived(t)
		expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 4, 0, 0)
		fresh := f.Insert(t, orders(1)...)
		claimed := claim(t, f.Buffer, 100)
		equal(t, "a claim beside them", claimed.IDs(), fresh)
		settle(t, f.Buffer, claimed, delivered())
		audited, err := f.Buffer.(buffer.Auditor).Audit(t.Context())
		ok(t, "Audit", err)
		if !audited.Agrees() {
			t.Errorf("after a replay, the audit is %+v", audited)
		}
		batch := takeOver(t, f.Buffer)
		equal(t, "events of a batch", batch.Len(), 3)
		if batch.GroupID == first.GroupID {
			t.Error("the batch has the group_id of before")
		}
		settle(t, f.Buffer, batch, delivered())
		for i, e := range append(batch.Events, deliverAll(t, f.Buffer)...) {
			e.UUID = first.Events[i].UUID
			equal(t, "event", e, first.Events[i])
		}
		empty(t, f)
		equal(t, "rows of the archive", len(f.Archived(t)), 2*len(before)+1)
	}
}

func archiveReplayedOnce(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	f.Insert(t, orders(10)...)
	settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
	until := expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 10, 0, 0)
	// A replay that is continued, and one that is begun again, beside batches that wait.
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Until: until}, 0, 10, 0)
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 0, 10, 0)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Until: until}, 0, 7, 3)
	equal(t, "events", len(deliverAll(t, f.Buffer)), 7)
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Until: until}, 0, 0, 10)
	// Another replay of all: of two rows of an event, the last one counts.
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 10, 0, 0)
	equal(t, "events", len(deliverAll(t, f.Buffer)), 10)
	empty(t, f)
	equal(t, "rows of the archive", len(f.Archived(t)), 30)
}

func archiveReplayWindow(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	for i, topic := range []string{"a.1", "b.1", "a.2", "b.2"} {
		f.Insert(t, outbox.Event{Topic: topic, Payload: []byte("1")})
		settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
		f.Exec(t, fmt.Sprintf("UPDATE outbox_archive SET archived_at = '2026-01-0%dT00:00:00.000Z' WHERE topic = '%s'", i+1, topic))
	}
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	topics := func(events []outbox.Event) string {
		var all []string
		for _, e := range events {
			all = append(all, e.Topic)
		}
		return strings.Join(all, " ")
	}
	a, err := buffer.ParsePatterns([]string{"a.*"})
	ok(t, "ParsePatterns", err)
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Since: day(5)}, 0, 0, 0)
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Since: day(2), Until: day(3)}, 1, 0, 0)
	equal(t, "topics", topics(deliverAll(t, f.Buffer)), "b.1")
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Since: day(1), Until: day(4), Topics: a}, 2, 0, 0)
	equal(t, "topics", topics(deliverAll(t, f.Buffer)), "a.1 a.2")
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{Until: day(5)}, 1, 0, 3)
	equal(t, "topics", topics(deliverAll(t, f.Buffer)), "b.2")
}

// The id of an archived event can be that of another event by now. It stays in the archive until that is delivered.
func archiveReplayReused(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(2)...)
	settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
	f.Exec(t, "UPDATE outbox_archive SET created_at = '2026-01-01T00:00:00.000Z', topic = 'old'")
	f.Exec(t, fmt.Sprintf("INSERT INTO %s (id, topic, payload, created_at) VALUES (%d, 'new', '1', '2026-01-02T00:00:00.000Z')", f.Table, ids[0]))
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 1, 1, 0)
	equal(t, "events", len(deliverAll(t, f.Buffer)), 1)
}

// An event that died at a replay is not sent by the next one: the replay of its dead letter sends it.
func archiveReplayDied(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	f.Insert(t, orders(2)...)
	settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 2, 0, 0)
	batch := takeOver(t, f.Buffer)
	settle(t, f.Buffer, batch, buffer.Outcome{Verdict: buffer.Delivered, IDs: batch.IDs()[:1]}, buffer.Outcome{Verdict: buffer.Dead, IDs: batch.IDs()[1:], Error: "no"})
	empty(t, f)
	expectReplayedOf(t, archiver(f), buffer.ArchiveFilter{}, buffer.Replayed{Events: 1, Dead: 1})
	equal(t, "events", len(deliverAll(t, f.Buffer)), 1)
	replayed, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Replay", err)
	equal(t, "replayed dead letters", replayed, 1)
	equal(t, "events", len(deliverAll(t, f.Buffer)), 1)
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 2, 0, 0)
}

// What is put back is archived again. It is not put back once more, although the end of the window has not come.
func archiveReplayUntil(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	f.Insert(t, orders(10)...)
	settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
	rounds := 0
	got, err := archiver(f).ReplayArchived(t.Context(), buffer.ArchiveFilter{Until: time.Now().Add(time.Hour), BatchSize: 3, PageSize: 4}, false, func(buffer.Replayed) {
		if rounds++; rounds > 10 {
			t.Fatal("the replay does not end")
		}
		deliverAll(t, f.Buffer)
	})
	ok(t, "ReplayArchived", err)
	equal(t, "events put back", got.Events, int64(10))
	about(t, "until", time.Since(got.Until), 0)
	equal(t, "rows of the archive", len(f.Archived(t)), 20)
}

func archiveReplayOrdered(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true, Ordered: true})
	event := func(key string) outbox.Event { return outbox.Event{Topic: "t", Key: text(key), Payload: []byte("1")} }
	f.Insert(t, event("a"), event("b"))
	settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
	expectReplayed(t, archiver(f), buffer.ArchiveFilter{}, 2, 0, 0)
	fresh := f.Insert(t, event("a"), event("c"))
	b := claim(t, f.Buffer, 100)
	equal(t, "a claim of keys that are free", b.IDs(), fresh[1:])
	settle(t, f.Buffer, b, delivered())
	equal(t, "events", len(deliverAll(t, f.Buffer)), 2)
	settle(t, f.Buffer, claim(t, f.Buffer, 100), delivered())
	empty(t, f)
}

func archiveReplayNone(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	_, err := archiver(f).ReplayArchived(t.Context(), buffer.ArchiveFilter{BatchSize: 1}, false, nil)
	fails(t, "ReplayArchived", err, buffer.ErrNoArchive)
}
