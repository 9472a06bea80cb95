package buffertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var fillCases = []sinksTestCase{
	{name: "fill/each event once", run: fillOnce},
	{name: "fill/events since a time", run: fillSince},
	{name: "fill/a leased batch", run: fillLeased},
	{name: "fill/parts of a batch", run: fillParts},
	{name: "fill/beside an old registry", run: fillJoin},
	{name: "fill/beside workers", run: fillWorkers},
	{name: "fill/a restored sink", run: fillRestored},
	{name: "fill/a pipeline that had a single sink", run: fillSingle},
	{name: "fill/a renamed sink has what it had", run: fillRenamed},
	{name: "fill/events with an open dead letter", run: fillDeadLetters},
	{name: "fill/unknown sinks", run: fillUnknown},
	{name: "fill/two sinks that were added together", run: fillTwo},
	{name: "fill/beside a dropped sink", run: fillBesideDropped},
	{name: "fill/random sequences", run: fillRandom},
}

func expectFilled(t *testing.T, b RoutedBuffer, sink string, since time.Time, want buffer.Filled) {
	t.Helper()
	for _, dry := range []bool{true, false} {
		got, err := b.FillSink(t.Context(), sink, since, dry, nil)
		ok(t, "FillSink", err)
		equal(t, fmt.Sprintf("events that %s lacks (dry: %v)", sink, dry), got, want)
	}
}

// A sink that is added gets what was routed before, in the table and in the archive. The other sinks get none of it again.
func fillOnce(t *testing.T, p *sinksCase) {
	all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 2}
	b := p.open(t, all, crm)
	p.topics(t, "a.1", "b.1", "x.1", "a.2") // archived
	routeTo(t, b, "[all crm]")
	expectDrained(t, b, "all", "a.1 b.1 x.1 a.2")
	expectDrained(t, b, "crm", "a.1 a.2")
	p.topics(t, "a.3", "b.3", "x.3", "a.4", "a.5") // wait for both, or for one
	routeTo(t, b, "[all crm]")
	p.topics(t, "b.6") // a row of its own under a stamp
	_, err := b.Route(t.Context(), 100, time.Hour, takeNone)
	ok(t, "Route", err)
	batch, topics := takeOf(t, b, "crm")
	equal(t, "topics", topics, "a.3 a.4")
	deliver(t, b, "crm", batch)

	added := buffer.Route{Sink: "new", Match: []string{"a.#", "b.*"}, BatchSize: 3}
	b = p.open(t, all, crm, added)
	p.topics(t, "a.7", "unclaimed.8", "a.8")
	routeTo(t, b, "[all crm new]")
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Waiting: 5, Archived: 3})
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{})
	audited, err := b.Audit(t.Context())
	ok(t, "Audit", err)
	if !audited.Agrees() {
		t.Errorf("after a fill, the audit is %+v", audited)
	}
	expectDrained(t, b, "new", "a.7 a.8 a.3 b.3 a.4 a.5 b.6 a.1 b.1 a.2")
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{})
	expectDrained(t, b, "all", "a.3 b.3 x.3 a.4 a.5 b.6 a.7 unclaimed.8 a.8")
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{})
	expectDrained(t, b, "crm", "a.5 a.7 a.8")
	p.expectEmpty(t)
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{})

	// What is settled by the others while the fill has not come there is in the archive.
	other := p.open(t, all, crm, added, buffer.Route{Sink: "late", Match: []string{"b.6", "x.*", "a.7"}, BatchSize: 10})
	expectFilled(t, other, "late", time.Time{}, buffer.Filled{Archived: 4})
	expectDrained(t, other, "late", "x.1 x.3 b.6 a.7")
	p.expectEmpty(t)
}

// Only events that were created since a time, also within a batch.
func fillSince(t *testing.T, p *sinksCase) {
	all := buffer.Route{Sink: "all", BatchSize: 100}
	b := p.open(t, all)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	insert := func(topic string, created time.Time) {
		t.Helper()
		p.Exec(t, fmt.Sprintf("INSERT INTO outbox_events (topic, payload, created_at) VALUES ('%s', '{}', '%s')", topic, created.Format("2006-01-02T15:04:05.000Z")))
	}
	for _, archived := range []bool{true, false} {
		insert(fmt.Sprint("before.", archived), since.Add(-time.Millisecond))
		insert(fmt.Sprint("at.", archived), since)
		routeTo(t, b, "[all]")
		if archived {
			expectDrained(t, b, "all", "before.true at.true")
		}
	}
	b = p.open(t, all, buffer.Route{Sink: "new", BatchSize: 10})
	expectFilled(t, b, "new", since.Add(time.Microsecond), buffer.Filled{})
	expectFilled(t, b, "new", since, buffer.Filled{Waiting: 1, Archived: 1})
	expectDrained(t, b, "new", "at.false at.true")
}

// A batch that is being sent comes back in parts. Its events arrive once, and so do those of the parts.
func fillLeased(t *testing.T, p *sinksCase) {
	all := buffer.Route{Sink: "all", BatchSize: 100}
	b := p.open(t, all)
	p.topics(t, "a.1", "a.2", "a.3")
	routeTo(t, b, "[all]")
	leased, _ := takeOf(t, b, "all")
	b = p.open(t, all, buffer.Route{Sink: "new", BatchSize: 10})
	type result struct {
		buffer.Filled
		error
	}
	done, looked := make(chan result), make(chan bool, 1)
	go func() {
		filled, err := b.FillSink(context.WithoutCancel(t.Context()), "new", time.Time{}, false, func(buffer.Filled) {
			select {
			case looked <- true:
			default:
			}
		})
		done <- result{filled, err}
	}()
	<-looked
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), leased, retryTail(leased)))
	r := <-done
	ok(t, "FillSink", r.error)
	// a.1 may be delivered before or after the fill has its batch.
	equal(t, "events filled", r.Events(), int64(3))
	expectDrained(t, b, "all", "a.2 a.3")
	equal(t, "events left", p.count(t, "outbox_events"), int64(3))
	var got []string
	for {
		batch, topics := takeOf(t, b, "new")
		if batch == nil {
			break
		}
		got = append(got, strings.Fields(topics)...)
		deliver(t, b, "new", batch)
	}
	slices.Sort(got)
	equal(t, "topics at the new sink", got, []string{"a.1", "a.2", "a.3"})
	p.expectEmpty(t)
}

// Parts were routed when their batch was.
func fillParts(t *testing.T, p *sinksCase) {
	all := buffer.Route{Sink: "all", BatchSize: 100}
	b := p.open(t, all)
	p.topics(t, "a.1", "a.2", "a.3")
	routeTo(t, b, "[all]")
	for range 2 {
		batch, _ := takeOf(t, b, "all")
		ok(t, "Settle", b.Sink("all").Settle(t.Context(), batch, retryTail(batch)))
	}
	b = p.open(t, all, buffer.Route{Sink: "new", BatchSize: 10})
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Waiting: 1, Archived: 2})
	expectDrained(t, b, "all", "a.3")
	expectDrained(t, b, "new", "a.3 a.1 a.2")
	p.expectEmpty(t)
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{})
}

// A relay that had routed events before the sink was added adds none to the same batches: a fill could not tell which of their events the
// sink has.
func fillJoin(t *testing.T, p *sinksCase) {
	routes := []buffer.Route{{Sink: "all", BatchSize: 100}, {Sink: "crm", BatchSize: 100}}
	old := p.open(t, routes...)
	p.topics(t, "before")
	routeTo(t, old, "[all crm]")
	b := p.open(t, append(routes, buffer.Route{Sink: "new", BatchSize: 100})...)
	ok(t, "ServeSinks", old.ServeSinks(t.Context())) // it reads the registry
	p.topics(t, "after")
	routeTo(t, old, "[all crm new]")
	expectDrained(t, b, "new", "after")
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Waiting: 1})
	expectDrained(t, b, "new", "before")
	expectDrained(t, b, "all", "before after")
	expectDrained(t, b, "crm", "before after")
	p.expectEmpty(t)
}

// The other sinks settle while a fill runs, in part and late. Every event reaches each sink once.
func fillWorkers(t *testing.T, p *sinksCase) {
	routes := []buffer.Route{{Sink: "all", BatchSize: 7}, {Sink: "crm", Match: []string{"a.#"}, BatchSize: 5}}
	b := p.open(t, routes...)
	const events = 600
	p.Exec(t, fmt.Sprintf(`INSERT INTO outbox_events (topic, payload)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT CASE i %% 3 WHEN 0 THEN 'b.x' ELSE 'a.x' END, '{}' FROM n`, events))
	for range events / 12 {
		_, err := b.Route(t.Context(), 12, time.Hour, takeNone)
		ok(t, "Route", err)
	}
	b = p.open(t, append(routes, buffer.Route{Sink: "new", BatchSize: 10})...)
	var (
		mu     sync.Mutex
		got    = map[string]int{} // by sink and id
		group  sync.WaitGroup
		filled = make(chan struct{})
	)
	for i, sink := range []string{"all", "crm", "new", "all", "crm", "new"} {
		group.Go(func() {
			for ended := false; ; {
				select {
				case <-filled:
					ended = true
				default:
				}
				batch, err := b.Sink(sink).TakeOver(t.Context(), time.Hour, buffer.DueRetry)
				if err != nil {
					t.Error(err)
					return
				}
				if batch == nil {
					if ended {
						return
					}
					continue
				}
				outcomes, ids := []buffer.Outcome{{Verdict: buffer.Delivered}}, batch.IDs()
				if i < 3 && len(ids) > 2 {
					outcomes, ids = retryTail(batch), ids[:1]
				}
				if err := b.Sink(sink).Settle(t.Context(), batch, outcomes); err != nil {
					t.Errorf("sink %s: %v", sink, err)
					return
				}
				mu.Lock()
				for _, id := range ids {
					got[fmt.Sprint(sink, " ", id)]++
				}
				mu.Unlock()
			}
		})
	}
	sum, err := b.FillSink(t.Context(), "new", time.Time{}, false, nil)
	close(filled)
	group.Wait()
	ok(t, "FillSink", err)
	ids := p.IDs(t, "SELECT DISTINCT id FROM outbox_archive")
	equal(t, "events archived and filled", []int64{int64(len(ids)), sum.Events()}, []int64{events, events})
	for _, id := range ids {
		if all, added := got[fmt.Sprint("all ", id)], got[fmt.Sprint("new ", id)]; all != 1 || added != 1 {
			t.Errorf("event %d arrived %d times at all and %d times at new", id, all, added)
		}
	}
	p.expectEmpty(t)
}

// A sink that was dropped gets what was routed meanwhile, and nothing that it had before.
func fillRestored(t *testing.T, p *sinksCase) {
	all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", BatchSize: 100}
	b := p.open(t, all, crm)
	for _, step := range []string{"had", "dropped", "again"} {
		switch step {
		case "dropped":
			ok(t, "DropSink", b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
		case "again":
			ok(t, "RestoreSink", b.RestoreSink(t.Context(), "crm"))
		}
		ok(t, "ServeSinks", b.ServeSinks(t.Context()))
		p.topics(t, step+".waits")
		want := "[all crm]"
		if step == "dropped" {
			want = "[all]"
		}
		routeTo(t, b, want)
	}
	expectDrained(t, b, "crm", "had.waits again.waits")
	expectFilled(t, b, "crm", time.Time{}, buffer.Filled{Waiting: 1})
	expectDrained(t, b, "crm", "dropped.waits")
	expectDrained(t, b, "all", "had.waits dropped.waits again.waits")
	p.expectEmpty(t)
	expectFilled(t, b, "crm", time.Time{}, buffer.Filled{})
}

// What the single sink has archived, and what waits for it, goes to a new sink; the one that takes its place has it.
func fillSingle(t *testing.T, p *sinksCase) {
	single := p.Single(t, p.mode, false)
	for _, topic := range []string{"archived", "waits"} {
		p.topics(t, topic)
		batch, err := single.Claim(t.Context(), 10, time.Hour)
		ok(t, "Claim", err)
		outcome := buffer.Outcome{Verdict: buffer.Delivered}
		if topic == "waits" {
			outcome = buffer.Outcome{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: 1, Error: "no"}
		}
		ok(t, "Settle", single.Settle(t.Context(), batch, []buffer.Outcome{outcome}))
	}
	b := p.open(t, buffer.Route{Sink: "all", Was: "default", BatchSize: 100}, buffer.Route{Sink: "new", BatchSize: 100})
	expectFilled(t, b, "all", time.Time{}, buffer.Filled{})
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Waiting: 1, Archived: 1})
	p.Exec(t, "UPDATE outbox_batches SET events = events + 1 WHERE sink = 'all'")
	repaired, err := b.Repair(t.Context())
	ok(t, "Repair", err)
	equal(t, "repairs", repaired, buffer.Repair{Corrected: 1})
	expectDrained(t, b, "new", "waits archived")
	expectFilled(t, b, "all", time.Time{}, buffer.Filled{})
	expectDrained(t, b, "all", "waits")
	p.expectEmpty(t)
	for _, sink := range []string{"all", "new"} {
		expectFilled(t, b, sink, time.Time{}, buffer.Filled{})
	}
}

// A sink that was renamed lacks nothing that it had under its former name.
func fillRenamed(t *testing.T, p *sinksCase) {
	all := buffer.Route{Sink: "all", BatchSize: 100}
	b := p.open(t, all, buffer.Route{Sink: "crm", BatchSize: 100})
	p.topics(t, "archived")
	routeTo(t, b, "[all crm]")
	expectDrained(t, b, "all", "archived")
	expectDrained(t, b, "crm", "archived")
	p.topics(t, "waits")
	routeTo(t, b, "[all crm]")
	expectDrained(t, b, "crm", "waits")
	b = p.open(t, all, buffer.Route{Sink: "sales", Was: "crm", BatchSize: 100})
	expectFilled(t, b, "sales", time.Time{}, buffer.Filled{})
	expectDrained(t, b, "all", "waits")
	p.expectEmpty(t)
}

func fillUnknown(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", BatchSize: 100})
	ok(t, "DropSink", b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
	for _, name := range []string{"unknown", "crm", "*"} {
		_, err := b.FillSink(t.Context(), name, time.Time{}, true, nil)
		missing, unknown := errors.AsType[*buffer.NoSinkError](err)
		if !unknown || !slices.Equal(missing.Known, []string{"all"}) {
			t.Errorf("sink %s: %v", name, err)
		}
	}
}

// An event that no sink took is a dead letter, and in the archive. A fill leaves it to the replay, so the new sink gets it once; after a discard a fill
// sends it.
func fillDeadLetters(t *testing.T, p *sinksCase) {
	crm := buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 10}
	open := func(routes ...buffer.Route) RoutedBuffer {
		t.Helper()
		b := p.Strict(t, p.mode, routes...)
		ok(t, "RegisterSinks", b.RegisterSinks(t.Context()))
		return b
	}
	b := open(crm)
	p.topics(t, "x.1", "a.1", "x.2")
	routeTo(t, b, "[crm]")
	expectDrained(t, b, "crm", "a.1")
	p.due(t, "sink = '*'")
	_, err := b.RouteDue(t.Context(), time.Hour) // deletes what no sink took
	ok(t, "RouteDue", err)
	equal(t, "archived events", p.count(t, "outbox_archive"), int64(3))
	b = open(crm, buffer.Route{Sink: "new", Match: []string{"#"}, BatchSize: 10})
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Archived: 1})
	expectDrained(t, b, "new", "a.1")
	replayed, err := b.Replay(t.Context(), buffer.DeadFilter{Topic: "x.1"}, 10)
	ok(t, "Replay", err)
	equal(t, "replayed dead letters", replayed, 1)
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{})
	_, err = b.RouteDue(t.Context(), time.Hour)
	ok(t, "RouteDue", err)
	expectDrained(t, b, "new", "x.1")
	discarded, err := b.Discard(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Discard", err)
	equal(t, "discarded dead letters", discarded, 1)
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Archived: 1})
	expectDrained(t, b, "new", "x.2")
	p.expectEmpty(t)
}

// Of two sinks that were added together, each lacks what was routed before, also when the other one got it.
func fillTwo(t *testing.T, p *sinksCase) {
	all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", BatchSize: 100}
	one, two := buffer.Route{Sink: "one", BatchSize: 100}, buffer.Route{Sink: "two", BatchSize: 100}
	b := p.open(t, all, crm)
	p.topics(t, "a.1", "a.2") // archived
	routeTo(t, b, "[all crm]")
	expectDrained(t, b, "all", "a.1 a.2")
	expectDrained(t, b, "crm", "a.1 a.2")
	p.topics(t, "a.3") // waits for crm
	routeTo(t, b, "[all crm]")
	expectDrained(t, b, "all", "a.3")
	b = p.open(t, all, crm, one, two)
	expectFilled(t, b, "one", time.Time{}, buffer.Filled{Waiting: 1, Archived: 2})
	expectDrained(t, b, "one", "a.3 a.1 a.2")
	expectFilled(t, b, "two", time.Time{}, buffer.Filled{Waiting: 1, Archived: 2})
	expectFilled(t, b, "one", time.Time{}, buffer.Filled{})
	expectDrained(t, b, "two", "a.3 a.1 a.2")
	expectDrained(t, b, "crm", "a.3")
	for _, sink := range []string{"all", "crm", "one", "two"} {
		expectFilled(t, b, sink, time.Time{}, buffer.Filled{})
	}
	p.expectEmpty(t)
}

// A sink that is dropped while another one is filled has what it had.
func fillBesideDropped(t *testing.T, p *sinksCase) {
	all, crm, added := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", BatchSize: 100}, buffer.Route{Sink: "new", BatchSize: 100}
	b := p.open(t, all, crm)
	for _, topic := range []string{"archived", "waits"} {
		p.topics(t, topic)
		routeTo(t, b, "[all crm]")
		expectDrained(t, b, "crm", topic)
		if topic == "archived" {
			expectDrained(t, b, "all", topic)
		}
	}
	b = p.open(t, all, crm, added)
	ok(t, "DropSink", b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
	expectFilled(t, b, "new", time.Time{}, buffer.Filled{Waiting: 1, Archived: 1})
	p.topics(t, "missed")
	routeTo(t, b, "[all new]")
	ok(t, "RestoreSink", b.RestoreSink(t.Context(), "crm"))
	ok(t, "ServeSinks", b.ServeSinks(t.Context()))
	expectFilled(t, b, "crm", time.Time{}, buffer.Filled{Waiting: 1})
	for sink, want := range map[string]string{"all": "waits missed", "new": "waits archived missed", "crm": "missed"} {
		expectDrained(t, b, sink, want)
	}
	p.Exec(t, "DELETE FROM outbox_archive WHERE routes_no = (SELECT min(routes_no) FROM outbox_archive)") // what came back knows it too
	for _, sink := range []string{"all", "new", "crm"} {
		expectFilled(t, b, sink, time.Time{}, buffer.Filled{})
	}
	p.expectEmpty(t)
}
