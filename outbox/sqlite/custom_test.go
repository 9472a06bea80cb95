package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// customDB is a database with a custom table, made by ddl, and a buffer on it.
func newCustom(t *testing.T, ddl string, c sqlite.Config) (*sql.DB, *sqlite.Buffer) {
	t.Helper()
	db, url := database(t)
	_, err := db.Exec(ddl)
	testkit.NoError(t, err)
	if c.Table == "" {
		c.Table = "t"
	}
	if c.Custom.ID == "" {
		c.Custom.ID = "id"
	}
	c.URL, c.Pipeline = url, "orders"
	migrate(t, url, sqlite.SchemaConfig{Table: c.Table, Archive: c.Archive, Custom: true})
	b, err := sqlite.Open(c)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return db, b
}

func run(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.Exec(statement)
	testkit.NoError(t, err)
}

func claimed(t *testing.T, b *sqlite.Buffer) *buffer.Lease {
	t.Helper()
	batch, err := b.Claim(t.Context(), 100, time.Hour)
	testkit.NoError(t, err)
	if batch == nil {
		t.Fatal("there was nothing to claim")
	}
	return batch
}

const (
	byGroup = "SELECT id, payload FROM t WHERE group_id = ?"
	byKey   = "SELECT id, payload FROM {events}"
)

// TestCustomTable_OddNames: names are quoted, also if they equal names of the relay.
func TestCustomTable_OddNames(t *testing.T) {
	t.Parallel()
	const (
		table  = `their "custom_events" 'outbox_events' % ?1`
		key    = `the "id"?`
		column = `custom_columns '{"$blob"}`
	)
	db, b := newCustom(t, fmt.Sprintf(`
		CREATE TABLE %s (%s INTEGER PRIMARY KEY AUTOINCREMENT, %s BLOB, "GROUP_ID" TEXT, payload TEXT NOT NULL);
		INSERT INTO %[1]s (%[3]s, payload) VALUES (X'00ff', '1'), (1.5, '2'), ('x', '3')`, quote(table), quote(key), quote(column)),
		sqlite.Config{Table: table, Archive: "outbox_archive", Custom: buffer.CustomTable{
			ID:      key,
			Project: "SELECT " + quote(key) + " AS ID, payload AS Payload, 'a;b' AS key FROM " + quote(table) + " WHERE group_id = ? -- ;\n ;",
		}})
	testkit.NoError(t, b.Check(t.Context()))
	rows := func() []string {
		return query(t, db, "SELECT concat_ws(' ', "+quote(key)+", quote("+quote(column)+"), payload) FROM "+quote(table),
			func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
	}
	before := rows()
	for range 2 {
		batch, err := testkit.TakeOver(t.Context(), b, time.Hour)
		testkit.NoError(t, err)
		if batch == nil {
			batch = claimed(t, b)
		}
		testkit.NoError(t, batch.ProjectErr)
		if ids := batch.IDs(); !slices.Equal(ids, []int64{1, 2, 3}) || *batch.Events[0].Key != "a;b" || batch.Events[0].Topic != table {
			t.Fatalf("claimed: %+v", batch.Events)
		}
		testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
		n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
		testkit.NoError(t, err)
		if n != 3 {
			t.Fatalf("replayed %d", n)
		}
		if d := cmp.Diff(before, rows()); d != "" {
			t.Fatalf("rows before they were buried (-) and after the replay (+):\n%s", d)
		}
	}
	a, err := b.Audit(t.Context())
	testkit.NoError(t, err)
	if !a.Agrees() || a.Waiting.Events != 3 {
		t.Fatalf("audit: %+v", a)
	}
	batch, err := testkit.TakeOver(t.Context(), b, time.Hour)
	testkit.NoError(t, err)
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if left := rows(); len(left) != 0 {
		t.Fatalf("left: %v", left)
	}
}

// TestCustomTable_RowidColumn: SQLite's names of the key may be those of other columns.
func TestCustomTable_RowidColumn(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, `CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, payload, _rowid_ TEXT, rowid TEXT, oid TEXT, group_id TEXT);
		INSERT INTO t (payload, _rowid_) VALUES (1, 'a'), (2, '1'), (3, NULL)`, sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
	testkit.NoError(t, b.Check(t.Context()))
	batch := claimed(t, b)
	testkit.NoError(t, batch.ProjectErr)
	if !slices.Equal(batch.IDs(), []int64{1, 2, 3}) {
		t.Fatalf("claimed: %v", batch.IDs())
	}
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: []int64{1}}, {Verdict: buffer.Dead, IDs: []int64{2}}, {Verdict: buffer.Retry, IDs: []int64{3}, GroupID: buffer.NewGroupID()},
	}))
	if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	left := query(t, db, "SELECT concat_ws(' ', id, _rowid_) FROM t", func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
	if d := cmp.Diff([]string{"2 1", "3"}, left); d != "" {
		t.Errorf("unexpected rows (-want +got):\n%s", d)
	}
}

// TestClaim_Unstamped: a trigger keeps events from being stamped, without an error.
func TestClaim_Unstamped(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]buffertest.Options{"stamp": {Claim: buffer.ClaimStamp}, "order": {Ordered: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := harness("outbox_events", buffer.ClaimStamp).Open(t, opt)
			event := outbox.Event{Topic: "t", Payload: []byte("1")}
			ids := f.Insert(t, event, event, event)
			b, err := f.Buffer.Claim(t.Context(), 2, time.Hour)
			testkit.NoError(t, err)
			f.Exec(t, "CREATE TRIGGER ignores BEFORE UPDATE ON outbox_events BEGIN SELECT RAISE(IGNORE); END")
			claimed, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
			if _, unstamped := errors.AsType[*buffer.UnstampedError](err); !unstamped || claimed != nil {
				t.Fatalf("claimed %+v, %v; want a *buffer.UnstampedError", claimed, err)
			}
			err = f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
				{Verdict: buffer.Delivered, IDs: ids[:1]},
				{Verdict: buffer.Retry, IDs: ids[1:2], GroupID: buffer.NewGroupID()},
			})
			if _, refused := errors.AsType[*buffer.SettleError](err); !refused {
				t.Fatalf("settled: %v; want a *buffer.SettleError", err)
			}
			testkit.Equal(t, "batches", len(f.Ledger(t)), 1)
			found := f.Buffer.(buffer.Diagnoser).Diagnose(t.Context())
			if !slices.ContainsFunc(found, func(one buffer.Finding) bool { return one.Subject == "updates" && one.Fix == `DROP TRIGGER "ignores"` }) {
				t.Errorf("doctor: %+v", found)
			}
			f.Exec(t, "DROP TRIGGER ignores")
			b, err = f.Buffer.Claim(t.Context(), 10, time.Hour)
			testkit.NoError(t, err)
			testkit.Equal(t, "claimed", fmt.Sprint(b.IDs()), fmt.Sprint(ids[2:]))
		})
	}
}

// TestClaim_CustomTableStampRefused: a claim fails if not all of its events could be stamped.
func TestClaim_CustomTableStampRefused(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT); INSERT INTO t (payload) VALUES (1), (2)",
		sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
	run(t, db, "CREATE TRIGGER no BEFORE UPDATE ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(IGNORE); END")
	if batch, err := b.Claim(t.Context(), 10, time.Hour); batch != nil || err == nil || !strings.Contains(err.Error(), "were not stamped") {
		t.Fatalf("got %+v, %v", batch, err)
	}
	run(t, db, "DROP TRIGGER no")
	if ids := claimed(t, b).IDs(); !slices.Equal(ids, []int64{1, 2}) {
		t.Errorf("claimed: %v", ids)
	}
}

// TestCustomTable_Altered: the tables may change between two claims.
func TestCustomTable_Altered(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, `CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, group_id TEXT);
		INSERT INTO t (id) VALUES (2), (3), (5), (7)`,
		sqlite.Config{Custom: buffer.CustomTable{Project: "SELECT e.id, later AS payload FROM {events} e JOIN u ON u.id = e.id"}})
	for _, c := range []struct{ ddl, want string }{
		{"CREATE TABLE u (id INTEGER PRIMARY KEY, later); INSERT INTO u VALUES (2, 1), (3, 1), (5, 1), (7, 1)", "2=1"},
		{"ALTER TABLE u DROP COLUMN later; ALTER TABLE t ADD COLUMN later DEFAULT 2", "3=2"},
		{"ALTER TABLE t DROP COLUMN later; ALTER TABLE u ADD COLUMN later DEFAULT 3", "5=3"},
		// The stamp changes from text to bytes.
		{"ALTER TABLE t DROP COLUMN group_id; DELETE FROM outbox_batches; DELETE FROM t WHERE id < 7; ALTER TABLE t ADD COLUMN group_id BLOB", "7=3"},
	} {
		run(t, db, c.ddl)
		batch, err := b.Claim(t.Context(), 1, time.Hour)
		testkit.NoError(t, err)
		testkit.NoError(t, batch.ProjectErr)
		if got := fmt.Sprintf("%d=%s", batch.Events[0].ID, batch.Events[0].Payload); got != c.want {
			t.Errorf("after %s: got %s; expected %s", c.ddl, got, c.want)
		}
	}
	stamps := query(t, db, "SELECT typeof(group_id) FROM t", func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
	if !slices.Equal(stamps, []string{"blob"}) {
		t.Errorf("the stamps are %v", stamps)
	}
}

// TestCustomTable_CreatedAt: created_at may have every form of time that SQLite accepts.
func TestCustomTable_CreatedAt(t *testing.T) {
	t.Parallel()
	want := time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)
	values := []string{"'2024-02-03T04:05:06Z'", "'2024-02-03 04:05:06'", "'2024-02-03T04:05:06.000Z'", "'2024-02-03 04:05:06.000'", "'2024-02-03T06:05:06+02:00'"}
	for declared, values := range map[string][]string{
		"TEXT": values, "DATETIME": append(values, "1706933106", "1706933106.0", "1706933106000", "julianday('2024-02-03T04:05:06')"),
	} {
		db, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, payload, Created_At "+declared+", group_id TEXT)", sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
		for _, value := range values {
			run(t, db, "INSERT INTO t (payload, created_at) VALUES ('{}', "+value+")")
		}
		batch := claimed(t, b)
		testkit.NoError(t, batch.ProjectErr)
		for i, e := range batch.Events {
			if e.CreatedAt.Sub(want).Abs() > time.Millisecond || e.CreatedAt.Location() != time.UTC {
				t.Errorf("%s in a column of type %s is %v, want %v", values[i], declared, e.CreatedAt, want)
			}
		}
	}

	// The projection's is the one that counts.
	_, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, created_at, group_id TEXT); INSERT INTO t (payload, created_at) VALUES (1, 5)",
		sqlite.Config{Custom: buffer.CustomTable{Project: "SELECT id, payload, 1706933106 AS created_at FROM t WHERE group_id = ?"}})
	if at := claimed(t, b).Events[0].CreatedAt; !at.Equal(want) {
		t.Errorf("projected: %v, want %v", at, want)
	}

	// Without one, and with one that is none, the claim's time stays with the event.
	const oneIsNull = ", created_at TEXT); INSERT INTO t (payload, created_at) VALUES (1, '2026-01-01 00:00:00'), (2, NULL"
	for _, rest := range []string{
		"); INSERT INTO t (payload) VALUES (1), (2", ", created_at TEXT DEFAULT 'yesterday'); INSERT INTO t (payload) VALUES (1), (2",
		", created_at TEXT DEFAULT '2026-02-30T00:00:00.000Z'); INSERT INTO t (payload) VALUES (1), (2", oneIsNull,
	} {
		_, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT"+rest+")", sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
		batch := claimed(t, b)
		first := batch.Events[1].CreatedAt
		if age := batch.ClaimedAt.Sub(first); age < 0 || age > time.Minute {
			t.Errorf("created at %v, claimed at %v", first, batch.ClaimedAt)
		}
		testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID}}))
		again, err := testkit.TakeOver(t.Context(), b, time.Hour)
		testkit.NoError(t, err)
		for i := range again.Events {
			if at := again.Events[i].CreatedAt; !at.Equal(batch.Events[i].CreatedAt) {
				t.Errorf("taken over, created at %v, claimed with %v", at, batch.Events[i].CreatedAt)
			}
		}
		part := buffer.NewGroupID()
		testkit.NoError(t, b.Settle(t.Context(), again, []buffer.Outcome{{Verdict: buffer.Delivered, IDs: []int64{1}}, {Verdict: buffer.Retry, IDs: []int64{2}, GroupID: part}}))
		again, err = testkit.TakeOver(t.Context(), b, time.Hour)
		testkit.NoError(t, err)
		if at := again.Events[0].CreatedAt; !at.Equal(first) {
			t.Errorf("taken over, created at %v, first claimed at %v", at, first)
		}
	}
}

// TestProjection_Contents: the values that each column of a projection may have.
func TestProjection_Contents(t *testing.T) {
	t.Parallel()
	_, b := newCustom(t, `
		CREATE TABLE t (id INTEGER PRIMARY KEY, payload JSON, key DATETIME, group_id UUID);
		INSERT INTO t (payload, key) VALUES ('{"a": "é"}', 7), (12, '2024-02-03'), (1.5, NULL), (CAST('"x"' AS TEXT), 'k')`,
		sqlite.Config{Custom: buffer.CustomTable{Project: "SELECT id, payload, key, NULL AS topic, id AS more FROM t WHERE group_id = ?"}})
	batch := claimed(t, b)
	testkit.NoError(t, batch.ProjectErr)
	var got []string
	for _, e := range batch.Events {
		key := "NULL"
		if e.Key != nil {
			key = *e.Key
		}
		got = append(got, e.Topic+" "+key+" "+string(e.Payload))
	}
	if d := cmp.Diff([]string{`t 7 {"a": "é"}`, "t 2024-02-03 12", "t NULL 1.5", `t k "x"`}, got); d != "" || !batch.PayloadIsJSON {
		t.Errorf("unexpected events, PayloadIsJSON %t (-want +got):\n%s", batch.PayloadIsJSON, d)
	}

	_, b = newCustom(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id BLOB); INSERT INTO t (payload) VALUES ('{}'), (X''), (X'00ff')`,
		sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
	batch = claimed(t, b)
	testkit.NoError(t, batch.ProjectErr)
	if batch.PayloadIsJSON || batch.Events[1].Payload == nil || string(batch.Events[2].Payload) != "\x00\xff" {
		t.Errorf("bytes: PayloadIsJSON %t, %+v", batch.PayloadIsJSON, batch.Events)
	}

	for project, says := range map[string]string{
		"SELECT 'x' || id AS id, payload FROM t WHERE group_id = ?":                  `"x1" (text)`,
		"SELECT id, payload, '' AS topic FROM t WHERE group_id = ?":                  "event 1 has an empty topic",
		"SELECT id, payload, 5 AS topic FROM t WHERE group_id = ?":                   "has topic 5; expected text",
		"SELECT id, payload, X'00' AS key FROM t WHERE group_id = ?":                 "has key a blob; expected text",
		"SELECT id, payload, '{' AS headers FROM t WHERE group_id = ?":               "headers that are not a JSON object",
		"SELECT id, payload, 5 AS headers FROM t WHERE group_id = ?":                 "has headers 5; expected a JSON object",
		"SELECT id, payload FROM t WHERE group_id = ?; DELETE FROM t":                "syntax error",
		"DELETE FROM t WHERE group_id = ? RETURNING id, payload":                     "syntax error",
		"SELECT id, payload FROM t WHERE group_id = ?) UNION ALL SELECT * FROM (t":   "",
		"SELECT id, payload FROM t WHERE group_id = ? OR group_id = ?":               "index 2",
		"WITH gone AS (SELECT id FROM t) SELECT id, payload FROM there WHERE id = ?": "there",
	} {
		db, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT); INSERT INTO t (payload) VALUES (1)", sqlite.Config{Custom: buffer.CustomTable{Project: project}})
		batch := claimed(t, b)
		err := batch.ProjectErr
		if err == nil && len(batch.Rejected) > 0 {
			err = batch.Rejected[0].Err
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want an error that says %q", project, err, says)
		}
		if left := query(t, db, "SELECT count(*) FROM t", func(rows *sql.Rows) (n int, err error) { return n, rows.Scan(&n) }); left[0] != 1 {
			t.Errorf("%s: %d events are left", project, left[0])
		}
	}
}

// endless never ends.
const endless = `
SELECT id, (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n) AS payload
FROM t WHERE group_id = ?`

// TestProjection_TimesOut: a projection ends before the lease, which is not renewed meanwhile.
func TestProjection_TimesOut(t *testing.T) {
	t.Parallel()
	_, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, group_id TEXT); INSERT INTO t (id) VALUES (1)", sqlite.Config{Custom: buffer.CustomTable{Project: endless}})
	batch, err := b.Claim(t.Context(), 10, 200*time.Millisecond)
	testkit.NoError(t, err)
	if batch == nil || batch.ProjectErr == nil || !strings.Contains(batch.ProjectErr.Error(), "half of the lease") {
		t.Fatalf("got %+v", batch)
	}

	// A claim that its caller cancelled still belongs to the caller.
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	batch, err = testkit.TakeOver(ctx, b, time.Hour)
	testkit.NoError(t, err)
	if batch == nil || !errors.Is(batch.ProjectErr, buffer.ErrDatabaseUnavailable) || !slices.Equal(batch.IDs(), []int64{1}) {
		t.Fatalf("got %+v", batch)
	}
	testkit.NoError(t, b.Renew(t.Context(), batch, time.Hour))
}

// TestReplay_CustomTableConstraints: a row that the table rejects stays an open dead letter.
func TestReplay_CustomTableConstraints(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, payload, a, gone TEXT, group_id TEXT);
		INSERT INTO t (payload, a) VALUES (1, 1), (2, 2), (3, NULL), (4, 4)`, sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
	testkit.NoError(t, b.Settle(t.Context(), claimed(t, b), []buffer.Outcome{{Verdict: buffer.Dead, Error: "refused"}}))
	run(t, db, "DROP TABLE t")
	run(t, db, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, a NOT NULL CHECK (a <> 1), added DEFAULT 'new', group_id BLOB)")
	run(t, db, "CREATE TRIGGER no BEFORE INSERT ON t WHEN NEW.a = 2 BEGIN SELECT RAISE(ABORT, 'not that one'); END")
	n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
	testkit.NoError(t, err)
	count, err := b.CountDead(t.Context(), buffer.DeadFilter{})
	testkit.NoError(t, err)
	if n != 1 || count.Open != 3 {
		t.Fatalf("replayed %d, open %d; want 1 and 3", n, count.Open)
	}
	got := query(t, db, "SELECT concat_ws(' ', id, a, added, length(group_id)) FROM t", func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
	if d := cmp.Diff([]string{"4 4 new 16"}, got); d != "" {
		t.Fatalf("unexpected rows (-want +got):\n%s", d)
	}
	batch, err := testkit.TakeOver(t.Context(), b, time.Hour)
	testkit.NoError(t, err)
	if !slices.Equal(batch.IDs(), []int64{4}) {
		t.Fatalf("taken over: %v", batch.IDs())
	}
}
