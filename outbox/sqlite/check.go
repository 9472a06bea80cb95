package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const columnsSQL = `
SELECT name FROM pragma_table_info(?1)`

// requirement is a table that the relay needs, and its columns as ALTER TABLE names them.
type requirement struct {
	table   string
	columns []string
	// obsolete is a column that the table had in an unreleased version of the relay.
	obsolete string
}

var (
	eventColumns = []string{
		"id INTEGER", "topic TEXT", "key TEXT", "payload TEXT", "headers TEXT", "created_at TEXT", "group_id TEXT", "available_at " + delayedColumn,
	}
	archiveColumns = []string{
		"id INTEGER", "topic TEXT", "key TEXT", "payload BLOB", "headers TEXT", "created_at TEXT", "group_id TEXT", "archived_at TEXT", "routes_no INTEGER",
	}
	batchesTable = requirement{table: "outbox_batches", columns: []string{
		"group_id TEXT", "buffer TEXT", "claim TEXT", "state TEXT", "lease_no INTEGER", "due_at TEXT", "owner TEXT",
		"unfinished_leases INTEGER", "attempts INTEGER", "outages INTEGER", "events INTEGER", "first_id INTEGER", "last_id INTEGER",
		"origins TEXT", "delivered TEXT", "oldest_at TEXT", "claimed_at TEXT", "error TEXT", "address TEXT", "lanes TEXT",
		"members TEXT", "newest_at TEXT", "sink TEXT NOT NULL DEFAULT 'default'", "claim_id TEXT", "routes_no INTEGER", "seq INTEGER", "history TEXT",
	}, obsolete: "starts"}
	deadLettersTable = requirement{table: "outbox_dead_letters", columns: []string{
		"pipeline TEXT", "event_id INTEGER", "topic TEXT", "key TEXT", "payload BLOB", "headers TEXT", "created_at TEXT",
		"group_id TEXT", "attempts INTEGER", "error TEXT", "died_at TEXT", "notified_at TEXT", "closed_at TEXT", "closed_as TEXT", "closed_by TEXT", "closed_reason TEXT",
		"hook_group_id TEXT", "event_row TEXT", "sink TEXT NOT NULL DEFAULT 'default'", "history TEXT",
	}, obsolete: "told_at"}
	buffersTable = requirement{table: "outbox_buffers", columns: []string{
		"buffer TEXT", "claim TEXT", "pipeline TEXT", "owned_since TEXT", "routed INTEGER NOT NULL DEFAULT 0", "routes_no INTEGER NOT NULL DEFAULT 0",
		"paused_at TEXT", "paused_by TEXT", "paused_reason TEXT", "retry_request TEXT", "retry_at TEXT", "archive TEXT",
	}}
	sinksTable = requirement{table: "outbox_sinks", columns: []string{
		"buffer TEXT", "sink TEXT", "match TEXT", "batch_size INTEGER", "hook INTEGER NOT NULL DEFAULT 0", "formerly TEXT",
		"routed TEXT NOT NULL DEFAULT '[0]'", "registered_at TEXT", "seen_at TEXT", "dropped_at TEXT", "dropped_as TEXT",
		"paused_at TEXT", "paused_by TEXT", "paused_reason TEXT", "match_before TEXT", "match_at TEXT",
	}}
	relaysTable = requirement{table: "outbox_relays", columns: []string{
		"buffer TEXT", "sink TEXT", "owner TEXT", "version TEXT", "started_at TEXT", "seen_at TEXT", "stopped INTEGER", "not_ready TEXT", "delivered INTEGER", "dead INTEGER",
		"last_minute INTEGER", "delivered_at TEXT", "not_ready_class TEXT NOT NULL DEFAULT ''", "not_ready_at TEXT", "notice TEXT NOT NULL DEFAULT ''",
		"latencies TEXT NOT NULL DEFAULT ''", "answers TEXT NOT NULL DEFAULT ''", "answers_before TEXT NOT NULL DEFAULT ''", "answered_at TEXT",
		"probes INTEGER NOT NULL DEFAULT 1",
	}}
	ratesTable    = requirement{table: "outbox_rates", columns: []string{"name TEXT", "next_at TEXT"}}
	versionsTable = requirement{table: "outbox_versions", columns: []string{"buffer TEXT", "event_id INTEGER", "version INTEGER"}}
)

func (b *Buffer) foundObsolete(r requirement) buffer.Finding {
	return problem(fmt.Sprintf("table %s has column %s, which only an unreleased version of the relay made", db.Quote(r.table), r.obsolete), b.dropObsolete())
}

func (b *Buffer) dropObsolete() string {
	return "when outbox_batches and outbox_dead_letters are empty: DROP TABLE IF EXISTS outbox_batches; DROP TABLE IF EXISTS outbox_dead_letters; DROP TABLE IF EXISTS " +
		db.Quote(b.versionTable()) + ", then run " + notready.MigrateCommand
}

func problem(text, fix string) buffer.Finding {
	return buffer.Finding{Level: buffer.LevelError, Subject: "tables", Text: text, Fix: fix}
}

// notReady is the error of what is missing.
func notReady(b *Buffer, missing []buffer.Finding) error { return notready.New(b.file, missing) }

// Check implements buffer.Inspector. It lists everything that is missing, not only the first.
func (b *Buffer) Check(ctx context.Context) error {
	missing, err := b.missing(ctx)
	if err != nil {
		return b.unusable(err)
	}
	return notReady(b, missing)
}

// touchSQL changes nothing, and fails where nothing can be changed.
const touchSQL = `
DELETE FROM outbox_batches WHERE FALSE`

func (b *Buffer) missing(ctx context.Context) (missing []buffer.Finding, err error) {
	err = b.begin(ctx, b.db, nil, func(tx transaction) error {
		if !b.config.Custom.Is() {
			t, err := b.table(ctx, tx)
			if err = cmp.Or(err, t.Err(b.file)); err != nil {
				return err
			}
		}
		if missing, err = b.missingTables(ctx, tx, b.config.SharedRate); err != nil {
			return err
		}
		lacks, err := b.upkeep.missing(ctx, tx)
		if err != nil {
			return err
		}
		if missing = append(missing, lacks...); len(missing) > 0 {
			return nil
		}
		if _, err := tx.exec(ctx, touchSQL); err != nil {
			return err
		}
		_, _, err = b.negotiate(ctx, tx)
		if claimmode.InUse(err) {
			// The batches of the other mode are still sent; Claim reports the conflict.
			return nil
		}
		return err
	})
	return missing, err
}

// missingTables lists what is missing of the relay's tables apart from the buffer.
func (b *Buffer) missingTables(ctx context.Context, tx transaction, rates bool) (missing []buffer.Finding, err error) {
	tables := []requirement{batchesTable, deadLettersTable, buffersTable, sinksTable, relaysTable}
	if rates {
		tables = append(tables, ratesTable)
	}
	if b.marks() {
		tables = append(tables, versionsTable)
	}
	if b.config.Archive != "" {
		tables = append(tables, requirement{table: b.config.Archive, columns: archiveColumns})
	}
	for _, table := range tables {
		lacks, err := b.lacks(ctx, tx, table)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacks...)
	}
	return missing, nil
}

// The table's row number with AUTOINCREMENT only grows and is never handed out again.
const idsGrowSQL = `
SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = 'id' AND upper(type) = 'INTEGER' AND pk = 1)
   AND EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND sql LIKE '%autoincrement%')`

// lower returns the names of columns in lower case: SQLite does not tell them apart by case.
func lower(columns []string) []string {
	columns = slices.Clone(columns)
	for i := range columns {
		columns[i] = strings.ToLower(columns[i])
	}
	return columns
}

const alsoOwnsSQL = `
SELECT b.buffer FROM outbox_buffers AS b JOIN sqlite_schema AS s ON s.type = 'table' AND s.name = b.buffer COLLATE NOCASE
WHERE b.pipeline = ?2 AND b.buffer <> ?1 ORDER BY b.owned_since DESC LIMIT 1`

// table returns what tells the relay's own table from one of the application. It lacks nothing if it does not exist.
func (b *Buffer) table(ctx context.Context, tx transaction) (t notready.Table, err error) {
	rows, err := tx.rows(ctx, columnsSQL, b.config.Table)
	has, err := db.Column[string](rows, err)
	if err != nil || len(has) == 0 {
		return t, err
	}
	has = lower(has)
	t = notready.Table{Quoted: db.Quote(b.config.Table), Name: b.config.Table, Columns: has, Lacks: buffer.LacksEventColumns(has), Pipeline: b.config.Pipeline}
	if t.Lacks == nil {
		return t, nil
	}
	if err := tx.tx.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM "+t.Quoted+" LIMIT ?1)", notready.MaxRows+1).Scan(&t.Rows); err != nil {
		return t, err
	}
	rows, err = tx.rows(ctx, columnsSQL, "outbox_buffers")
	if has, err = db.Column[string](rows, err); err != nil || !slices.Contains(has, "pipeline") || !slices.Contains(has, "owned_since") {
		return t, err
	}
	if err := tx.row(ctx, ownedSQL, b.config.Table, b.config.Pipeline).Scan(&t.Owned); err != nil {
		return t, err
	}
	var also string
	err = tx.row(ctx, alsoOwnsSQL, b.config.Table, b.config.Pipeline).Scan(&also)
	if errors.Is(err, sql.ErrNoRows) {
		return t, nil
	}
	t.Also = db.Quote(also)
	return t, err
}

func (r *relayTable) missing(ctx context.Context, tx transaction) ([]buffer.Finding, error) {
	missing, err := r.b.lacks(ctx, tx, requirement{table: r.b.config.Table, columns: eventColumns})
	if err != nil || len(missing) > 0 {
		return missing, err
	}
	if missing, err = r.b.lacksDelayedIndex(ctx, tx, "available_at", strings.TrimSpace(r.names.Replace(delayedIndexSQL))); err != nil || len(missing) > 0 {
		return missing, err
	}
	var grow bool
	if err := tx.row(ctx, idsGrowSQL, r.b.config.Table).Scan(&grow); err != nil || grow {
		return nil, err
	}
	return []buffer.Finding{problem(
		fmt.Sprintf("table %s hands out ids again after a delete, and a sink would take the new event for a duplicate", db.Quote(r.b.config.Table)),
		"create it again with id INTEGER PRIMARY KEY AUTOINCREMENT",
	)}, nil
}

// lacks lists what is missing of a table.
func (b *Buffer) lacks(ctx context.Context, tx transaction, r requirement) (lacks []buffer.Finding, err error) {
	rows, err := tx.rows(ctx, columnsSQL, r.table)
	has, err := db.Column[string](rows, err)
	if err != nil {
		return nil, err
	}
	table := db.Quote(r.table)
	switch {
	case len(has) == 0:
		if lost, err := b.lost(ctx, tx, r.table); err != nil || lost != nil {
			return lost, err
		}
		near, err := b.similar(ctx, tx, r.table)
		return []buffer.Finding{notready.NoTable(table, near, false)}, err
	case slices.Contains(has, r.obsolete):
		return []buffer.Finding{b.foundObsolete(r)}, nil
	}
	for _, column := range r.columns {
		name, _, _ := strings.Cut(column, " ")
		if !slices.Contains(has, name) {
			text := fmt.Sprintf("table %s has no column %s", table, name)
			if b.added(r.table, name) {
				text += ", which relay migrate adds"
			}
			lacks = append(lacks, problem(text, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s", table, column)))
		}
	}
	return lacks, nil
}

// Tables with the columns of the relay's own that are no archive and that no pipeline owns.
const (
	ownedSQL = `
SELECT EXISTS (SELECT 1 FROM outbox_buffers WHERE buffer = ?1 AND pipeline = ?2)`

	likeEventsSQL = `
SELECT name FROM sqlite_schema AS s
WHERE type = 'table' AND NOT EXISTS (SELECT 1 FROM outbox_buffers AS b WHERE b.buffer = s.name COLLATE NOCASE AND b.pipeline IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM json_each(?1) AS c WHERE c.value NOT IN (SELECT lower(i.name) FROM pragma_table_info(s.name) AS i))
  AND NOT EXISTS (SELECT 1 FROM pragma_table_info(s.name) AS i WHERE lower(i.name) = 'archived_at')
ORDER BY name LIMIT 100`
)

// lost returns the finding about the buffer, which does not exist, if the pipeline owned it; nil if it did not, or for another table.
func (b *Buffer) lost(ctx context.Context, tx transaction, table string) ([]buffer.Finding, error) {
	var known, owned bool
	if table != b.config.Table {
		return nil, nil
	}
	if err := tx.row(ctx, tableExistsSQL, "outbox_buffers").Scan(&known); err != nil || !known {
		return nil, err
	}
	if err := tx.row(ctx, ownedSQL, table, b.config.Pipeline).Scan(&owned); err != nil || !owned {
		return nil, err
	}
	custom := b.config.Custom.Is()
	lost := notready.Lost{Table: db.Quote(table), Pipeline: b.config.Pipeline}
	if !custom {
		columns, err := json.Marshal(buffer.FirstEventColumns())
		if err != nil {
			return nil, err
		}
		rows, err := tx.rows(ctx, likeEventsSQL, string(columns))
		names, err := db.Column[string](rows, err)
		if err != nil {
			return nil, err
		}
		var like []notready.Found
		for _, name := range names {
			like = append(like, notready.Found{Quoted: db.Quote(name), Source: name, Back: "ALTER TABLE " + db.Quote(name) + " RENAME TO " + db.Quote(table)})
		}
		lost.Now = notready.Likest(table, like, func(f notready.Found) string { return f.Source })
	}
	return []buffer.Finding{lost.Finding(custom)}, nil
}

const namesSQL = `
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name NOT LIKE '%\_migrations' ESCAPE '\'
  AND name NOT IN ('outbox_batches', 'outbox_dead_letters', 'outbox_buffers', 'outbox_sinks', 'outbox_relays', 'outbox_rates', 'outbox_versions')`

// similar returns the name of a table that may be meant by that of the buffer, which no table has; "" if there is none.
func (b *Buffer) similar(ctx context.Context, tx transaction, table string) (string, error) {
	if table != b.config.Table {
		return "", nil
	}
	rows, err := tx.tx.QueryContext(ctx, namesSQL)
	names, err := db.Column[string](rows, err)
	return buffer.NearestTable(table, names), err
}

// unusable returns what is wrong with a file that cannot be opened or written.
func (b *Buffer) unusable(err error) error {
	say := func(text, fix string) error {
		return notready.New("", []buffer.Finding{problem(text, fix)})
	}
	switch db.Code(err) {
	case sqlite3.SQLITE_CANTOPEN:
		if folder := filepath.Dir(b.file); notThere(folder) {
			return say("the folder "+folder+" of source.url does not exist", "mkdir -p '"+folder+"'")
		}
		if notThere(b.file) {
			return say("the file "+b.file+" of source.url does not exist", notready.MigrateCommand)
		}
		return say(fmt.Sprintf("the file %s cannot be opened (%v)", b.file, err), "let the relay's user read and write it and its folder")
	case sqlite3.SQLITE_NOTADB:
		return say("the file "+b.file+" is not a SQLite database", "correct source.url")
	case sqlite3.SQLITE_READONLY:
		return errNoWrites{say("the file "+b.file+" is read-only", "let the relay's user write it and its folder")}
	case sqlite3.SQLITE_FULL:
		return errNoWrites{fmt.Errorf("the disk of the file %s is full: %w", b.file, err)}
	}
	return err
}

// errNoWrites makes an error a buffer.ErrNoWrites.
type errNoWrites struct{ error }

func (e errNoWrites) Unwrap() []error { return []error{e.error, buffer.ErrNoWrites} }

func notThere(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
