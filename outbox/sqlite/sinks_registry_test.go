package sqlite_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// expectSinks compares the registry: name, batches and events of each.
func expectSinks(t *testing.T, b *sqlite.Buffer, want ...string) []buffer.RegisteredSink {
	t.Helper()
	sinks, err := b.Sinks(t.Context())
	testkit.NoError(t, err)
	var got []string
	for i := range sinks {
		s := &sinks[i]
		text := fmt.Sprintf("%s %d/%d", s.Name, s.Batches, s.Events)
		if !s.DroppedAt.IsZero() {
			text += " dropped"
		}
		got = append(got, text)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("sinks are %q, want %q", got, want)
	}
	return sinks
}

func expectEmpty(t *testing.T, p *testDB) {
	t.Helper()
	for _, table := range []string{"outbox_events", "outbox_batches"} {
		if n := countRows(t, p, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

func routeAll(t *testing.T, b *sqlite.Buffer, sinks string) {
	t.Helper()
	routed, err := b.Route(t.Context(), 100, lease, keepNone)
	testkit.NoError(t, err)
	if routed == nil || fmt.Sprint(routed.Sinks) != sinks {
		t.Fatalf("routed %+v, want to %s", routed, sinks)
	}
}

func endAll(t *testing.T, b *sqlite.Buffer) buffer.Ended {
	t.Helper()
	ended, err := b.EndDropped(t.Context(), 100)
	testkit.NoError(t, err)
	return ended
}

var dropSinks = []buffer.Route{
	{Sink: "all", Match: []string{"a.*"}, BatchSize: 100},
	{Sink: "crm", BatchSize: 100},
}

// TestDropSink: what waits for a dropped sink ends with nothing sent, and its events are deleted with their last sink.
func TestDropSink(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b, old := openSinks(t, p, "first", mode, dropSinks...), openSinks(t, p, "old", mode, dropSinks...)
		insertTopics(t, p, "a.x", "b.x")
		routeAll(t, b, "[all crm]")
		testkit.NoError(t, old.RegisterSinks(t.Context()))
		leased := takeOverOf(t, old.Sink("crm"), "a.x", "b.x")
		insertTopics(t, p, "b.y")
		routeAll(t, b, "[crm]")
		expectSinks(t, b, "all 1/1", "crm 2/3")
		testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
		if ended := endAll(t, b); ended != (buffer.Ended{Batches: 1, Events: 1}) {
			t.Errorf("ended %+v, want the waiting batch", ended)
		}
		expectSinks(t, b, "all 1/1", "crm 1/2 dropped")

		// An old relay, which has not seen the drop, routes nothing to it, and what it puts back is ended by a later sweep.
		insertTopics(t, p, "a.z")
		routeAll(t, old, "[all]")
		testkit.NoError(t, old.Sink("crm").Settle(t.Context(), leased, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: leased.GroupID, Attempts: 1, After: lease, Error: "no"}}))
		if ended := endAll(t, old); ended != (buffer.Ended{Batches: 1, Events: 2}) {
			t.Errorf("ended %+v, want what was put back", ended)
		}
		takeOverOf(t, old.Sink("crm"))
		for _, topic := range []string{"a.x", "a.z"} {
			deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), topic))
		}
		expectEmpty(t, p)
		if n := countRows(t, p, "outbox_dead_letters"); n != 0 {
			t.Errorf("there are %d dead letters", n)
		}

		// A start does not take the drop back; restore does.
		testkit.NoError(t, openSinks(t, p, "restarted", mode, dropSinks...).RegisterSinks(t.Context()))
		insertTopics(t, p, "a.1")
		routeAll(t, b, "[all]")
		testkit.NoError(t, b.RestoreSink(t.Context(), "crm"))
		insertTopics(t, p, "a.2")
		routeAll(t, old, "[all crm]")
	})
}

// TestDropSink_Dead: the events become dead letters of the sink, and are deleted with their last sink.
func TestDropSink_Dead(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, dropSinks...)
		insertTopics(t, p, "a.x", "b.x")
		routeAll(t, b, "[all crm]")
		testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDead))
		if ended := endAll(t, b); ended != (buffer.Ended{Batches: 1, Events: 2}) {
			t.Errorf("ended %+v", ended)
		}
		dead := texts(t, p, "SELECT sink || ' ' || topic || ': ' || error FROM outbox_dead_letters ORDER BY event_id")
		if fmt.Sprint(dead) != "[crm a.x: sink crm was dropped crm b.x: sink crm was dropped]" {
			t.Errorf("dead letters: %q", dead)
		}
		if n := countRows(t, p, "outbox_events"); n != 1 {
			t.Errorf("%d events are left, want that of the other sink", n)
		}
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.x"))
		expectEmpty(t, p)

		if status, err := b.Status(t.Context()); err != nil || !status.Sinks[1].Dropped || status.Sinks[1].Dead != 2 || status.Sinks[0].Dropped {
			t.Errorf("the status is %+v, %v; want two dead letters of a dropped sink", status.Sinks, err)
		}

		// A replay skips them while the sink is dropped: its batches would be ended again.
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 0 || err != nil {
			t.Fatalf("replayed %d, %v; want none", n, err)
		}
		testkit.NoError(t, b.RestoreSink(t.Context(), "crm"))
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 2 || err != nil {
			t.Fatalf("replayed %d, %v; want 2", n, err)
		}
		testkit.NoError(t, b.ServeSinks(t.Context()))
		deliverAll(t, b.Sink("crm"), takeOverOf(t, b.Sink("crm"), "a.x", "b.x"))
		expectEmpty(t, p)
	})
}

// TestDropSink_Recorded: of a batch whose delivery is recorded only the rest becomes dead letters.
func TestDropSink_Recorded(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, dropSinks...)
		insertTopics(t, p, "a.x", "b.x")
		routeAll(t, b, "[all crm]")
		crm := b.Sink("crm")
		batch := takeOverOf(t, crm, "a.x", "b.x")
		testkit.NoError(t, crm.MarkDelivered(t.Context(), batch, batch.IDs()[1:]))
		testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDead))
		exec(t, p.db, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE sink = 'crm'")
		if ended := endAll(t, b); ended != (buffer.Ended{Batches: 1, Events: 1}) {
			t.Errorf("ended %+v", ended)
		}
		if dead := texts(t, p, "SELECT topic FROM outbox_dead_letters"); fmt.Sprint(dead) != "[a.x]" {
			t.Errorf("dead letters: %q", dead)
		}
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.x"))
		expectEmpty(t, p)
	})
}

// TestDropSink_All: with all sinks dropped nothing is claimed, so that no event is taken for one that no sink takes.
func TestDropSink_All(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openSinks(t, p, "first", buffer.ClaimRange, dropSinks...)
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	for _, r := range dropSinks {
		testkit.NoError(t, b.DropSink(t.Context(), r.Sink, buffer.DroppedDiscarded))
	}
	testkit.NoError(t, b.ServeSinks(t.Context()))
	insertTopics(t, p, "a.x")
	if routed, err := b.Route(t.Context(), 10, lease, keepNone); routed != nil || !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "relay sinks restore") {
		t.Errorf("routed %+v, %v", routed, err)
	}
	if n := countRows(t, p, "outbox_batches"); n != 0 {
		t.Errorf("%d batches were claimed", n)
	}
}

// TestDropSink_Unknown: the error names the sinks that there are.
func TestDropSink_Unknown(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openSinks(t, p, "first", buffer.ClaimRange, dropSinks...)
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	missing, ok := errors.AsType[*buffer.NoSinkError](b.DropSink(t.Context(), "crn", buffer.DroppedDiscarded))
	if !ok || fmt.Sprint(missing.Known) != "[all crm]" {
		t.Errorf("got %v", missing)
	}
	if missing, ok := errors.AsType[*buffer.NoSinkError](b.RestoreSink(t.Context(), "crm")); !ok || len(missing.Known) > 0 {
		t.Errorf("got %v", missing)
	}
	expectSinks(t, b, "all 0/0", "crm 0/0")
	// A sink that has batches without being registered is never ended by itself, and can be dropped.
	insertTopics(t, p, "b.x")
	routeAll(t, b, "[crm]")
	if batch, err := sqlite.TakeOverEnding(t.Context(), b, "crm"); batch != nil || err != nil {
		t.Errorf("a batch of a sink that is not dropped, or was restored since, is taken over: %+v, %v", batch, err)
	}
	exec(t, p.db, "DELETE FROM outbox_sinks WHERE sink = 'crm'")
	if ended := endAll(t, b); ended.Batches > 0 {
		t.Errorf("ended %+v of a sink that nobody dropped", ended)
	}
	if f, ok := expectSinks(t, b, "all 0/0", "crm 1/1")[1].Finding(); !ok || !strings.Contains(f.Text, "not in table outbox_sinks") {
		t.Errorf("the finding is %+v", f)
	}
	testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
	endAll(t, b)
	expectEmpty(t, p)
}

// TestSinks_Served: the registry knows which sinks a relay serves, and a look at the buffer changes nothing in it.
func TestSinks_Served(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	looks := openSinks(t, p, "status", buffer.ClaimRange, dropSinks...)
	testkit.NoError(t, looks.Check(t.Context()))
	_, err := looks.Status(t.Context())
	testkit.NoError(t, err)
	if n := countRows(t, p, "outbox_sinks"); n != 0 {
		t.Fatalf("a look registered %d sinks", n)
	}
	b := openSinks(t, p, "first", buffer.ClaimRange, dropSinks[:1]...)
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	exec(t, p.db, "INSERT INTO outbox_sinks (buffer, sink, batch_size) SELECT buffer, 'gone', 1 FROM outbox_sinks")
	exec(t, p.db, "UPDATE outbox_sinks SET seen_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-600 seconds')")
	testkit.NoError(t, b.ServeSinks(t.Context()))
	sinks := expectSinks(t, b, "all 0/0", "gone 0/0")
	if !sinks[0].Served() || sinks[1].Served() {
		t.Errorf("served: %v, %v; want the one that is configured", sinks[0], sinks[1])
	}
	status, err := b.Status(t.Context())
	testkit.NoError(t, err)
	if len(status.SinkFindings) != 1 || status.SinkFindings[0].Subject != "sink gone" || !strings.Contains(status.SinkFindings[0].Fix, "relay sinks drop gone") {
		t.Errorf("the status says %+v", status.SinkFindings)
	}
	testkit.NoError(t, b.DropSink(t.Context(), "all", buffer.DroppedDiscarded))
	if f, ok := expectSinks(t, b, "all 0/0 dropped", "gone 0/0")[0].Finding(); !ok || f.Level != buffer.LevelError || !strings.Contains(f.Fix, "relay sinks restore all") {
		t.Errorf("a configured sink that is dropped: %+v", f)
	}
}
