package sqlite_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestDelayed_Sinks: delayed events are routed when they are due, in every mode.
func TestDelayed_Sinks(t *testing.T) {
	t.Parallel()
	for _, c := range []sqlite.Config{{Claim: buffer.ClaimRange}, {Claim: buffer.ClaimStamp}, {Ordered: true}} {
		t.Run(string(c.Claim), func(t *testing.T) {
			t.Parallel()
			db, url := database(t)
			migrate(t, url, sqlite.SchemaConfig{})
			c.URL, c.Pipeline, c.Owner = url, "orders", "suite"
			c.Sinks = []buffer.Route{{Sink: "all", BatchSize: 10, Ordered: c.Ordered}, {Sink: "crm", Match: []string{"contact.*"}, BatchSize: 10}}
			b, err := sqlite.Open(c)
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			testkit.NoError(t, b.RegisterSinks(t.Context()))
			exec(t, db, `INSERT INTO outbox_events (topic, key, payload, available_at) VALUES
				('contact.new', 'k', '1', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '2 seconds')), ('contact.new', 'k', '2', '9999-01-01T00:00:00.000Z')`)
			testkit.Eventually(t, func() error {
				backlog, err := b.CountBacklog(t.Context(), 100)
				if err == nil && backlog.Unclaimed == 0 {
					err = fmt.Errorf("nothing is counted; the next is due in %v", backlog.NextDelayed)
				}
				return err
			})
			status, err := b.Status(t.Context()) // the cursor has passed the event
			testkit.NoError(t, err)
			testkit.Equal(t, "pending", status.Pending, 1)
			unrouted := status.Sinks[len(status.Sinks)-1]
			testkit.Equal(t, "pending and not routed", unrouted.Pending, 1)
			if unrouted.OldestPending <= 0 || unrouted.OldestPending > 1900*time.Millisecond {
				t.Errorf("the oldest is pending for %v", unrouted.OldestPending)
			}
			route := func() *buffer.Routed {
				t.Helper()
				routed, err := b.Route(t.Context(), 100, time.Hour, func(string) bool { return false })
				testkit.NoError(t, err)
				return routed
			}
			routed := route()
			if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" || routed.Events != 1 {
				t.Fatalf("routed %+v, want one event to all and crm", routed)
			}
			if again := route(); again != nil {
				t.Errorf("routed %+v again", again)
			}
		})
	}
}

// TestDelayed_BadTimes: doctor names times that are nearly always in the wrong unit, and in custom tables values that are none.
func TestDelayed_BadTimes(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	exec(t, db, "INSERT INTO outbox_events (topic, payload, available_at) VALUES ('t', '1', '3026-01-01T00:00:00.000Z'), ('t', '2', '1970-01-01T00:00:00.000Z')")
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	expectFinding(t, b, buffer.LevelWarning, "more than 10 years from now: 1, the first at 3026-01-01")

	exec(t, db, "CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT, run_at, created_at TEXT, group_id TEXT)")
	own := buffer.CustomTable{ID: "id", AvailableAt: "run_at", Project: "SELECT e.id, 't' AS topic, e.body AS payload FROM {events} e"}
	migrate(t, url, sqlite.SchemaConfig{Table: "notes", Custom: true})
	exec(t, db, buffer.SQLiteDelayedIndex("notes_delayed", "notes", "run_at"))
	notes, err := sqlite.Open(sqlite.Config{URL: url, Table: "notes", Pipeline: "notes", Custom: own})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, notes.Close()) })
	testkit.NoError(t, notes.Check(t.Context()))
	exec(t, db, `INSERT INTO notes (body, run_at) VALUES ('0', NULL), ('1', 'tomorrow'), ('2', '2020-01-01'), ('3', 4102444800), ('4', 1577836800000),
		('5', '2020-01-01T00:00:00+02:00'), ('6', ''), ('7', 4102444800000), ('8', x'00')`)
	batch, err := notes.Claim(t.Context(), 100, time.Minute)
	testkit.NoError(t, err)
	if ids := fmt.Sprint(batch.IDs()); ids != "[1 3 5 6]" {
		t.Errorf("claimed %s", ids)
	}
	expectFinding(t, notes, buffer.LevelError, "events whose run_at is no time: 3; they wait for ever")
	status, err := notes.Status(t.Context())
	testkit.NoError(t, err)
	testkit.Equal(t, "delayed", status.Delayed, 5)

	exec(t, db, "DROP INDEX notes_delayed")
	expectNotReady(t, notes.Check(t.Context()), `table "notes" has no index on column "run_at"`)
	own.AvailableAt = "rum_at"
	wrong, err := sqlite.Open(sqlite.Config{URL: url, Table: "notes", Pipeline: "notes", Custom: own})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, wrong.Close()) })
	expectNotReady(t, wrong.Check(t.Context()), "which source.available_at names (did you mean run_at?)")
}

func expectFinding(t *testing.T, b *sqlite.Buffer, level buffer.Level, text string) {
	t.Helper()
	findings := b.Diagnose(t.Context())
	if !slices.ContainsFunc(findings, func(f buffer.Finding) bool { return f.Level == level && strings.Contains(f.Text, text) }) {
		t.Errorf("no finding says %q: %+v", text, findings)
	}
}

// TestDelayed_Model: whatever is claimed, settled and inserted meanwhile, each event is claimed once, and not before its time.
func TestDelayed_Model(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp, ""} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) { delayedModel(t, r, mode) })
		})
	}
}

func delayedModel(t *testing.T, r *rapid.T, mode buffer.ClaimMode) {
	f := harness("outbox_events", mode).Open(t, buffertest.Options{Claim: mode, Ordered: mode == ""})
	buffers := []buffer.Buffer{f.Buffer, f.Second(t)}
	available, claimed := map[int64]time.Time{}, map[int64]bool{}
	var live []*buffer.Lease
	take := func(b buffer.Buffer, limit int) bool {
		l, err := b.Claim(t.Context(), limit, time.Minute)
		testkit.NoError(r, err)
		if l == nil {
			return false
		}
		for _, id := range l.IDs() {
			if at := available[id]; l.ClaimedAt.Before(at.Add(-time.Millisecond)) {
				r.Fatalf("event %d was claimed at %v, before %v", id, l.ClaimedAt, at)
			}
			if claimed[id] {
				r.Fatalf("event %d was claimed twice", id)
			}
			claimed[id] = true
		}
		live = append(live, l)
		return true
	}
	settle := func(i int) {
		testkit.NoError(r, buffers[i%2].Settle(t.Context(), live[i], []buffer.Outcome{{Verdict: buffer.Delivered}}))
		live = slices.Delete(live, i, i+1)
	}
	for range rapid.IntRange(1, 30).Draw(r, "steps") {
		b := buffers[rapid.IntRange(0, 1).Draw(r, "process")]
		switch rapid.SampledFrom([]string{"insert", "insert", "count", "claim", "claim", "settle"}).Draw(r, "action") {
		case "insert":
			events := make([]outbox.Event, rapid.IntRange(1, 5).Draw(r, "events"))
			for i := range events {
				events[i] = outbox.Event{Topic: "t", Payload: []byte("1"), Key: rapid.SampledFrom([]*string{nil, new("a"), new("b")}).Draw(r, "key")}
				if rapid.Bool().Draw(r, "delayed") {
					events[i].AvailableAt = time.Now().Add(time.Duration(rapid.IntRange(-20, 60).Draw(r, "ms")) * time.Millisecond)
				}
			}
			for i, id := range f.Insert(r, events...) {
				available[id] = events[i].AvailableAt
			}
		case "count":
			_, err := b.CountBacklog(t.Context(), rapid.IntRange(1, 10).Draw(r, "limit"))
			testkit.NoError(r, err)
		case "claim":
			take(b, rapid.IntRange(1, 4).Draw(r, "limit"))
		case "settle":
			if len(live) > 0 {
				settle(rapid.IntRange(0, len(live)-1).Draw(r, "batch"))
			}
		}
	}
	testkit.Eventually(r, func() error { // all become available, and no sweep is needed to find them
		for len(live) > 0 {
			settle(0)
		}
		for _, b := range buffers {
			_, err := b.CountBacklog(t.Context(), 100)
			testkit.NoError(r, err)
			for take(b, 10) {
			}
		}
		if len(claimed) < len(available) {
			return fmt.Errorf("%d of %d events were claimed", len(claimed), len(available))
		}
		return nil
	})
}

// insertWaiting inserts so many events that wait for a day and more.
const insertWaitingSQL = `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
INSERT INTO outbox_events (topic, key, payload, available_at)
SELECT 'later', 'customer-7', '{"order": 1234567, "note": "%s"}', strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', '1 day', (i / 1000.0) || ' seconds') FROM n`

// BenchmarkDelayed measures what a million delayed events cost the others: claim and settle of a batch of 1000, a count, and both for a single event. It does each
// in turns with them and without, and reports the medians with them and the ratios.
func BenchmarkDelayed(b *testing.B) {
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		b.Run(string(mode), func(b *testing.B) { benchmarkDelayed(b, mode) })
	}
}

func benchmarkDelayed(b *testing.B, mode buffer.ClaimMode) {
	const batch, batches, singles = 1000, 50, 200
	note := strings.Repeat("x", 270)
	events := make([]outbox.Event, batch)
	for i := range events {
		events[i] = outbox.Event{Topic: "orders.created", Payload: fmt.Appendf(nil, `{"order": 1234567, "note": "%s"}`, note)}
	}
	type side struct {
		f                 *buffertest.Fixture
		drain, count, one []time.Duration
	}
	sides := make([]*side, 2)
	for i, waiting := range []int{0, 1_000_000} {
		name := []string{"none", "million"}[i]
		s := &side{f: harness("outbox_events", mode).Open(b, buffertest.Options{Claim: mode})}
		if waiting > 0 {
			s.f.Exec(b, fmt.Sprintf(insertWaitingSQL, waiting, note))
		}
		began := time.Now()
		backlog, err := s.f.Buffer.CountBacklog(b.Context(), batch) // a start
		testkit.NoError(b, err)
		testkit.Equal(b, "unclaimed", backlog.Unclaimed, 0)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), name+"-start-ms")
		began = time.Now()
		status, err := s.f.Buffer.Status(b.Context())
		testkit.NoError(b, err)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), name+"-status-ms")
		if status.Delayed < int64(waiting)*9/10 || status.Delayed > int64(waiting)*11/10 {
			b.Fatalf("%d are delayed, want about %d", status.Delayed, waiting)
		}
		sides[i] = s
	}
	timed := func(into *[]time.Duration, act func() error) {
		began := time.Now()
		err := act()
		*into = append(*into, time.Since(began))
		testkit.NoError(b, err)
	}
	deliver := func(s *side, want int) func() error {
		return func() error {
			l, err := s.f.Buffer.Claim(b.Context(), batch, time.Minute)
			if err != nil || l.Len() != want {
				return fmt.Errorf("claimed %v of %d events: %w", l, want, err)
			}
			return s.f.Buffer.Settle(b.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}})
		}
	}
	count := func(s *side) func() error {
		return func() error {
			_, err := s.f.Buffer.CountBacklog(b.Context(), batch)
			return err
		}
	}
	turns := func(n int, act func(s *side)) { // whatever else the machine does slows both
		for i := range n {
			act(sides[i%2])
			act(sides[1-i%2])
		}
	}
	for range b.N {
		turns(batches, func(s *side) { s.f.Insert(b, events...) })
		turns(batches, func(s *side) { timed(&s.drain, deliver(s, batch)) })
		turns(singles, func(s *side) { timed(&s.count, count(s)) })
		turns(singles, func(s *side) {
			s.f.Insert(b, events[0])
			timed(&s.one, func() error { return errors.Join(count(s)(), deliver(s, 1)()) })
		})
	}
	report := func(name string, of func(s *side) []time.Duration, percent int) {
		var at [2]time.Duration
		for i, s := range sides {
			all := of(s)
			slices.Sort(all)
			at[i] = all[len(all)*percent/100]
		}
		b.ReportMetric(float64(at[1])/float64(at[0]), name+"-ratio")
		b.ReportMetric(float64(at[1].Microseconds()), name+"-µs")
	}
	report("batch", func(s *side) []time.Duration { return s.drain }, 50)
	report("count", func(s *side) []time.Duration { return s.count }, 50)
	report("p50", func(s *side) []time.Duration { return s.one }, 50)
	report("p99", func(s *side) []time.Duration { return s.one }, 99)
	b.ReportMetric(0, "ns/op")
}
