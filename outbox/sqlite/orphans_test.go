package sqlite_test

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestOrphans_NotUUID: a group_id that an application wrote and that is not a uuid keeps no event from its delivery. The sweep
// and a repair clear it; doctor and audit say so before.
func TestOrphans_NotUUID(t *testing.T) {
	t.Parallel()
	const (
		relayTable = `CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL DEFAULT 't', key TEXT, payload TEXT NOT NULL DEFAULT '1', headers TEXT,
			created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), group_id TEXT)`
		custom = "CREATE TABLE t (id INTEGER PRIMARY KEY, payload DEFAULT '1', group_id "
		values = "INSERT INTO t (group_id) VALUES (''), ('zzz'), (X'313233'), (5), ('01890A5D-AC96-774B-BCCE-B302099A8057'), ('------------------------------------')"
	)
	own := buffer.CustomTable{ID: "id", Project: "SELECT id, payload FROM {events}"}
	for name, c := range map[string]struct {
		ddl   string
		table sqlite.Config
	}{
		"relay": {relayTable, sqlite.Config{Table: "t"}},
		"text":  {custom + "TEXT)", sqlite.Config{Table: "t", Custom: own}},
		"blob":  {custom + "BLOB)", sqlite.Config{Table: "t", Custom: own}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, b := replaceable(t, c.ddl, c.table)
			claimAll := func(how string) {
				t.Helper()
				batch := claim(t, b, 10)
				testkit.Equal(t, "events claimed after "+how, batch.Len(), 6)
				testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			}
			change(t, file, values)
			if text := findings(t, b, "group_id"); !strings.HasPrefix(text, "warning ") {
				t.Errorf("doctor: %q", text)
			}
			a, err := b.Audit(t.Context())
			testkit.NoError(t, err)
			testkit.Equal(t, "orphaned", a.Orphaned.Events, 6)
			r, err := b.Repair(t.Context())
			testkit.NoError(t, err)
			testkit.Equal(t, "repaired", r, buffer.Repair{Cleared: 6})
			a, err = b.Audit(t.Context())
			testkit.NoError(t, err)
			testkit.Equal(t, "audit", a, buffer.Audit{Unclaimed: 6})
			if text := findings(t, b, "group_id"); !strings.HasPrefix(text, "ok ") {
				t.Errorf("doctor after the repair: %q", text)
			}
			claimAll("a repair")

			change(t, file, values)
			backlog, err := b.CountBacklog(t.Context(), 10)
			testkit.NoError(t, err)
			testkit.Equal(t, "backlog", backlog, buffer.Backlog{Unclaimed: 6})
			claimAll("a sweep")
		})
	}
}

// TestOrphans_MemberOfLiveBatch: an event that a live batch holds by range keeps a group_id that was set by hand meanwhile:
// the batch would delete it, even if it was not sent.
func TestOrphans_MemberOfLiveBatch(t *testing.T) {
	t.Parallel()
	file, b := replaceable(t, `CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT DEFAULT 't', key TEXT, payload TEXT DEFAULT '1', headers TEXT,
		created_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), group_id TEXT); INSERT INTO t DEFAULT VALUES; INSERT INTO t DEFAULT VALUES`,
		sqlite.Config{Table: "t", Claim: buffer.ClaimRange})
	live := claim(t, b, 10)
	change(t, file, "UPDATE t SET group_id = '' WHERE id = 2")
	_, err := b.Repair(t.Context())
	testkit.NoError(t, err)
	testkit.NoError(t, b.Settle(t.Context(), live, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	r, err := b.Repair(t.Context())
	testkit.NoError(t, err)
	testkit.Equal(t, "repaired", r, buffer.Repair{Cleared: 1})
	_, err = b.CountBacklog(t.Context(), 10)
	testkit.NoError(t, err)
	expectIDs(t, "claimed", claim(t, b, 10).IDs(), []int64{2})
}

// TestOrphans_WithoutCase: a column that compares without case may hold the group_ids of live batches in upper case.
func TestOrphans_WithoutCase(t *testing.T) {
	t.Parallel()
	file, b := replaceable(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload DEFAULT '1', group_id TEXT COLLATE NOCASE); INSERT INTO t DEFAULT VALUES",
		sqlite.Config{Table: "t", Custom: buffer.CustomTable{ID: "id", Project: "SELECT id, payload FROM {events}"}})
	live := claim(t, b, 10)
	change(t, file, "UPDATE t SET group_id = upper(group_id); INSERT INTO t (group_id) VALUES ('')")
	backlog, err := b.CountBacklog(t.Context(), 10)
	testkit.NoError(t, err)
	testkit.Equal(t, "backlog", backlog, buffer.Backlog{Unclaimed: 1})
	testkit.NoError(t, b.Settle(t.Context(), live, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if a, err := b.Audit(t.Context()); err != nil || a != (buffer.Audit{Unclaimed: 1}) {
		t.Errorf("left: %+v, %v", a, err)
	}
}

// TestSchema_GroupID: a new table refuses a group_id that is none.
func TestSchema_GroupID(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	for _, value := range []string{"''", "'zzz'", "X'313233'", "5"} {
		if _, err := db.Exec("INSERT INTO outbox_events (topic, payload, group_id) VALUES ('t', '1', " + value + ")"); err == nil {
			t.Errorf("group_id %s was accepted", value)
		}
	}
}
