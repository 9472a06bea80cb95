package sqlite_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// activities is a file with a custom table, and a buffer on it.
type activities struct {
	*sqlite.Buffer
	p      *testDB
	config sqlite.Config
}

// newActivitySinks makes a table without a time, whose topics and payloads are those of parents, and a buffer with two sinks.
func newActivitySinks(t *testing.T, archive string) *activities {
	t.Helper()
	p := newTestDB(t, buffertest.Options{})
	exec(t, p.db, `CREATE TABLE activities (id INTEGER PRIMARY KEY, topic TEXT, amount TEXT);
		CREATE TABLE things (id INTEGER PRIMARY KEY AUTOINCREMENT, activity INTEGER NOT NULL, group_id TEXT)`)
	migrate(t, p.url, sqlite.SchemaConfig{Table: "things", Custom: true, Archive: archive})
	o := &activities{p: p, config: sqlite.Config{
		Table: "things", Archive: archive, Sinks: []buffer.Route{{Sink: "all", BatchSize: 100}, {Sink: "odd", Match: []string{"*.odd"}, BatchSize: 100}},
		Custom: buffer.CustomTable{ID: "id", Project: "SELECT e.id, a.topic, json_object('amount', json(a.amount)) AS payload FROM {events} e JOIN activities a ON a.id = e.activity"},
	}}
	o.Buffer = o.open(t, o.config)
	return o
}

func (o *activities) open(t *testing.T, c sqlite.Config) *sqlite.Buffer {
	t.Helper()
	return openBuffer(t, o.p, c)
}

func (o *activities) exec(t *testing.T, statement string) {
	t.Helper()
	exec(t, o.p.db, statement)
}

func (o *activities) text(t *testing.T, statement string) string {
	t.Helper()
	return strings.Join(texts(t, o.p, statement), " ")
}

// activity inserts an event with its parent.
func (o *activities) activity(t *testing.T, id int, topic, amount string) {
	t.Helper()
	o.exec(t, fmt.Sprintf("INSERT INTO activities VALUES (%d, '%s', '%s')", id, topic, amount))
	o.exec(t, fmt.Sprintf("INSERT INTO things (activity) VALUES (%d)", id))
}

func (o *activities) expect(t *testing.T, statement, want string) {
	t.Helper()
	if got := o.text(t, statement); got != want {
		t.Errorf("%s: %q, want %q", statement, got, want)
	}
}

const nothingLeft = "SELECT (SELECT count(*) FROM things) || '/' || (SELECT count(*) FROM outbox_batches)"

// TestCustomSinks_NotProjected: an event without a row of the projection is a dead letter of no sink, and its replay routes it again.
func TestCustomSinks_NotProjected(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.activity(t, 1, "a.odd", "1")
	o.activity(t, 2, "b.odd", "2")
	o.exec(t, "DELETE FROM activities WHERE id = 1")
	routeAll(t, o.Buffer, "[all odd]")
	o.expect(t, "SELECT sink || ' ' || event_id || ' ' || error || ' ' || event_row FROM outbox_dead_letters",
		`* 1 not projected {"id":1,"activity":1,"group_id":null}`)
	if routed, err := o.RouteDue(t.Context(), lease); err != nil || routed == nil || routed.Events != 1 {
		t.Fatalf("deleted %+v, %v; want one event", routed, err)
	}
	o.expect(t, "SELECT id FROM things", "2")
	for _, sink := range []string{"all", "odd"} {
		deliverAll(t, o.Sink(sink), takeOverOf(t, o.Sink(sink), "b.odd"))
	}
	o.exec(t, "INSERT INTO activities VALUES (1, 'a.odd', '3')")
	if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v; want 1", n, err)
	}
	_, err := o.RouteDue(t.Context(), lease)
	testkit.NoError(t, err)
	for _, sink := range []string{"all", "odd"} {
		deliverAll(t, o.Sink(sink), takeOverOf(t, o.Sink(sink), "a.odd"))
	}
	o.expect(t, nothingLeft, "0/0")
}

// TestCustomSinks_NotProjectedLater: one that loses its parent while a sink waits is a dead letter of that sink.
func TestCustomSinks_NotProjectedLater(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.activity(t, 1, "a.odd", "1")
	routeAll(t, o.Buffer, "[all odd]")
	deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd"))
	o.exec(t, "DELETE FROM activities")
	batch := takeOverOf(t, o.Sink("odd"))
	if batch == nil || len(batch.Rejected) != 1 || !errors.Is(batch.Rejected[0].Err, buffer.ErrNotProjected) {
		t.Fatalf("took over %+v", batch)
	}
	testkit.NoError(t, o.Sink("odd").Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Error: "not projected"}}))
	o.expect(t, "SELECT sink || ' ' || event_id FROM outbox_dead_letters", "odd 1")
	o.expect(t, nothingLeft, "0/0")
	o.exec(t, "INSERT INTO activities VALUES (1, 'a.odd', '3')")
	if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v; want 1", n, err)
	}
	takeOverOf(t, o.Sink("all"))
	deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "a.odd"))
	o.expect(t, nothingLeft, "0/0")
}

// TestCustomSinks_BadData: an event on whose data the projection fails waits alone; the others are routed.
func TestCustomSinks_BadData(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	for i, amount := range []string{"1", "2", "bad", "4"} {
		o.activity(t, i+1, "a", amount)
	}
	_, err := o.Route(t.Context(), 100, lease, keepNone)
	testkit.NoError(t, err)
	var waits error
	for range 10 {
		routed, err := o.RouteDue(t.Context(), lease)
		waits = errors.Join(waits, whyPutBack(routed, err))
		if routed == nil && err == nil {
			break
		}
	}
	if !errors.Is(waits, buffer.ErrEventData) {
		t.Errorf("the event that waits says %v", waits)
	}
	o.expect(t, "SELECT sum(events) || ' ' || min(first_id) || ' ' || min(due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) FROM outbox_batches WHERE sink = '*'", "1 3 1")
	o.expect(t, "SELECT sum(events) FROM outbox_batches WHERE sink = 'all'", "3")
	o.exec(t, "UPDATE activities SET amount = '3'")
	o.exec(t, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE sink = '*'")
	routed, err := o.RouteDue(t.Context(), lease)
	testkit.NoError(t, err)
	if routed == nil || fmt.Sprint(routed.Sinks) != "[all]" {
		t.Errorf("routed %+v, want to all", routed)
	}
	o.expect(t, "SELECT sum(events) FROM outbox_batches WHERE sink = 'all'", "4")
}

// whyPutBack is why nothing was routed; nil if something was.
func whyPutBack(routed *buffer.Routed, err error) error {
	if err == nil && routed != nil {
		return routed.PutBack
	}
	return err
}

// TestCustomSinks_BadAlone: an event that stands alone, and on whose data the projection fails, or which it refuses, is a dead letter of no sink once
// another one was routed since it first failed, and not while the projection may fail for everything.
func TestCustomSinks_BadAlone(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.config.Custom.Project = "SELECT e.id, a.topic, CASE WHEN a.amount <> 'none' THEN json_object('amount', json(a.amount)) END AS payload " +
		"FROM {events} e JOIN activities a ON a.id = e.activity"
	o.Buffer = o.open(t, o.config)
	const waiting = "SELECT coalesce(group_concat(sink || ' ' || state || ' ' || events, ', '), '') FROM outbox_batches WHERE sink = '*'"
	due := func() error {
		o.exec(t, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE sink = '*'")
		return whyPutBack(o.RouteDue(t.Context(), lease))
	}
	waits := func(want string) {
		t.Helper()
		for range 5 {
			if due() == nil {
				t.Error("what may fail for everything was routed")
			}
		}
		o.expect(t, waiting, want)
	}
	id := 0
	for _, bad := range [][]string{{"bad"}, {"none"}, {"none", "none"}} {
		for _, amount := range bad {
			id++
			o.activity(t, id, "a", amount)
		}
		if whyPutBack(o.Route(t.Context(), 100, lease, keepNone)) == nil {
			t.Errorf("%q: routed", bad)
		}
		waits(fmt.Sprint("* waiting ", len(bad)))
		id++
		o.activity(t, id, "a", "1")
		_, err := o.Route(t.Context(), 100, lease, keepNone)
		testkit.NoError(t, err)
		testkit.NoError(t, due())
		o.expect(t, waiting, fmt.Sprint("* delivered ", len(bad)))
		o.expect(t, "SELECT group_concat(DISTINCT sink || ' ' || (error <> '')) || ' ' || count(*) FROM outbox_dead_letters",
			fmt.Sprint("* 1 ", len(bad)))
		testkit.NoError(t, due())
		o.expect(t, waiting, "")
		o.exec(t, "DELETE FROM outbox_dead_letters")
	}
	for range 2 { // both alone
		id++
		o.activity(t, id, "a", "bad")
		if whyPutBack(o.Route(t.Context(), 100, lease, keepNone)) == nil {
			t.Error("routed")
		}
	}
	waits("* waiting 1, * waiting 1")
	o.exec(t, "ALTER TABLE activities RENAME TO hidden")
	waits("* waiting 1, * waiting 1")
	o.expect(t, "SELECT count(*) FROM outbox_dead_letters", "0")
}

// TestCustomSinks_Broken: while the projection fails for every event, the batch waits as a whole.
func TestCustomSinks_Broken(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.activity(t, 1, "a", "1")
	o.activity(t, 2, "b", "1")
	testkit.NoError(t, o.Check(t.Context()))
	o.exec(t, "ALTER TABLE activities RENAME TO hidden")
	if routed, err := o.Route(t.Context(), 100, lease, keepNone); routed != nil || err == nil || !strings.Contains(err.Error(), "projection failed") {
		t.Errorf("routed %+v, %v", routed, err)
	}
	o.expect(t, "SELECT sink || ' ' || state || ' ' || events || ' ' || outages || ' ' || (error <> '') FROM outbox_batches", "* waiting 2 1 1")
	if backlog, err := o.CountBacklog(t.Context(), 100); err != nil || backlog.Waiting != 1 {
		t.Errorf("the backlog is %+v, %v; want one batch that waits, or max_waiting stops no claims", backlog, err)
	}
	o.exec(t, "ALTER TABLE hidden RENAME TO activities")
	o.exec(t, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
	routed, err := o.RouteDue(t.Context(), lease)
	testkit.NoError(t, err)
	if routed == nil || routed.Events != 2 {
		t.Errorf("routed %+v, want 2 events", routed)
	}
}

// TestCustomSinks_Contents: a sink gets its rows of a claim only, and sees the same event again, its time too, after a retry and in a part.
func TestCustomSinks_Contents(t *testing.T) {
	t.Parallel()
	for _, project := range []string{"", "SELECT id, 'x.' || CASE WHEN id % 2 = 1 THEN 'odd' ELSE 'even' END AS topic, json_quote(id) AS payload FROM things WHERE group_id = ?1"} {
		o := newActivitySinks(t, "")
		if project != "" {
			o.config.Custom.Project = project
			o.Buffer = o.open(t, o.config)
		}
		for i := range 5 {
			o.activity(t, i+1, map[bool]string{true: "x.even", false: "x.odd"}[i%2 == 1], "1")
		}
		routed, err := o.Route(t.Context(), 100, lease, func(sink string) bool { return sink == "odd" })
		testkit.NoError(t, err)
		if len(routed.Leases) != 1 || fmt.Sprint(routed.Leases[0].IDs()) != "[1 3 5]" || !routed.Leases[0].Projected {
			t.Fatalf("leased %+v", routed.Leases)
		}
		odd, first := o.Sink("odd"), routed.Leases[0].Lease
		testkit.NoError(t, odd.Settle(t.Context(), first, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: first.GroupID, Outages: 1, Error: "away"}}))
		again := takeOverOf(t, odd, "x.odd", "x.odd", "x.odd")
		for i := range again.Events {
			if a, b := &first.Events[i], &again.Events[i]; a.ID != b.ID || !a.CreatedAt.Equal(b.CreatedAt) || string(a.Payload) != string(b.Payload) {
				t.Errorf("sent %+v, then %+v", a, b)
			}
		}
		part := buffer.NewGroupID()
		testkit.NoError(t, odd.Settle(t.Context(), again, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: []int64{1}},
			{Verdict: buffer.Retry, IDs: []int64{3, 5}, GroupID: part, Outages: 1, Error: "away"},
		}))
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "x.odd", "x.even", "x.odd", "x.even", "x.odd"))
		o.expect(t, "SELECT group_concat(id) FROM things", "3,5")
		rest := takeOverOf(t, odd, "x.odd", "x.odd")
		if rest.GroupID != part || len(rest.Origins) != 1 {
			t.Errorf("the part is %v from %v", rest.GroupID, rest.Origins)
		}
		deliverAll(t, odd, rest)
		o.expect(t, nothingLeft, "0/0")
	}
}

// TestCustomSinks_Deleted: what the application deletes while a sink owes it is settled with nothing.
func TestCustomSinks_Deleted(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.activity(t, 1, "a.odd", "1")
	o.activity(t, 2, "b.odd", "1")
	routeAll(t, o.Buffer, "[all odd]")
	o.exec(t, "DELETE FROM things WHERE id = 1")
	deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "b.odd"))
	audit, err := o.Audit(t.Context())
	testkit.NoError(t, err)
	if audit.Orphaned.Events != 0 || audit.Unclaimed != 0 || audit.Waiting.Events != 1 {
		t.Errorf("audit: %+v", audit)
	}
	deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "b.odd"))
	o.expect(t, nothingLeft, "0/0")
}

// TestCustomSinks_Archive: an event is archived once, by the sink that deletes it.
func TestCustomSinks_Archive(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "outbox_archive")
	o.activity(t, 1, "a.odd", "1")
	o.activity(t, 2, "b", "2")
	routeAll(t, o.Buffer, "[all odd]")
	for _, sink := range []string{"all", "odd"} {
		batch, err := o.Sink(sink).TakeOver(t.Context(), lease, buffer.DueRetry)
		testkit.NoError(t, err)
		deliverAll(t, o.Sink(sink), batch)
	}
	o.expect(t, "SELECT id || ' ' || topic || ' ' || payload FROM outbox_archive ORDER BY id", `1 a.odd {"amount":1} 2 b {"amount":2}`)
	o.expect(t, nothingLeft, "0/0")
}

// TestCustomSinks_Dropped: a dropped sink's batches end, and become dead letters with their rows if that is asked.
func TestCustomSinks_Dropped(t *testing.T) {
	t.Parallel()
	for as, dead := range map[buffer.Dropped]string{buffer.DroppedDiscarded: "", buffer.DroppedDead: `odd a.odd {"amount":1} 1`} {
		o := newActivitySinks(t, "")
		o.activity(t, 1, "a.odd", "1")
		routeAll(t, o.Buffer, "[all odd]")
		testkit.NoError(t, o.DropSink(t.Context(), "odd", as))
		if ended := endAll(t, o.Buffer); ended.Events != 1 {
			t.Errorf("ended %+v, want one event", ended)
		}
		o.expect(t, "SELECT sink || ' ' || topic || ' ' || payload || ' ' || (event_row ->> 'activity') FROM outbox_dead_letters", dead)
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd"))
		o.expect(t, nothingLeft, "0/0")
	}
}

// TestCustomSinks_Orphans: a row with a group_id without a ledger row, or with that of a claim whose rows do not have it, is routed again.
func TestCustomSinks_Orphans(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.activity(t, 1, "a.odd", "1")
	routeAll(t, o.Buffer, "[all odd]")
	o.activity(t, 2, "b", "1")
	o.exec(t, "UPDATE things SET group_id = (SELECT group_id FROM things WHERE id = 1) WHERE id = 2")
	second := o.open(t, o.config)
	_, err := second.CountBacklog(t.Context(), 100)
	testkit.NoError(t, err)
	o.expect(t, "SELECT sink || ' ' || events FROM outbox_batches ORDER BY sink", "* 1 all 1 odd 1")
	_, err = second.RouteDue(t.Context(), lease)
	testkit.NoError(t, err)
	deliverAll(t, second.Sink("all"), takeOverOf(t, second.Sink("all"), "a.odd"))
	deliverAll(t, second.Sink("all"), takeOverOf(t, second.Sink("all"), "b"))
	deliverAll(t, second.Sink("odd"), takeOverOf(t, second.Sink("odd"), "a.odd"))
	o.expect(t, nothingLeft, "0/0")
}

// TestCustomSinks_Edit: a row is edited once no sink waits for its event, and only the sink where it is dead gets it again.
func TestCustomSinks_Edit(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	o.activity(t, 1, "a.odd", "1")
	o.exec(t, "INSERT INTO activities VALUES (2, 'b.odd', '1')")
	routeAll(t, o.Buffer, "[all odd]")
	odd := takeOverOf(t, o.Sink("odd"), "a.odd")
	testkit.NoError(t, o.Sink("odd").Settle(t.Context(), odd, []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
	letters, err := o.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	testkit.NoError(t, err)
	old := letters[0].Row
	e := buffer.DeadEdit{
		ID: letters[0].ID, Row: true,
		Old: old, New: bytes.Replace(old, []byte(`"activity":1`), []byte(`"activity":2`), 1),
	}
	if err := o.EditDead(t.Context(), e); !errors.Is(err, buffer.ErrEventWaits) {
		t.Errorf("while a sink waits: %v", err)
	}
	deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd"))
	testkit.NoError(t, o.EditDead(t.Context(), e))
	if n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v; want 1", n, err)
	}
	takeOverOf(t, o.Sink("all"))
	deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "b.odd"))
	o.expect(t, nothingLeft, "0/0")
}

// TestCustomSinks_ReplayReusedID: an event whose id was used before is not that of the dead letter, which waits until it is gone.
func TestCustomSinks_ReplayReusedID(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	all, odd := o.Sink("all"), o.Sink("odd")
	replay := func(want int) {
		t.Helper()
		n, err := o.Replay(t.Context(), buffer.DeadFilter{}, 10)
		testkit.NoError(t, err)
		testkit.Equal(t, "replayed", n, want)
	}
	o.activity(t, 1, "a.odd", "1")
	routeAll(t, o.Buffer, "[all odd]")
	testkit.NoError(t, odd.Settle(t.Context(), takeOverOf(t, odd, "a.odd"), []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
	deliverAll(t, all, takeOverOf(t, all, "a.odd"))
	o.expect(t, nothingLeft, "0/0")

	o.exec(t, "DELETE FROM sqlite_sequence")
	o.activity(t, 2, "b.odd", "1")
	_, err := o.CountBacklog(t.Context(), 100)
	testkit.NoError(t, err)
	routeAll(t, o.Buffer, "[all odd]")
	deliverAll(t, odd, takeOverOf(t, odd, "b.odd"))
	replay(0)
	takeOverOf(t, odd)
	deliverAll(t, all, takeOverOf(t, all, "b.odd"))
	replay(1)
	deliverAll(t, odd, takeOverOf(t, odd, "a.odd"))
	o.expect(t, nothingLeft, "0/0")
}
