package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// quickCheckTime is how long PRAGMA quick_check, which reads the whole file, may take.
const quickCheckTime = 5 * time.Second

// Diagnose is described by buffertest.Buffer.
func (b *Buffer) Diagnose(ctx context.Context) []buffer.Finding {
	e := examination{b: b}
	e.tables(ctx)
	if _, err := os.Stat(b.file); err != nil {
		return e.found
	}
	if len(e.found) == 1 && e.found[0].Level == buffer.LevelOK {
		e.claims(ctx)
		e.waiting(ctx)
		if b.own != nil {
			e.own(ctx)
			e.references(ctx)
		}
	}
	e.pragmas(ctx)
	e.integrity(ctx)
	if b.own == nil {
		e.indexes(ctx)
	}
	e.plan(ctx)
	return e.found
}

// examination gathers what is found.
type examination struct {
	b     *Buffer
	found []buffer.Finding
}

func (e *examination) add(level buffer.Level, about, text, mend string) {
	e.found = append(e.found, buffer.Finding{Level: level, Subject: about, Text: text, Fix: mend})
}
func (e *examination) fine(about, text string)          { e.add(buffer.LevelOK, about, text, "") }
func (e *examination) warn(about, text, mend string)    { e.add(buffer.LevelWarning, about, text, mend) }
func (e *examination) problem(about, text, mend string) { e.add(buffer.LevelError, about, text, mend) }

// failed notes that something could not be looked at.
func (e *examination) failed(about string, err error) bool {
	if err != nil {
		e.problem(about, "it could not be looked at: "+e.b.unusable(err).Error(), "run relay doctor again; if it says the same, look at the file "+e.b.file)
	}
	return err != nil
}

// tables shows what Check says, a finding each.
func (e *examination) tables(ctx context.Context) {
	const about = "tables"
	err := e.b.Check(ctx)
	switch {
	case err == nil && e.b.own != nil:
		e.fine(about, "the file can be written; tables and columns are there, and the projection runs")
		return
	case err == nil:
		e.fine(about, "the file can be written; tables and columns are there, and ids are never handed out twice (AUTOINCREMENT)")
		return
	case !errors.Is(err, buffer.ErrNotReady):
		e.failed(about, err)
		return
	}
	text := strings.TrimPrefix(err.Error(), buffer.ErrNotReady.Error()+": ")
	text = strings.TrimPrefix(text, e.b.file+": ")
	for text != "" {
		one, rest, more := strings.Cut(text, "; table ")
		if text = ""; more {
			text = "table " + rest
		}
		mend := "look at source.url, and at who owns the file and its folder"
		if i := strings.LastIndex(one, ": "); i >= 0 {
			one, mend = one[:i], one[i+len(": "):]
		}
		e.problem(about, one, mend)
	}
}

// claims says in which mode this relay claims, and why not in a better one.
func (e *examination) claims(ctx context.Context) {
	const (
		about = "claim"
		anew  = "make it anew with id INTEGER PRIMARY KEY AUTOINCREMENT"
	)
	by := "by " + string(e.b.ClaimMode())
	if e.b.own != nil {
		e.fine(about, by)
		return
	}
	unfit, err := e.b.unfit(ctx)
	switch {
	case e.failed(about, err):
	case unfit == "" || e.b.config.Ordered || e.b.config.Claim == buffer.ClaimStamp || e.b.config.Claim == buffer.ClaimOptimistic:
		e.fine(about, by)
	case e.b.config.Claim == buffer.ClaimRange:
		e.warn(about, by+", although claim: range was asked for: "+unfit, anew)
	default:
		e.add(buffer.LevelOK, about, by+"; not by range, for "+unfit, anew)
	}
}

const pragmasSQL = `
SELECT (SELECT journal_mode FROM pragma_journal_mode), (SELECT timeout FROM pragma_busy_timeout)`

// pragmas are how readers and writers get past each other.
func (e *examination) pragmas(ctx context.Context) {
	const (
		journal  = "journal_mode"
		busy     = "busy_timeout"
		patience = 1000
	)
	var (
		mode    string
		timeout int
	)
	if e.failed(journal, e.b.db.QueryRowContext(ctx, pragmasSQL).Scan(&mode, &timeout)) {
		return
	}
	if mode != "wal" {
		e.warn(journal, "it is "+mode+", and readers and the writer shut each other out", walSQL)
	} else {
		e.fine(journal, "write-ahead log: readers and the writer do not wait for each other")
	}
	if timeout < patience {
		e.warn(busy, fmt.Sprintf("the relay waits %d ms for the application's transactions", timeout), "report it: the relay sets this itself")
	} else {
		e.fine(busy, fmt.Sprintf("the relay waits %d ms for the application's transactions", timeout))
	}
}

const quickCheckSQL = `
PRAGMA quick_check(1)`

// integrity looks through the file for as long as that does not take too long.
func (e *examination) integrity(ctx context.Context) {
	const about = "integrity"
	limited, cancel := context.WithTimeout(ctx, quickCheckTime)
	defer cancel()
	var verdict string
	err := e.b.db.QueryRowContext(limited, quickCheckSQL).Scan(&verdict)
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		e.fine(about, fmt.Sprintf("the file is too large to be looked through in %v", quickCheckTime))
	case err != nil:
		verdict = err.Error()
		fallthrough
	case verdict != "ok":
		e.problem(about, "the file is damaged: "+strings.Join(strings.Fields(verdict), " "),
			fmt.Sprintf("stop everything, then restore a backup, or: sqlite3 '%s' .recover | sqlite3 '%s.new'", e.b.file, e.b.file))
	default:
		e.fine(about, "the file is sound")
	}
}

const indexesSQL = `
SELECT name FROM pragma_index_list(?1) WHERE origin = 'c'`

// indexes looks for those that are of no use.
func (e *examination) indexes(ctx context.Context) {
	const about = "indexes"
	rows, err := e.b.db.QueryContext(ctx, indexesSQL, e.b.config.Table)
	if e.failed(about, err) {
		return
	}
	defer rows.Close()
	extra := 0
	for rows.Next() {
		var name string
		if e.failed(about, rows.Scan(&name)) {
			return
		}
		extra++
		e.warn(about, fmt.Sprintf("index %s is of no use to the relay, and stamping an event writes to it", quote(name)), "DROP INDEX "+quote(name))
	}
	if !e.failed(about, rows.Err()) && extra == 0 {
		e.fine(about, "the primary key is the only index of the buffer")
	}
}

// plan explains a claim.
func (e *examination) plan(ctx context.Context) {
	const about = "claim plan"
	pick := pickSQL
	if e.b.own != nil {
		pick = pickOwnSQL
	}
	var steps []string
	err := e.b.begin(ctx, &sql.TxOptions{ReadOnly: true}, func(tx transaction) (err error) {
		steps, err = planSteps(tx.rows(ctx, "EXPLAIN QUERY PLAN "+pick, 0, 1000))
		return err
	})
	if err != nil { // what is missing was said
		return
	}
	steps = slices.DeleteFunc(steps, func(step string) bool { // what is found goes through an aggregate
		return strings.HasPrefix(step, "CO-ROUTINE") || strings.HasPrefix(step, "SCAN (subquery")
	})
	plan := strings.Join(steps, ", ")
	// An index of the user's own on group_id has the key too, in order.
	byIndex := e.b.own != nil && strings.Contains(plan, "(group_id=? AND rowid>?)")
	if len(steps) != 1 || !strings.HasPrefix(plan, "SEARCH") || !byIndex && !strings.Contains(plan, "USING INTEGER PRIMARY KEY") {
		e.problem(about, "a claim does not walk the primary key: "+plan, "see what is said about indexes and tables")
		return
	}
	e.fine(about, "a claim walks the primary key")
}

// planSteps reads and closes rows of EXPLAIN QUERY PLAN.
func planSteps(rows *sql.Rows, err error) (steps []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id, parent, unused int
			step               string
		)
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return steps, rows.Err()
}
