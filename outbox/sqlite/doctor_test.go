package sqlite_test

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// examined opens the buffer afresh, as another process would.
func examined(t *testing.T, url string) []buffer.Finding {
	t.Helper()
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, b.Close()) }()
	return b.Diagnose(t.Context())
}

// bad are the findings that are worse than fine.
func bad(all []buffer.Finding) []buffer.Finding {
	var some []buffer.Finding
	for _, f := range all {
		if f.Level != buffer.LevelOK {
			some = append(some, f)
		}
	}
	return some
}

// find returns the finding of that kind whose text has this in it, or nil.
func find(all []buffer.Finding, level buffer.Level, about, says string) *buffer.Finding {
	for i, f := range all {
		if f.Level == level && f.Subject == about && strings.Contains(f.Text, says) {
			return &all[i]
		}
	}
	return nil
}

func TestDiagnose_SoundFile(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	found := examined(t, url)
	if some := bad(found); len(some) > 0 {
		t.Errorf("in a sound file it finds %+v", some)
	}
	for _, about := range []string{"tables", "claim", "journal_mode", "integrity", "indexes", "claim plan"} {
		if find(found, buffer.LevelOK, about, "") == nil {
			t.Errorf("no finding about %s: %+v", about, found)
		}
	}
}

// TestDiagnose_FixesWork: the fix of each finding works.
func TestDiagnose_FixesWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage      string
		level       buffer.Level
		about, says string
	}{
		"journal":     {"PRAGMA journal_mode = DELETE", buffer.LevelWarning, "journal_mode", "it is delete"},
		"extra index": {`CREATE INDEX "by topic" ON outbox_events (topic)`, buffer.LevelWarning, "indexes", `"by topic" is of no use`},
		"column":      {"ALTER TABLE outbox_batches DROP COLUMN error", buffer.LevelError, "tables", `table "outbox_batches" has no column error`},
		"two columns": {"ALTER TABLE outbox_batches DROP COLUMN error; ALTER TABLE outbox_dead_letters DROP COLUMN died_at", buffer.LevelError, "tables", `table "outbox_dead_letters" has no column died_at`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := database(t)
			migrate(t, url, sqlite.SchemaConfig{})
			exec(t, db, c.damage)
			found := examined(t, url)
			if find(found, c.level, c.about, c.says) == nil {
				t.Fatalf("got %+v", bad(found))
			}
			for _, f := range bad(found) {
				exec(t, db, f.Fix)
			}
			if left := bad(examined(t, url)); len(left) > 0 {
				t.Errorf("after the fix it finds %+v", left)
			}
		})
	}
}

func exec(t *testing.T, db *sql.DB, statements string) {
	t.Helper()
	_, err := db.Exec(statements)
	testkit.NoError(t, err)
}

// TestDiagnose_WaitingBatches: doctor says why batches wait.
func TestDiagnose_WaitingBatches(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	exec(t, db, `INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
		first_id, last_id, oldest_at, error)
		VALUES ('01a1fef6-c696-79c6-8170-f6838d738d66', 'outbox_events', 'stamp', 'waiting', 1, '2026-01-01T00:00:00.000Z', 'o', 0, 0, 3, 7, 1, 7,
		'2026-01-01T00:00:00.000Z', 'WRONGTYPE of a key')`)
	found := bad(examined(t, url))
	if find(found, buffer.LevelWarning, "batches", "batches that wait for a retry: 1, their events: 7; the newest because: WRONGTYPE of a key") == nil {
		t.Errorf("got %+v", found)
	}
}

// TestDiagnose_ClaimPlan: doctor reports an index that the planner prefers to the primary key.
func TestDiagnose_ClaimPlan(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	exec(t, db, "CREATE INDEX by_group ON outbox_events (group_id, id)")
	found := examined(t, url)
	if find(found, buffer.LevelError, "claim plan", "by_group") == nil {
		t.Fatalf("got %+v", bad(found))
	}
	exec(t, db, find(found, buffer.LevelWarning, "indexes", "by_group").Fix)
	if left := bad(examined(t, url)); len(left) > 0 {
		t.Errorf("after the fix it finds %+v", left)
	}
}

func TestDiagnose_MissingTables(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	exec(t, db, "DROP TABLE outbox_events; DROP TABLE outbox_batches")
	found := examined(t, url)
	for _, table := range []string{"outbox_events", "outbox_batches"} {
		f := find(found, buffer.LevelError, "tables", `table "`+table+`" does not exist`)
		if f == nil || f.Fix != "relay migrate -c relay.yaml" {
			t.Errorf("of %s it finds %+v", table, found)
		}
	}
	migrate(t, url, sqlite.SchemaConfig{})
	if left := bad(examined(t, url)); len(left) > 0 {
		t.Errorf("after the fix it finds %+v", left)
	}
}

// TestDiagnose_DamagedFile: doctor reports a damaged file.
func TestDiagnose_DamagedFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none", "app.db")
	if found := bad(examined(t, urlOf(missing))); len(found) != 1 || !strings.HasPrefix(found[0].Fix, "mkdir -p") {
		t.Errorf("of a folder that is not there it finds %+v", found)
	}

	file := filepath.Join(t.TempDir(), "app.db")
	migrate(t, urlOf(file), sqlite.SchemaConfig{})
	db, err := sql.Open("sqlite", applicationDSN(file))
	testkit.NoError(t, err)
	exec(t, db, "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 5000) INSERT INTO outbox_events (topic, payload) SELECT 'damaged', json_object('n', i) FROM n")
	exec(t, db, "PRAGMA wal_checkpoint(TRUNCATE)")
	testkit.NoError(t, db.Close())
	good, err := os.ReadFile(file)
	testkit.NoError(t, err)

	damaged := bytes.Clone(good)
	page := bytes.LastIndex(damaged, []byte("damaged")) / 4096 * 4096
	copy(damaged[page:], bytes.Repeat([]byte{0xab}, 4096))
	testkit.NoError(t, os.WriteFile(file, damaged, 0o600))
	if found := bad(examined(t, urlOf(file))); find(found, buffer.LevelError, "integrity", "damaged") == nil {
		t.Errorf("of a damaged file it finds %+v", found)
	}

	// A format that only a later SQLite writes makes the file read-only for this one.
	later := bytes.Clone(good)
	later[18] = 3
	testkit.NoError(t, os.WriteFile(file, later, 0o600))
	if found := bad(examined(t, urlOf(file))); find(found, buffer.LevelError, "tables", "is read-only") == nil {
		t.Errorf("of a file that cannot be written it finds %+v", found)
	}
}
