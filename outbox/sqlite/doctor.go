package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// quickCheckTimeout bounds PRAGMA quick_check, which reads the whole file.
const quickCheckTimeout = 5 * time.Second

// Diagnose implements buffer.Diagnoser.
func (b *Buffer) Diagnose(ctx context.Context) []buffer.Finding {
	d := diagnosis{b: b}
	ready := d.tables(ctx)
	if _, err := os.Stat(b.file); err != nil {
		return d.findings
	}
	if ready {
		d.owner(ctx)
		d.waiting(ctx)
		d.orphans(ctx)
		d.deletes(ctx)
		d.references(ctx)
		d.sinks(ctx)
	}
	d.journal(ctx)
	d.integrity(ctx)
	if d.application { // what follows is about tables of events
		return d.findings
	}
	b.upkeep.diagnose(ctx, &d)
	return d.findings
}

// diagnosis collects findings.
type diagnosis struct {
	b           *Buffer
	application bool // source.table names a table of the application
	findings    []buffer.Finding
}

func (d *diagnosis) add(level buffer.Level, about, text, fix string) {
	d.findings = append(d.findings, buffer.Finding{Level: level, Subject: about, Text: text, Fix: fix})
}

func (d *diagnosis) ok(about, text string)           { d.add(buffer.LevelOK, about, text, "") }
func (d *diagnosis) warn(about, text, fix string)    { d.add(buffer.LevelWarning, about, text, fix) }
func (d *diagnosis) problem(about, text, fix string) { d.add(buffer.LevelError, about, text, fix) }

// failed reports whether err is one, and adds that the subject could not be examined.
func (d *diagnosis) failed(about string, err error) bool {
	if err != nil {
		d.problem(about, "examining it failed: "+d.b.unusable(err).Error(), "run relay doctor again; if it fails again, check the file "+d.b.file)
	}
	return err != nil
}

// tables adds what Check finds missing, and reports whether nothing is.
func (d *diagnosis) tables(ctx context.Context) (ready bool) {
	const about = "tables"
	err := d.b.Check(ctx)
	if missing, ok := errors.AsType[*notready.Error](err); ok {
		d.findings, d.application = append(d.findings, missing.Missing...), missing.Application
		return false
	}
	if errors.Is(err, buffer.ErrNotReady) { // claim modes
		d.problem(about, err.Error(), "follow the steps it names")
		return false
	}
	if d.failed(about, err) {
		return false
	}
	text := "the file can be written; tables and columns exist, and ids are never handed out twice (AUTOINCREMENT)"
	if d.b.config.Custom.Is() {
		text = "the file can be written; tables and columns exist, and the projection runs"
	}
	d.ok(about, text)
	d.ok("claim", "by "+string(d.b.ClaimMode()))
	return true
}

// sinks adds what is wrong with the registered sinks.
func (d *diagnosis) sinks(ctx context.Context) {
	if d.b.config.Sinks == nil {
		return
	}
	var found []buffer.Finding
	err := d.b.begin(ctx, d.b.db, readOnly, func(tx transaction) (err error) {
		found, err = d.b.sinkFindings(ctx, tx)
		return err
	})
	if !d.failed("sinks", err) {
		d.findings = append(d.findings, found...)
	}
}

const whyWaitingSQL = `
SELECT count(*), coalesce(sum(events), 0),
       coalesce((SELECT error FROM outbox_batches
                 WHERE buffer = ?1 AND (state = 'waiting' AND attempts + outages > 0 OR state = 'delivered' AND error IS NOT NULL) ORDER BY claimed_at DESC LIMIT 1), '')
FROM outbox_batches
WHERE buffer = ?1 AND (state = 'waiting' AND attempts + outages > 0 OR state = 'delivered' AND error IS NOT NULL)`

// waiting adds why batches wait.
func (d *diagnosis) waiting(ctx context.Context) {
	const about = "batches"
	var (
		batches, events int64
		why             string
	)
	err := d.b.db.QueryRowContext(ctx, whyWaitingSQL, d.b.config.Table).Scan(&batches, &events, &why)
	switch {
	case d.failed(about, err):
	case batches == 0:
		d.ok(about, "none waits for a retry")
	default:
		d.warn(about, fmt.Sprintf("batches that wait for a retry: %d, their events: %d; the newest because: %s", batches, events, why),
			"remove the cause; the relay retries by itself")
	}
}

// orphans adds whether events carry a group_id without a ledger row.
func (d *diagnosis) orphans(ctx context.Context) {
	const about = "group_id"
	var orphans bool
	err := d.b.begin(ctx, d.b.db, readOnly, func(tx transaction) (err error) {
		orphans, err = d.b.hasOrphans(ctx, tx)
		return err
	})
	switch {
	case d.failed(about, err):
	case orphans:
		d.warn(about, "events have a group_id but no ledger row, as after a restore or an INSERT that sets it; relays search for them only every few minutes",
			"relay verify --repair; an application must not set group_id")
	default:
		d.ok(about, "each that an event has is in the ledger")
	}
}

const triggersSQL = `
SELECT name, sql, tbl_name FROM sqlite_schema
WHERE type = 'trigger' AND (tbl_name = ?1 COLLATE NOCASE OR tbl_name = 'outbox_dead_letters') ORDER BY name`

// updateIgnored does so of one that may keep them from being stamped.
var updateIgnored = regexp.MustCompile(`(?is)(\bafter\s+)?\bupdate\s+(?:of\b.*?\s)?on\b.*\braise\s*\(\s*ignore\s*\)`)

// deleteIgnored matches the definition of a trigger that may keep rows from being deleted, unless it is AFTER DELETE. A
// trigger without BEFORE is one.
var deleteIgnored = regexp.MustCompile(`(?is)(\bafter\s+)?\bdelete\s+on\b.*\braise\s*\(\s*ignore\s*\)`)

// insertIgnored does so of one that may drop a dead letter.
var insertIgnored = regexp.MustCompile(`(?is)(\bafter\s+)?\binsert\s+on\b.*\braise\s*\(\s*ignore\s*\)`)

// refuses matches the definition of a trigger that may raise an error for what a settle does.
var refuses = regexp.MustCompile(`(?is)\b(delete|insert)\s+on\b.*\braise\s*\(\s*(abort|fail|rollback)\b`)

// deletes adds what may make a DELETE of a delivered event do nothing, or fail.
func (d *diagnosis) deletes(ctx context.Context) {
	const about = "deletes"
	rows, err := d.b.db.QueryContext(ctx, triggersSQL, d.b.config.Table)
	triggers, err := db.All(rows, err, func(rows *sql.Rows, t *[3]string) error { return rows.Scan(&t[0], &t[1], &t[2]) })
	if d.failed(about, err) {
		return
	}
	for _, t := range triggers {
		events := strings.EqualFold(t[2], d.b.config.Table)
		if found := refuses.FindStringSubmatch(t[1]); found != nil && strings.EqualFold(found[1], "delete") == events {
			d.warn(about, "trigger "+db.Quote(t[0])+" of table "+db.Quote(t[2])+" may raise an error on "+strings.ToUpper(found[1])+"; where it does so, the batch waits, "+
				"and the pipeline stalls", "DROP TRIGGER "+db.Quote(t[0]))
		}
		if found := insertIgnored.FindStringSubmatch(t[1]); !events && found != nil && found[1] == "" {
			d.warn(about, "trigger "+db.Quote(t[0])+" of table "+db.Quote(t[2])+" fires BEFORE INSERT and calls RAISE(IGNORE); where it does so, a refused event gets no dead letter "+
				"and waits, and the pipeline stalls", "DROP TRIGGER "+db.Quote(t[0]))
		}
		if found := updateIgnored.FindStringSubmatch(t[1]); events && found != nil && found[1] == "" && d.b.ClaimMode() == buffer.ClaimStamp {
			d.warn("updates", "trigger "+db.Quote(t[0])+" of table "+db.Quote(t[2])+" fires BEFORE UPDATE and calls RAISE(IGNORE); where it does so, no event is claimed",
				"DROP TRIGGER "+db.Quote(t[0]))
		}
		if found := deleteIgnored.FindStringSubmatch(t[1]); events && found != nil && found[1] == "" {
			d.warn(about, "trigger "+db.Quote(t[0])+" of table "+db.Quote(d.b.config.Table)+" fires BEFORE DELETE and calls RAISE(IGNORE); where it does so, "+
				"delivered events stay in the table, and the pipeline stalls", "DROP TRIGGER "+db.Quote(t[0]))
		}
	}
}

// Foreign keys of other tables that refer to the buffer table: those that keep a delivered event, and those
// whose tables are read whole for each event that is deleted. See
// https://sqlite.org/foreignkeys.html#fk_indexes.
const referencesSQL = `
SELECT t.name, max(k.on_delete NOT IN ('CASCADE', 'SET NULL', 'SET DEFAULT')), group_concat('"' || replace(k."from", '"', '""') || '"', ', '),
       max(EXISTS (SELECT 1 FROM pragma_table_info(t.name) WHERE pk = 1 AND name = k."from" COLLATE NOCASE)
           OR EXISTS (SELECT 1 FROM pragma_index_list(t.name) AS l JOIN pragma_index_info(l.name) AS c
                      WHERE NOT l.partial AND c.seqno = 0 AND c.name = k."from" COLLATE NOCASE))
FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS k
WHERE t.type = 'table' AND k."table" = ?1 COLLATE NOCASE
GROUP BY t.name, k.id ORDER BY t.name, k.id`

// reference is a foreign key of another table.
type reference struct {
	table, columns     string
	restricts, indexed bool
}

// references adds the foreign keys of other tables that hinder deletes.
func (d *diagnosis) references(ctx context.Context) {
	const about = "foreign keys"
	rows, err := d.b.db.QueryContext(ctx, referencesSQL, d.b.config.Table)
	all, err := db.All(rows, err, func(rows *sql.Rows, r *reference) error {
		return rows.Scan(&r.table, &r.restricts, &r.columns, &r.indexed)
	})
	if d.failed(about, err) {
		return
	}
	events := db.Quote(d.b.config.Table)
	for _, r := range all {
		if r.restricts {
			d.warn(about, "table "+db.Quote(r.table)+" keeps delivered events: an event that a row there refers to cannot be deleted",
				"create that table again with "+r.columns+" REFERENCES "+events+" ON DELETE SET NULL, or CASCADE")
		}
		if !r.indexed {
			d.warn(about, "table "+db.Quote(r.table)+" refers to table "+events+" by columns without an index, and is read whole for each event that is deleted",
				"CREATE INDEX "+db.Quote(r.table+"_"+d.b.config.Table)+" ON "+db.Quote(r.table)+" ("+r.columns+")")
		}
	}
}

const journalModeSQL = `
PRAGMA journal_mode`

// journal adds whether readers and writers block each other.
func (d *diagnosis) journal(ctx context.Context) {
	const about = "journal_mode"
	var mode string
	err := d.b.db.QueryRowContext(ctx, journalModeSQL).Scan(&mode)
	switch {
	case d.failed(about, err):
	case mode != "wal":
		d.warn(about, "it is "+mode+"; readers and the writer block each other", walSQL)
	default:
		d.ok(about, "write-ahead log: readers and the writer do not block each other")
	}
}

const quickCheckSQL = `
PRAGMA quick_check(1)`

// integrity reads through the file, unless that takes too long.
func (d *diagnosis) integrity(ctx context.Context) {
	const about = "integrity"
	limited, cancel := context.WithTimeout(ctx, quickCheckTimeout)
	defer cancel()
	var result string
	err := d.b.db.QueryRowContext(limited, quickCheckSQL).Scan(&result)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		d.ok(about, fmt.Sprintf("not examined: the file is too large to be read in %v", quickCheckTimeout))
		return
	}
	if err != nil {
		result = err.Error()
	}
	if result != "ok" {
		d.problem(about, "the file is damaged: "+strings.Join(strings.Fields(result), " "),
			fmt.Sprintf("stop everything, then restore a backup, or: sqlite3 '%s' .recover | sqlite3 '%s.new'", d.b.file, d.b.file))
		return
	}
	d.ok(about, "the file is sound")
}

const indexesSQL = `
SELECT name FROM pragma_index_list(?1) WHERE origin = 'c'`

// diagnose adds indexes that are of no use, and the plan of a claim.
func (r *relayTable) diagnose(ctx context.Context, d *diagnosis) {
	const about = "indexes"
	rows, err := r.b.db.QueryContext(ctx, indexesSQL, r.b.config.Table)
	indexes, err := db.Column[string](rows, err)
	delayed := false
	indexes = slices.DeleteFunc(indexes, func(name string) bool { // Check needs one
		found := !delayed && r.findsDelayed(ctx, name)
		delayed = delayed || found
		return found
	})
	if !d.failed(about, err) && len(indexes) == 0 {
		d.ok(about, "the primary key is the only index of the buffer beside that of delayed events")
	}
	for _, name := range indexes {
		d.warn(about, fmt.Sprintf("index %s is of no use to the relay, and each claim by stamp writes to it", db.Quote(name)), "DROP INDEX "+db.Quote(name))
	}
	if unsent, err := r.b.UnsentColumns(ctx); err == nil && unsent != nil { // tables says what is missing
		d.findings = append(d.findings, projection.UnsentEvents(unsent, db.Quote(r.b.config.Table), r.b.config.Table))
	}
	d.delayed(ctx)
	d.claimPlan(ctx, pickSQL, "USING INTEGER PRIMARY KEY")
}

// claimPlan adds whether a claim finds its events by one of the ways named.
func (d *diagnosis) claimPlan(ctx context.Context, pick string, ways ...string) {
	const about = "claim plan"
	var steps []string
	err := d.b.begin(ctx, d.b.db, readOnly, func(tx transaction) (err error) {
		steps, err = planSteps(tx.rows(ctx, "EXPLAIN QUERY PLAN "+pick, 0, 1000, ""))
		return err
	})
	if err != nil { // tables says what is missing
		return
	}
	steps = slices.DeleteFunc(steps, func(step string) bool { // the events go through an aggregate
		return strings.HasPrefix(step, "CO-ROUTINE") || strings.HasPrefix(step, "SCAN (subquery")
	})
	plan := strings.Join(steps, ", ")
	finds := slices.ContainsFunc(ways, func(way string) bool { return strings.Contains(plan, way) })
	if len(steps) != 1 || !strings.HasPrefix(plan, "SEARCH") || !finds {
		d.problem(about, "a claim does not use the primary key: "+plan, "see the findings about indexes and tables")
		return
	}
	d.ok(about, "a claim uses the primary key")
}

// planSteps reads and closes rows of EXPLAIN QUERY PLAN.
func planSteps(rows *sql.Rows, err error) ([]string, error) {
	return db.All(rows, err, func(rows *sql.Rows, step *string) error {
		var id, parent, unused int
		return rows.Scan(&id, &parent, &unused, step)
	})
}
