package sqlite_test

import (
	"errors"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestFillSink_Refused: custom tables and sinks that keep order.
func TestFillSink_Refused(t *testing.T) {
	t.Parallel()
	ordered := openSinks(t, newSinksDB(t, buffer.ClaimAuto), "ordered", buffer.ClaimAuto, buffer.Route{Sink: "all", BatchSize: 1, Ordered: true})
	custom := openSinks(t, newSinksDB(t, "TEXT"), "custom", buffer.ClaimStamp, buffer.Route{Sink: "all", BatchSize: 1})
	for _, b := range []*sqlite.Buffer{ordered, custom} {
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		if _, err := b.FillSink(t.Context(), "all", time.Time{}, true, nil); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("unexpected error: %v", err)
		}
	}
}

// TestMigrate_AddsFillColumns: a file that was made before fills gets the columns and indexes. The sinks that it has lack nothing of what was
// routed before, and one that is added lacks what is routed from then on only.
func TestMigrate_AddsFillColumns(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimAuto)
	made := schemaOf(t, p.db)
	open := func(routes ...buffer.Route) *sqlite.Buffer {
		t.Helper()
		b := openBuffer(t, p, sqlite.Config{Archive: "outbox_archive", Sinks: routes})
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		return b
	}
	all := buffer.Route{Sink: "all", BatchSize: 10}
	old := open(all)
	insertTopics(t, p, "archived")
	route(t, old)
	deliverDue(t, old, "all")
	insertTopics(t, p, "waits")
	route(t, old)
	for _, statement := range []string{
		"DROP INDEX outbox_batches_seq", "DROP INDEX outbox_batches_last_seq", "ALTER TABLE outbox_batches DROP COLUMN seq",
		"ALTER TABLE outbox_batches DROP COLUMN routes_no", "ALTER TABLE outbox_sinks DROP COLUMN routed", "ALTER TABLE outbox_sinks DROP COLUMN registered_at",
		"ALTER TABLE outbox_archive DROP COLUMN routes_no",
	} {
		exec(t, p.db, statement)
	}
	added := []string{"outbox_batches.routes_no", "outbox_batches.seq", "outbox_sinks.routed", "outbox_sinks.registered_at", "outbox_archive.routes_no"}
	testkit.Equal(t, "applied", migrate(t, p.url, sqlite.SchemaConfig{Archive: "outbox_archive"}), added)
	testkit.Equal(t, "applied again", migrate(t, p.url, sqlite.SchemaConfig{Archive: "outbox_archive"}), nil)
	testkit.Equal(t, "tables and indexes", len(schemaOf(t, p.db)), len(made))
	b := open(all, buffer.Route{Sink: "new", BatchSize: 10})
	testkit.NoError(t, b.Check(t.Context()))
	insertTopics(t, p, "later")
	route(t, b)
	for sink, want := range map[string]buffer.Filled{"all": {}, "new": {Archived: 1}} { // when "waits" was routed is not known
		got, err := b.FillSink(t.Context(), sink, time.Time{}, true, nil)
		testkit.NoError(t, err)
		testkit.Equal(t, "events that "+sink+" lacks", got, want)
	}
}

func route(t *testing.T, b *sqlite.Buffer) {
	t.Helper()
	routed, err := b.Route(t.Context(), 100, lease, func(string) bool { return false })
	testkit.NoError(t, err)
	if routed == nil {
		t.Fatal("nothing was routed")
	}
}

func deliverDue(t *testing.T, b *sqlite.Buffer, sink string) {
	t.Helper()
	batch, err := b.Sink(sink).TakeOver(t.Context(), lease, buffer.DueRetry)
	testkit.NoError(t, err)
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}
