package sqlite_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// bury makes dead letters of all events.
func bury(t *testing.T, b *sqlite.Buffer) {
	t.Helper()
	batch, err := b.Claim(t.Context(), 10, time.Minute)
	testkit.NoError(t, err)
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}}))
}

// TestMigrate_AddsSink: a file that was made before dead letters had a sink, and a reason, gets the columns, once. Its dead letters stay,
// and so does whatever a relay that does not know the column writes.
func TestMigrate_AddsSink(t *testing.T) {
	t.Parallel()
	file, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	made := schemaOf(t, file)
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	exec(t, file, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
	bury(t, b)
	exec(t, file, "ALTER TABLE outbox_dead_letters DROP COLUMN sink; ALTER TABLE outbox_dead_letters DROP COLUMN closed_reason")
	expectNotReady(t, b.Check(t.Context()), `table "outbox_dead_letters" has no column sink`)
	for _, want := range [][]string{{"outbox_dead_letters.closed_reason", "outbox_dead_letters.sink"}, nil} {
		if applied := migrate(t, url, sqlite.SchemaConfig{}); !slices.Equal(applied, want) {
			t.Fatalf("applied %v, want %v", applied, want)
		}
	}
	testkit.NoError(t, b.Check(t.Context()))
	testkit.Equal(t, "tables and indexes", len(schemaOf(t, file)), len(made))
	dead, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	testkit.NoError(t, err)
	testkit.Equal(t, "dead letters", len(dead), 1)
	testkit.Equal(t, "sink", dead[0].Sink, "")
}

// TestDeadLetters_Sink: a filter by sink finds that sink's dead letters only, and nothing else is replayed or discarded.
func TestDeadLetters_Sink(t *testing.T) {
	t.Parallel()
	file, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	exec(t, file, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2'), ('t', '3')")
	bury(t, b)
	exec(t, file, "UPDATE outbox_dead_letters SET sink = 'crm' WHERE event_id = 2; UPDATE outbox_dead_letters SET sink = 'mail' WHERE event_id = 3")
	sinks := func(f buffer.DeadFilter) (found []string) {
		dead, err := b.ListDead(t.Context(), f, nil, 10)
		testkit.NoError(t, err)
		for i := range dead {
			found = append(found, dead[i].Sink)
		}
		return found
	}
	crm := buffer.DeadFilter{Sink: "crm"}
	if d := cmp.Diff([]string{"", "crm", "mail"}, sinks(buffer.DeadFilter{})); d != "" {
		t.Errorf("all dead letters:\n%s", d)
	}
	for _, closed := range []bool{false, true} {
		if d := cmp.Diff([]string{"crm"}, sinks(buffer.DeadFilter{Sink: "crm", Closed: closed})); d != "" {
			t.Errorf("dead letters of crm:\n%s", d)
		}
	}
	count, err := b.CountDead(t.Context(), crm)
	testkit.NoError(t, err)
	testkit.Equal(t, "dead letters of crm", count.Open, int64(1))
	discarded, err := b.Discard(t.Context(), crm, 10)
	testkit.NoError(t, err)
	testkit.Equal(t, "discarded", discarded, 1)
	replayed, err := b.Replay(t.Context(), buffer.DeadFilter{Sink: "mail"}, 10)
	testkit.NoError(t, err)
	testkit.Equal(t, "replayed", replayed, 1)
	if d := cmp.Diff([]string{""}, sinks(buffer.DeadFilter{})); d != "" {
		t.Errorf("dead letters left:\n%s", d)
	}
}
