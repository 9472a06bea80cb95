package sqlite_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func openSingle(t *testing.T, p *testDB, owner string, mode buffer.ClaimMode) *sqlite.Buffer {
	t.Helper()
	return openBuffer(t, p, sqlite.Config{Owner: owner, Claim: mode})
}

func retryAll(batch *buffer.Lease) []buffer.Outcome {
	return []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: 1, Error: "no"}}
}

func retryRest(batch *buffer.Lease) []buffer.Outcome {
	ids := batch.IDs()
	return []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]},
		{Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID(), Attempts: 1, Error: "no"},
	}
}

// TestRenameSink: a renamed sink has the batches and dead letters of its old name, and an old relay beside serves it.
func TestRenameSink(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		old := openSinks(t, p, "old", mode, dropSinks...)
		insertTopics(t, p, "a.1", "a.2", "a.3")
		routeAll(t, old, "[all crm]")
		leased := takeOverOf(t, old.Sink("crm"), "a.1", "a.2", "a.3")
		insertTopics(t, p, "b.dies")
		routeAll(t, old, "[crm]")
		dies := takeOverOf(t, old.Sink("crm"), "b.dies")
		testkit.NoError(t, old.Sink("crm").Settle(t.Context(), dies, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
		insertTopics(t, p, "b.waits")
		routeAll(t, old, "[crm]")

		renamed := buffer.Route{Sink: "sales", Was: "crm", BatchSize: 100}
		b := openSinks(t, p, "new", mode, dropSinks[0], renamed)
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		sinks := expectSinks(t, b, "all 1/3", "sales 2/4")
		if fmt.Sprint(sinks[1].Formerly) != "[crm]" || !sinks[1].Configured {
			t.Errorf("the sink is %+v", sinks[1])
		}
		deliverAll(t, b.Sink("sales"), takeOverOf(t, b.Sink("sales"), "b.waits"))

		// What the old relay was sending goes on under the new name, also a part.
		testkit.NoError(t, old.Sink("crm").Settle(t.Context(), leased, retryRest(leased)))
		expectSinks(t, b, "all 1/3", "sales 1/2")

		// The old relay finds its sink by the old name: it routes to it and takes its batches.
		insertTopics(t, p, "b.old")
		routed, err := old.Route(t.Context(), 100, lease, func(sink string) bool { return sink == "crm" })
		testkit.NoError(t, err)
		if len(routed.Leases) != 1 || routed.Leases[0].Sink != "crm" {
			t.Fatalf("the old relay routed %+v, want a batch for its crm", routed)
		}
		deliverAll(t, old.Sink("crm"), routed.Leases[0].Lease)
		testkit.NoError(t, openSinks(t, p, "old again", mode, dropSinks...).RegisterSinks(t.Context()))
		expectSinks(t, b, "all 1/3", "sales 1/2")
		deliverAll(t, old.Sink("crm"), takeOverOf(t, old.Sink("crm"), "a.2", "a.3"))
		testkit.NoError(t, old.ServeSinks(t.Context()))

		for name, want := range map[string]int64{"sales": 1, "all": 0} {
			if n, err := b.CountDead(t.Context(), buffer.DeadFilter{Sink: name}); n.Open != want || err != nil {
				t.Errorf("%s has %d dead letters, %v; want %d", name, n.Open, err, want)
			}
		}
		expectDead(t, b, "sales")
		expectDead(t, old, "crm")
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v; want 1", n, err)
		}
		deliverAll(t, b.Sink("sales"), takeOverOf(t, b.Sink("sales"), "b.dies"))
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.1", "a.2", "a.3"))
		expectEmpty(t, p)
	})
}

// expectDead expects one dead letter, of the sink sales, whose name in the buffer's configuration is given.
func expectDead(t *testing.T, b interface {
	buffer.Buffer
	buffer.Router
}, sink string,
) {
	t.Helper()
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Sinks) != 3 || s.Sinks[1].Name != sink || s.Sinks[1].Dead != 1 || s.Sinks[1].Unnotified != 1 || s.Sinks[1].Dropped {
		t.Errorf("the sinks are %+v, want one dead letter of %s", s.Sinks, sink)
	}
	if s, err := b.Sink(sink).(buffer.Inspector).Status(t.Context()); err != nil || s.Dead != 1 {
		t.Errorf("sink %s has %+v, %v, want one dead letter", sink, s, err)
	}
	for _, name := range []string{"", "crm", "sales"} {
		dead, err := b.ListDead(t.Context(), buffer.DeadFilter{Sink: name}, nil, 10)
		if err != nil || len(dead) != 1 || dead[0].Sink != "sales" {
			t.Errorf("the dead letters of %q are %+v, %v, want one of sales", name, dead, err)
		}
	}
}

// TestRenameSink_Reused: a configuration that has the old name too means another sink, which gets events of its own.
func TestRenameSink_Reused(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	testkit.NoError(t, openSinks(t, p, "first", "", buffer.Route{Sink: "crm", BatchSize: 10}).RegisterSinks(t.Context()))
	testkit.NoError(t, openSinks(t, p, "second", "", buffer.Route{Sink: "sales", Was: "crm", BatchSize: 10}).RegisterSinks(t.Context()))
	b := openSinks(t, p, "third", "", buffer.Route{Sink: "crm", BatchSize: 10}, buffer.Route{Sink: "sales", BatchSize: 10})
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	for _, s := range expectSinks(t, b, "crm 0/0", "sales 0/0") {
		if len(s.Formerly) > 0 {
			t.Errorf("%s was %v", s.Name, s.Formerly)
		}
	}
	insertTopics(t, p, "x")
	routeAll(t, b, "[crm sales]")
}

// TestRenameSink_Merged: a relay that ran with the new name before it knew the old one takes over what waits for that.
func TestRenameSink_Merged(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, buffer.Route{Sink: "crm", BatchSize: 10})
		insertTopics(t, p, "x")
		routeAll(t, b, "[crm]")
		b = openSinks(t, p, "second", mode, buffer.Route{Sink: "sales", BatchSize: 10})
		insertTopics(t, p, "y")
		routeAll(t, b, "[crm sales]")
		b = openSinks(t, p, "third", mode, buffer.Route{Sink: "sales", Was: "crm", BatchSize: 10})
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		if sinks, err := b.Sinks(t.Context()); err != nil || len(sinks) != 1 || sinks[0].Batches < 2 {
			t.Fatalf("sinks are %+v, %v; want one with the batches of both", sinks, err)
		}
		for {
			batch, err := b.Sink("sales").TakeOver(t.Context(), lease, buffer.DueRetry)
			testkit.NoError(t, err)
			if batch == nil {
				break
			}
			deliverAll(t, b.Sink("sales"), batch)
		}
		expectEmpty(t, p)
	})
}

// TestRenameSink_Dropped: what waits for a dropped sink is not taken over.
func TestRenameSink_Dropped(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openSinks(t, p, "first", "", buffer.Route{Sink: "crm", BatchSize: 10})
	insertTopics(t, p, "x")
	routeAll(t, b, "[crm]")
	testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDead))
	b = openSinks(t, p, "second", "", buffer.Route{Sink: "sales", Was: "crm", BatchSize: 10})
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	expectSinks(t, b, "crm 1/1 dropped", "sales 0/0")
	endAll(t, b)
	expectEmpty(t, p)
}

// TestSingleToSeveral: batches of the single sink wait, and are said to, until an entry of sinks says that it was the single one, or a command
// drops them. An old relay with the single sink puts some back later.
func TestSingleToSeveral(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		for _, way := range []string{"was: default", "drop", "drop --dead"} {
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				p := newSinksDB(t, mode)
				old := openSingle(t, p, "old", mode)
				claim := func(topics ...string) *buffer.Lease {
					t.Helper()
					insertTopics(t, p, topics...)
					batch, err := old.Claim(t.Context(), 10, lease)
					testkit.NoError(t, err)
					return batch
				}
				waits, leased, dies := claim("a.1", "a.11"), claim("a.2", "a.3"), claim("a.dies")
				testkit.NoError(t, old.Settle(t.Context(), waits, retryAll(waits)))
				testkit.NoError(t, old.Settle(t.Context(), dies, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))

				b := openSinks(t, p, "new", mode, dropSinks...)
				testkit.NoError(t, b.RegisterSinks(t.Context()))
				sinks := expectSinks(t, b, "all 0/0", "crm 0/0", "default 2/4")
				if f, ok := sinks[2].Finding(); !ok || !strings.Contains(f.Text, "2 batches of 4 events from when the pipeline had a single sink wait") || !strings.Contains(f.Fix, "was: default") {
					t.Errorf("the finding is %+v", f)
				}
				if ended := endAll(t, b); ended.Batches > 0 {
					t.Fatalf("%+v ended, which nobody dropped", ended)
				}
				if way == "was: default" {
					first := dropSinks[0]
					first.Was = "default"
					b = openSinks(t, p, "newer", mode, first, dropSinks[1])
					testkit.NoError(t, b.RegisterSinks(t.Context()))
					expectSinks(t, b, "all 2/4", "crm 0/0")
					whole := takeOverOf(t, b.Sink("all"), "a.1", "a.11")
					testkit.NoError(t, b.Sink("all").Settle(t.Context(), whole, retryRest(whole)))
					deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.11"))
					testkit.NoError(t, old.Settle(t.Context(), leased, retryRest(leased)))
					endAll(t, b)
					expectSinks(t, b, "all 1/1", "crm 0/0")
					part := takeOverOf(t, b.Sink("all"), "a.3")
					testkit.NoError(t, b.Sink("all").Settle(t.Context(), part, retryAll(part)))
					deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.3"))
					if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
						t.Fatalf("replayed %d, %v; want 1", n, err)
					}
					deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.dies"))
					takeOverOf(t, b.Sink("crm"))
					expectEmpty(t, p)
					return
				}
				as, dead := buffer.DroppedDiscarded, "[]"
				if way == "drop --dead" {
					as, dead = buffer.DroppedDead, "[a.1 a.11 a.2 a.3]"
				}
				testkit.NoError(t, b.DropSink(t.Context(), "default", as))
				endAll(t, b)
				testkit.NoError(t, old.Settle(t.Context(), leased, retryAll(leased)))
				endAll(t, b)
				expectSinks(t, b, "all 0/0", "crm 0/0", "default 0/0 dropped")
				if got := texts(t, p, "SELECT topic FROM outbox_dead_letters WHERE sink = 'default' AND topic <> 'a.dies' ORDER BY event_id"); fmt.Sprint(got) != dead {
					t.Errorf("dead letters: %v, want %s", got, dead)
				}
				// A dead letter of the single sink is routed again.
				if n, err := b.Replay(t.Context(), buffer.DeadFilter{Topic: "a.dies"}, 10); n != 1 || err != nil {
					t.Fatalf("replayed %d, %v; want 1", n, err)
				}
				routed, err := b.RouteDue(t.Context(), lease)
				testkit.NoError(t, err)
				if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" {
					t.Fatalf("routed %+v, want to all and crm", routed)
				}
				for _, sink := range routed.Sinks {
					deliverAll(t, b.Sink(sink), takeOverOf(t, b.Sink(sink), "a.dies"))
				}
				expectEmpty(t, p)
			})
		}
	})
}

// TestSeveralToSingle: a relay with a single sink takes the table back when all sinks are dropped, with what was claimed and not routed.
func TestSeveralToSingle(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "several", mode, dropSinks...)
		insertTopics(t, p, "a.1")
		routeAll(t, b, "[all crm]")
		insertTopics(t, p, "a.2")
		unrouted, err := b.Claim(t.Context(), 10, lease) // and ends before it is routed
		testkit.NoError(t, err)
		single := openSingle(t, p, "single", mode)
		insertTopics(t, p, "a.3")
		if batch, err := single.Claim(t.Context(), 10, lease); batch != nil || !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "(all, crm)") {
			t.Errorf("claimed %+v, %v; want an error that names the sinks", batch, err)
		}
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.1"))
		testkit.NoError(t, single.DropSink(t.Context(), "all", buffer.DroppedDiscarded))
		if _, err := single.Claim(t.Context(), 10, lease); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "relay sinks drop crm") {
			t.Errorf("claims before the last is dropped: %v", err)
		}
		testkit.NoError(t, single.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
		batch, err := single.Claim(t.Context(), 10, lease) // ends what waited for crm
		testkit.NoError(t, err)
		if batch == nil || batch.Len() != 1 || batch.Events[0].Topic != "a.3" {
			t.Fatalf("claimed %+v, want a.3", batch)
		}
		if _, err := sqlite.RouteLease(t.Context(), b, unrouted); err == nil {
			t.Error("what the single sink has is routed")
		}
		testkit.NoError(t, single.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		exec(t, p.db, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
		deliverAll(t, single, takeOverOf(t, single, "a.2"))
		expectEmpty(t, p)
		testkit.NoError(t, b.RegisterSinks(t.Context())) // an old relay, whose sinks are all dropped, changes nothing
		insertTopics(t, p, "a.4")
		batch, err = single.Claim(t.Context(), 10, lease)
		testkit.NoError(t, err)
		deliverAll(t, single, batch)
		expectEmpty(t, p)

		insertTopics(t, p, "a.5") // and back to several
		testkit.NoError(t, b.RestoreSink(t.Context(), "crm"))
		testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded)) // by mistake
		testkit.NoError(t, b.RestoreSink(t.Context(), "crm"))
		testkit.NoError(t, b.ServeSinks(t.Context()))
		routeAll(t, b, "[crm]")
		deliverAll(t, b.Sink("crm"), takeOverOf(t, b.Sink("crm"), "a.5"))
		expectEmpty(t, p)
	})
}
