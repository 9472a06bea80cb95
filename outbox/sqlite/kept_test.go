package sqlite_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// keepers are triggers that make a DELETE do nothing.
var keepers = map[string]string{
	"trigger":     `CREATE TRIGGER keep BEFORE DELETE ON %s BEGIN SELECT RAISE(IGNORE); END`,
	"soft delete": `CREATE TRIGGER keep DELETE ON %[1]s BEGIN UPDATE %[1]s SET topic = 'deleted' WHERE id = OLD.id; SELECT RAISE ( ignore ); END`,
}

// TestSettle_KeptEvents: events that a DELETE leaves without an error are recorded as delivered, and deleted later.
func TestSettle_KeptEvents(t *testing.T) {
	t.Parallel()
	stamp, ranges := harness("outbox_events", buffer.ClaimStamp), harness("outbox_events", buffer.ClaimRange)
	for name, c := range map[string]struct {
		harness buffertest.Harness
		options buffertest.Options
	}{
		"stamp":               {stamp, buffertest.Options{Claim: buffer.ClaimStamp}},
		"range":               {ranges, buffertest.Options{Claim: buffer.ClaimRange}},
		"order":               {stamp, buffertest.Options{Ordered: true}},
		"archive":             {ranges, buffertest.Options{Claim: buffer.ClaimRange, Archive: true}},
		"custom table":        {customHarness("changes", "TEXT"), buffertest.Options{}},
		"custom table, bytes": {customHarness("changes", "BLOB"), buffertest.Options{Archive: true}},
	} {
		for keeper, statement := range keepers {
			t.Run(name+"/"+keeper, func(t *testing.T) {
				t.Parallel()
				testKept(t, c.harness.Open(t, c.options), statement)
			})
		}
	}
}

func TestSettle_Refused(t *testing.T) {
	t.Parallel()
	stamp, ranges := harness("outbox_events", buffer.ClaimStamp), harness("outbox_events", buffer.ClaimRange)
	for name, open := range map[string]func(testing.TB) *buffertest.Fixture{
		"stamp": func(t testing.TB) *buffertest.Fixture {
			return stamp.Open(t, buffertest.Options{Claim: buffer.ClaimStamp})
		},
		"range": func(t testing.TB) *buffertest.Fixture {
			return ranges.Open(t, buffertest.Options{Claim: buffer.ClaimRange})
		},
		"order": func(t testing.TB) *buffertest.Fixture { return stamp.Open(t, buffertest.Options{Ordered: true}) },
		"custom table": func(t testing.TB) *buffertest.Fixture {
			return customHarness("changes", "TEXT").Open(t, buffertest.Options{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buffertest.RefusedSettle(t, open(t), "CREATE TRIGGER refuse BEFORE DELETE ON %[1]s WHEN OLD.id = %[2]d BEGIN SELECT RAISE(ABORT, 'not that one'); END", "DROP TRIGGER refuse; SELECT '%s'")
		})
	}
}

func TestSettle_DroppedDeadLetter(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]buffertest.Harness{
		"stamp": harness("outbox_events", buffer.ClaimStamp), "range": harness("outbox_events", buffer.ClaimRange),
		"custom table": customHarness("changes", "TEXT"), "custom table, bytes": customHarness("changes", "BLOB"),
	} {
		for when, drop := range map[string]string{
			"before": "CREATE TRIGGER drops BEFORE INSERT ON outbox_dead_letters BEGIN SELECT RAISE(IGNORE); END",
			"after":  "CREATE TRIGGER drops AFTER INSERT ON outbox_dead_letters BEGIN DELETE FROM outbox_dead_letters WHERE event_id = NEW.event_id; END",
		} {
			t.Run(name+"/"+when, func(t *testing.T) {
				t.Parallel()
				buffertest.DroppedDeadLetter(t, h.Open(t, buffertest.Options{Claim: h.Claim}), drop, "DROP TRIGGER drops")
			})
		}
	}
}

// TestReplay_DroppedEvent: a trigger drops an event that is put back. No dead letter is closed.
func TestReplay_DroppedEvent(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimRange).Open(t, buffertest.Options{Claim: buffer.ClaimRange})
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event)
	b := claim(t, f.Buffer, 10)
	testkit.NoError(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
	f.Exec(t, fmt.Sprintf("CREATE TRIGGER drops BEFORE INSERT ON outbox_events WHEN NEW.id = %d BEGIN SELECT RAISE(IGNORE); END", ids[1]))
	if n, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10); err == nil {
		t.Fatalf("replayed %d", n)
	}
	open, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	testkit.NoError(t, err)
	testkit.Equal(t, "open dead letters", len(open), 2)
	f.Exec(t, "DROP TRIGGER drops")
	n, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10)
	testkit.NoError(t, err)
	testkit.Equal(t, "replayed", n, 2)
}

func testKept(t *testing.T, f *buffertest.Fixture, keeper string) {
	t.Helper()
	key := "a"
	event := outbox.Event{Topic: "t", Key: &key, Payload: []byte("1")}
	ids := f.Insert(t, event, event, event, event)
	b, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
	testkit.NoError(t, err)
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[0])) // by hand
	f.Exec(t, fmt.Sprintf(keeper, f.Table))
	part := buffer.NewGroupID()
	err = f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:2]},
		{Verdict: buffer.Dead, IDs: ids[2:3], Error: "no"},
		{Verdict: buffer.Retry, IDs: ids[3:], GroupID: part, After: time.Hour},
	})
	wantKept(t, err, 2, 3)
	testkit.Equal(t, "dead letters", len(f.Dead(t)), 1)
	_, err = f.Buffer.CountBacklog(t.Context(), 10)
	testkit.NoError(t, err)
	if again, err := f.Buffer.Claim(t.Context(), 10, time.Hour); err != nil || again != nil {
		t.Fatalf("claimed %+v, %v", again, err)
	}

	f.ExpireLease(t, b.GroupID, time.Hour)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
	testkit.NoError(t, err)
	expectIDs(t, "to be deleted", b.Delivered, ids[1:3])
	wantKept(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}), 2, 2)
	rows := f.Ledger(t)
	i := slices.IndexFunc(rows, func(r buffertest.LedgerRow) bool { return r.GroupID == b.GroupID })
	if i < 0 || rows[i].State != "delivered" || rows[i].DueIn <= buffer.KeptRetry(1) {
		t.Fatalf("the ledger: %+v", rows)
	}
	audit, err := f.Buffer.Audit(t.Context())
	testkit.NoError(t, err)
	if !audit.Agrees() {
		t.Errorf("audit: %+v", audit)
	}

	f.Exec(t, "DROP TRIGGER keep")
	f.ExpireLease(t, b.GroupID, time.Hour)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
	testkit.NoError(t, err)
	testkit.NoError(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if rows := f.Rows(t); len(rows) != 1 || rows[0].ID != ids[3] {
		t.Errorf("left: %v", rows)
	}
	if rows := f.Ledger(t); len(rows) != 1 || rows[0].GroupID != part {
		t.Errorf("the ledger: %+v", rows)
	}
}

func wantKept(t *testing.T, err error, kept, of int) {
	t.Helper()
	got, ok := errors.AsType[*buffer.KeptError](err)
	if !ok || got.Kept != kept || got.Of != of || got.RetryIn <= 0 {
		t.Fatalf("got %+v; want %d of %d kept", err, kept, of)
	}
}

// TestSettle_DeletedByHand: events that somebody else has deleted are no error.
func TestSettle_DeletedByHand(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimRange).Open(t, buffertest.Options{Claim: buffer.ClaimRange})
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event)
	b, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
	testkit.NoError(t, err)
	f.Exec(t, fmt.Sprintf("DELETE FROM outbox_events WHERE id = %d", ids[1]))
	testkit.NoError(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	testkit.Equal(t, "ledger rows", len(f.Ledger(t)), 0)
}

// TestDiagnose_Deletes: doctor names the trigger, and the fix works.
func TestDiagnose_Deletes(t *testing.T) {
	t.Parallel()
	found := maps.Clone(keepers)
	found["dead letter"] = `CREATE TRIGGER drops INSERT ON outbox_dead_letters BEGIN SELECT RAISE(IGNORE); END; SELECT '%s'`
	for name, keeper := range found {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := database(t)
			migrate(t, url, sqlite.SchemaConfig{})
			exec(t, db, "CREATE TABLE audit (id); CREATE TRIGGER audit BEFORE DELETE ON outbox_events BEGIN INSERT INTO audit VALUES (OLD.id); END")
			exec(t, db, "CREATE TRIGGER too_late AFTER DELETE ON outbox_events BEGIN SELECT RAISE(IGNORE); END")
			exec(t, db, "CREATE TRIGGER inserts BEFORE INSERT ON outbox_events WHEN NEW.id = -7 BEGIN SELECT RAISE(IGNORE); END")
			if some := bad(examined(t, url)); len(some) != 0 {
				t.Fatalf("found %+v", some)
			}
			exec(t, db, fmt.Sprintf(keeper, "outbox_events"))
			some := bad(examined(t, url))
			if len(some) != 1 || some[0].Subject != "deletes" {
				t.Fatalf("found %+v", some)
			}
			exec(t, db, some[0].Fix)
			if some := bad(examined(t, url)); len(some) != 0 {
				t.Fatalf("found %+v", some)
			}
		})
	}
}
