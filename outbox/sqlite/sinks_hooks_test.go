package sqlite_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// buryAt writes dead letters of a sink.
func buryAt(t *testing.T, p *testDB, sink string, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		_, err := p.db.Exec(`
			INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, sink)
			VALUES ('orders', ?, ?, '{}', '2026-01-02T03:04:05.123Z', ?, 1, 'bad', ?)`, id, sink, buffer.NewGroupID().String(), sink)
		testkit.NoError(t, err)
	}
}

// claimLetters claims the dead letters of a hook's queue, which are those of the sinks with these ids.
func claimLetters(t *testing.T, q buffer.Queue, sinks []string, ids ...int64) *buffer.Lease {
	t.Helper()
	batch, err := q.Claim(t.Context(), 100, lease)
	testkit.NoError(t, err)
	if batch == nil {
		if len(ids) > 0 {
			t.Fatalf("nothing was claimed, want %v", ids)
		}
		return nil
	}
	testkit.Equal(t, "claimed", fmt.Sprint(batch.IDs()), fmt.Sprint(ids))
	for i := range batch.Events {
		if sink := batch.DeadLetter(i).Sink; !slices.Contains(sinks, sink) {
			t.Errorf("claimed a dead letter of %q, want %v", sink, sinks)
		}
	}
	return batch
}

func takeOverLetters(t *testing.T, q buffer.Queue, ids ...int64) *buffer.Lease {
	t.Helper()
	batch, err := q.TakeOver(t.Context(), lease, buffer.DueRetry)
	testkit.NoError(t, err)
	if batch == nil {
		if len(ids) > 0 {
			t.Fatalf("nothing is due, want %v", ids)
		}
		return nil
	}
	testkit.Equal(t, "taken over", fmt.Sprint(batch.IDs()), fmt.Sprint(ids))
	return batch
}

func hookSinks(crm bool) []buffer.Route {
	return []buffer.Route{{Sink: "all", BatchSize: 100}, {Sink: "crm", BatchSize: 100, Hook: crm}}
}

// openHooks opens a buffer and registers its sinks.
func openHooks(t *testing.T, p *testDB, routes ...buffer.Route) *sqlite.Buffer {
	t.Helper()
	b := openSinks(t, p, "hooks", buffer.ClaimRange, routes...)
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	return b
}

// TestSinkHooks: each hook has the dead letters of its own sink, and the pipeline's those of the others, of '*' and of sinks that are gone. An event that
// is dead at two sinks is in both, whichever died first, and what waits for one hook is nothing to the other.
func TestSinkHooks(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openHooks(t, p, hookSinks(true)...)
	buryAt(t, p, "crm", 1, 2, 3)
	buryAt(t, p, "all", 1, 4)
	buryAt(t, p, "*", 5)
	buryAt(t, p, "gone", 6)
	pipeline, crm := b.DeadLetterQueue(), b.SinkDeadLetterQueue("crm")
	for q, want := range map[buffer.Queue]int{pipeline: 4, crm: 3} {
		backlog, err := q.CountBacklog(t.Context(), 100)
		testkit.NoError(t, err)
		status, err := q.Status(t.Context())
		testkit.NoError(t, err)
		if backlog.Unclaimed != want || status.Pending != int64(want) {
			t.Errorf("counted %+v and %+v, want %d", backlog, status, want)
		}
	}
	claimLetters(t, b.SinkDeadLetterQueue("all"), nil)
	ofPipeline := claimLetters(t, pipeline, []string{"all", "*", "gone"}, 1, 4, 5, 6)
	ofCRM := claimLetters(t, crm, []string{"crm"}, 1, 2, 3)
	testkit.NoError(t, crm.Settle(t.Context(), ofCRM, retryAll(ofCRM)))
	takeOverLetters(t, pipeline)
	testkit.NoError(t, pipeline.Settle(t.Context(), ofPipeline, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	ofCRM = takeOverLetters(t, crm, 1, 2, 3)
	testkit.NoError(t, crm.Settle(t.Context(), ofCRM, retryRest(ofCRM)))
	deliverAll(t, crm, takeOverLetters(t, crm, 2, 3))
	expectNotified(t, p, 0)
}

func expectNotified(t *testing.T, p *testDB, left int64) {
	t.Helper()
	if n := number(t, p, "SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NULL"); n != left {
		t.Errorf("hooks were not notified of %d dead letters, want %d", n, left)
	}
	if n := countRows(t, p, "outbox_batches"); left == 0 && n != 0 {
		t.Errorf("%d batches are left", n)
	}
}

// TestSinkHooks_Change: what waits for the hook of a sink goes on with the sink when that is renamed, and to the pipeline's hook when the sink has none any
// more, is dropped, or is a single one again; also what comes back later.
func TestSinkHooks_Change(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*testing.T, *testDB, *sqlite.Buffer) buffer.Queue{
		"renamed": func(t *testing.T, p *testDB, _ *sqlite.Buffer) buffer.Queue {
			b := openHooks(t, p, buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "sales", Was: "crm", BatchSize: 100, Hook: true})
			claimLetters(t, b.DeadLetterQueue(), nil)
			return b.SinkDeadLetterQueue("sales")
		},
		"removed": func(t *testing.T, p *testDB, _ *sqlite.Buffer) buffer.Queue {
			return openHooks(t, p, hookSinks(false)...).DeadLetterQueue()
		},
		"dropped": func(t *testing.T, _ *testDB, b *sqlite.Buffer) buffer.Queue {
			testkit.NoError(t, b.DropSink(t.Context(), "crm", buffer.DroppedDead))
			return b.DeadLetterQueue()
		},
		"single": func(t *testing.T, p *testDB, b *sqlite.Buffer) buffer.Queue {
			for _, sink := range []string{"crm", "all"} {
				testkit.NoError(t, b.DropSink(t.Context(), sink, buffer.DroppedDiscarded))
			}
			single := openSingle(t, p, "single", buffer.ClaimRange)
			_, err := single.Claim(t.Context(), 1, lease)
			testkit.NoError(t, err)
			return single.DeadLetterQueue()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newSinksDB(t, buffer.ClaimRange)
			b := openHooks(t, p, hookSinks(true)...)
			crm := b.SinkDeadLetterQueue("crm")
			buryAt(t, p, "crm", 1)
			waits := claimLetters(t, crm, []string{"crm"}, 1)
			testkit.NoError(t, crm.Settle(t.Context(), waits, retryAll(waits)))
			buryAt(t, p, "crm", 2, 3)
			leased := claimLetters(t, crm, []string{"crm"}, 2, 3)
			buryAt(t, p, "crm", 4)

			next := change(t, p, b)
			testkit.NoError(t, crm.Settle(t.Context(), leased, retryRest(leased)))
			_, err := next.CountBacklog(t.Context(), 100)
			testkit.NoError(t, err)
			if name != "single" {
				_, err := b.EndDropped(t.Context(), 10)
				testkit.NoError(t, err)
			}
			claimLetters(t, b.SinkDeadLetterQueue("all"), nil)
			for _, batch := range []*buffer.Lease{takeOverLetters(t, next, 1), takeOverLetters(t, next, 3), claimLetters(t, next, []string{"crm"}, 4)} {
				deliverAll(t, next, batch)
			}
			expectNotified(t, p, 0)
		})
	}
}

// TestSinkHooks_OtherRelay: the registry says which hook has a dead letter. So a relay without the sink in its file leaves that hook's to the relay that has it.
func TestSinkHooks_OtherRelay(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openHooks(t, p, hookSinks(true)...)
	other := openHooks(t, p, buffer.Route{Sink: "all", BatchSize: 100})
	buryAt(t, p, "crm", 1)
	claimLetters(t, other.DeadLetterQueue(), nil)
	deliverAll(t, b.SinkDeadLetterQueue("crm"), claimLetters(t, b.SinkDeadLetterQueue("crm"), []string{"crm"}, 1))
}

// TestSinkHooks_Close: without a hook of the pipeline, only the dead letters of sinks with a hook of their own have to be notified before they are closed.
func TestSinkHooks_Close(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openHooks(t, p, hookSinks(true)...)
	buryAt(t, p, "crm", 1, 2)
	buryAt(t, p, "all", 1)
	crm := b.SinkDeadLetterQueue("crm")
	batch := claimLetters(t, crm, []string{"crm"}, 1, 2)
	testkit.NoError(t, crm.Settle(t.Context(), batch, retryRest(batch)))
	for f, want := range map[*buffer.DeadFilter]int64{{SinkNotified: true}: 2, {Notified: true}: 1, {Notified: true, SinkNotified: true}: 1, {}: 3} {
		n, err := b.CountDead(t.Context(), *f)
		testkit.NoError(t, err)
		if n.Open != want {
			t.Errorf("%+v selects %d dead letters, want %d", *f, n.Open, want)
		}
	}
	if n, err := b.Discard(t.Context(), buffer.DeadFilter{SinkNotified: true}, 10); n != 2 || err != nil {
		t.Errorf("discarded %d, %v; want 2", n, err)
	}
}
