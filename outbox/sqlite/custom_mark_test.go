package sqlite_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

var journal = sqlite.Config{Custom: buffer.CustomTable{
	Project: "SELECT id, body AS payload FROM {events}", Where: "done IS NULL", Mark: map[string]string{"done": "sends + 1", "sends": "sends + 1"},
}}

const journalDDL = "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT, sends INTEGER NOT NULL DEFAULT 0, done INTEGER, group_id TEXT); INSERT INTO t (body) VALUES ('1'), ('2')"

// TestMark_StillAnEvent: a trigger takes the mark off. Nothing is sent again.
func TestMark_StillAnEvent(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, journalDDL, journal)
	testkit.NoError(t, b.Check(t.Context()))
	batch, err := b.Claim(t.Context(), 10, time.Minute)
	testkit.NoError(t, err)
	run(t, db, "CREATE TRIGGER reset AFTER UPDATE OF done ON t WHEN NEW.done IS NOT NULL BEGIN UPDATE t SET done = NULL WHERE id = NEW.id; END")
	err = b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
	if _, refused := errors.AsType[*buffer.SettleError](err); !refused || !strings.Contains(err.Error(), "still an event") {
		t.Fatalf("settling: %v", err)
	}
	testkit.NoError(t, b.MarkDelivered(t.Context(), batch, batch.IDs()))
	if again, err := b.Claim(t.Context(), 10, time.Minute); again != nil || err != nil {
		t.Fatalf("claimed %+v, %v", again, err)
	}
	run(t, db, "DROP TRIGGER reset")
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	var done int
	testkit.NoError(t, db.QueryRow("SELECT count(*) FROM t WHERE done = 1 AND sends = 1 AND group_id IS NULL").Scan(&done))
	if done != 2 {
		t.Errorf("%d rows are marked, want 2", done)
	}
}

func TestMark_Check(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]buffer.CustomTable{
		"has no column":                 {Mark: map[string]string{"gone": "1"}},
		"names the event":               {Mark: map[string]string{"id": "1"}},
		"does not depend":               {Where: "body = '1'", Mark: map[string]string{"done": "1"}},
		"still true":                    {Mark: map[string]string{"done": "NULL"}},
		"source.mark.done that is not":  {Mark: map[string]string{"done": "1) WHERE (1"}},
		"source.mark.sends that is not": {Mark: map[string]string{"sends": "1, body = 2", "done": "1"}},
	} {
		config := journal
		config.Custom.Mark = c.Mark
		if c.Where != "" {
			config.Custom.Where = c.Where
		}
		_, b := newCustom(t, journalDDL, config)
		if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), says) || !errors.Is(err, buffer.ErrNotReady) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
}

// TestDiagnose_Where: the fix makes a claim read events alone.
func TestDiagnose_Where(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, journalDDL, journal)
	warning := find(b.Diagnose(t.Context()), buffer.LevelWarning, "source.where", `no index of table "t" has only events`)
	if warning == nil {
		t.Fatalf("got %+v", b.Diagnose(t.Context()))
	}
	run(t, db, warning.Fix)
	if findings := b.Diagnose(t.Context()); find(findings, buffer.LevelOK, "source.where", "USING INDEX t_unsent") == nil {
		t.Errorf("after the fix: %+v", findings)
	}
}

// TestMark_SinksChanged: a row changes after one sink has it. It is marked in a version that all sinks have read, and otherwise sent to all of them again.
func TestMark_SinksChanged(t *testing.T) {
	t.Parallel()
	o := newActivitySinks(t, "")
	testkit.NoError(t, o.Close())
	o.exec(t, "ALTER TABLE things ADD COLUMN done_at TEXT")
	o.config.Custom.Where, o.config.Custom.Mark = "done_at IS NULL", map[string]string{"done_at": "'now'"}
	o.Buffer = o.open(t, o.config)
	for i, topic := range []string{"a.odd", "b.odd", "c.odd"} {
		o.activity(t, i+1, topic, "1")
	}
	o.exec(t, "INSERT INTO activities VALUES (9, 'changed.odd', '2')")
	routeAll(t, o.Buffer, "[all odd]")
	deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd", "b.odd", "c.odd"))
	o.exec(t, "UPDATE things SET activity = 9 WHERE activity = 2")
	batch := takeOverOf(t, o.Sink("odd"), "a.odd", "changed.odd", "c.odd")
	ids := batch.IDs()
	testkit.NoError(t, o.Sink("odd").Settle(t.Context(), batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]}, {Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID()},
	}))
	deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "changed.odd", "c.odd"))
	const waiting = "SELECT coalesce(group_concat(activity), '') || '/' || (SELECT count(*) FROM outbox_batches) || '/' || (SELECT count(*) FROM outbox_versions) FROM things WHERE done_at IS NULL AND group_id IS NULL"
	o.expect(t, waiting, "9/0/0")
	o.Buffer = o.open(t, o.config)
	routeAll(t, o.Buffer, "[all odd]")
	for _, sink := range []string{"all", "odd"} {
		deliverAll(t, o.Sink(sink), takeOverOf(t, o.Sink(sink), "changed.odd"))
	}
	o.expect(t, waiting, "/0/0")
}

// TestMark_ManyColumns: a function of SQLite has at most 127 arguments.
func TestMark_ManyColumns(t *testing.T) {
	t.Parallel()
	ddl := journalDDL
	for i := range 250 {
		ddl += fmt.Sprintf("; ALTER TABLE t ADD COLUMN c%d", i)
	}
	db, b := newCustom(t, ddl, journal)
	batch, err := b.Claim(t.Context(), 10, time.Minute)
	testkit.NoError(t, err)
	run(t, db, "UPDATE t SET c249 = 1 WHERE id = 2")
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	var waits int
	testkit.NoError(t, db.QueryRow("SELECT id FROM t WHERE done IS NULL AND group_id IS NULL").Scan(&waits))
	if waits != 2 {
		t.Errorf("row %d waits, want 2", waits)
	}
}
