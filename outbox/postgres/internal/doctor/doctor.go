package doctor

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/custom"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Config is what Diagnose must know of a buffer.
type Config struct {
	DB *pg.DB
	// Table returns the name of the buffer table, and its schema; "" to search along the search path.
	Table func() (schema, name string)
	// LedgerSchema is the configured schema of the relay's tables; "" for the buffer table's.
	LedgerSchema string
	Policy       buffer.SupervisorPolicy
	// Listener diagnoses how the relay is woken; nil if it only polls.
	Listener *listen.Listener
	// Custom is set for a custom table.
	Custom bool
	Check  func(context.Context) error
	Peek   func(ctx context.Context, limit int) (*buffer.Lease, error)
	// Orphaned finds dead letters under names that no pipeline has, and other tables of the pipeline in which events are left.
	Orphaned func(context.Context) ([]buffer.Finding, error)
	// Owner returns why this pipeline does not own the buffer; nil if it does, or nobody does.
	Owner func() *ownership.Error
	// State returns what Check found, nil if tables are missing.
	State func() *State
}

// State is what Check found of a buffer.
type State struct {
	Tables *ledger.Tables
	// Mode is how the relay claims. NotRange is why it is not by range although the
	// configuration allows that; RangeRequested is set for claim: range.
	Mode           buffer.ClaimMode
	NotRange       *buffer.Finding
	RangeRequested bool
	// ClaimSQL and ClaimArgs are a claim to run EXPLAIN with.
	ClaimSQL  string
	ClaimArgs []string
	// Custom is nil for the relay's own table.
	Custom *custom.Table
}

// Diagnose returns findings, also about what is OK.
func Diagnose(ctx context.Context, c Config) []buffer.Finding {
	d := diagnosis{Config: c}
	if !d.server(ctx) {
		return d.findings
	}
	if d.noReads(ctx) {
		d.blockers(ctx, d.privileges(ctx))
		return d.findings
	}
	d.run(ctx)
	d.explainTimeouts(ctx)
	return d.findings
}

func (d *diagnosis) run(ctx context.Context) {
	c := &d.Config
	application := d.tables(ctx)
	schema, name := c.Table()
	events, err := catalog.Find(ctx, c.DB, schema, name)
	if d.failed("tables", err) || !events.Exists {
		return
	}
	if application { // a table of the application, by mistake: what follows is about tables of events
		d.blockers(ctx, d.privileges(ctx))
		return
	}
	if d.LedgerSchema == "" {
		d.LedgerSchema = events.Schema
	}
	if events.Unlogged {
		d.problem("tables", "table "+events.Quoted+" is UNLOGGED; a crash would empty it", "ALTER TABLE "+events.Quoted+" SET LOGGED")
	}
	if d.state = c.State(); d.state != nil {
		d.writes(ctx)
	}
	d.owner(ctx)
	d.rowSecurity(ctx, events)
	if d.state != nil {
		d.deletes(ctx, events)
		d.updates(ctx, events)
	}
	d.references(ctx, events)
	d.claim(ctx, events)
	d.waiting(ctx)
	d.wakeUps(ctx, events)
	if c.Custom {
		d.custom(ctx, events)
	} else {
		if unsent := buffer.UnsentEventColumns(events.Columns); unsent != nil {
			d.findings = append(d.findings, projection.UnsentEvents(unsent, events.Quoted, events.Name))
		}
		d.indexes(ctx, events)
		d.delayed(ctx)
		d.fillfactor(ctx, events)
		d.payload(ctx, events)
		d.sequence(ctx, events.Sequence)
	}
	d.claimPlan(ctx, events)
	d.storage(ctx, events)
	d.deadlockTimeout(events)
	d.deadRows(ctx, events)
	sees := d.privileges(ctx)
	d.blockers(ctx, sees)
}

// diagnosis collects findings.
type diagnosis struct {
	Config
	state    *State              // nil if tables are missing
	started  string              // when the server did, which tells it from others
	locked   *buffer.LockedError // nothing can read a table
	findings []buffer.Finding
	timeouts []int // the findings that say no more than that a statement took too long
}

func (d *diagnosis) add(level buffer.Level, about, text, fix string) {
	d.findings = append(d.findings, buffer.Finding{Level: level, Subject: about, Text: text, Fix: fix})
}

func (d *diagnosis) ok(about, text string)           { d.add(buffer.LevelOK, about, text, "") }
func (d *diagnosis) warn(about, text, fix string)    { d.add(buffer.LevelWarning, about, text, fix) }
func (d *diagnosis) problem(about, text, fix string) { d.add(buffer.LevelError, about, text, fix) }

// failed reports whether err is one, and adds that the subject could not be examined. It adds
// nothing about a missing privilege that Check has found.
func (d *diagnosis) failed(about string, err error) bool {
	if err != nil && (pg.Code(err) != pg.CodeNoPrivilege || d.state != nil || about == "tables") {
		if IsTimeout(err) {
			d.timeouts = append(d.timeouts, len(d.findings))
		}
		d.problem(about, "examining it failed: "+d.DB.ConnectError(err).Error(), "run relay doctor again; if it fails again, check the server's log")
	}
	return err != nil
}

// query runs a statement whose columns are all text, and reports whether it succeeded.
func (d *diagnosis) query(ctx context.Context, about, sql string, row func(v []string), args ...string) bool {
	return !d.failed(about, d.DB.RoundTrip(ctx, []pg.Step{pg.ReadTx(pg.BulkTimeout), {SQL: sql, Args: args, Row: func(v [][]byte) error {
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = string(v[i])
		}
		row(texts)
		return nil
	}}}))
}

const serverSQL = `
SELECT current_setting('server_version_num')::bigint, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('default_transaction_read_only')::boolean, quote_ident(current_database()),
       pg_postmaster_start_time()::text`

// server reports whether the server takes writes; otherwise nothing more can be examined.
func (d *diagnosis) server(ctx context.Context) bool {
	const about = "server"
	var (
		number             int64
		version, database  string
		recovery, readOnly bool
	)
	err := d.DB.RoundTrip(ctx, []pg.Step{pg.ReadTx(d.DB.StatementTimeout), {SQL: serverSQL, Row: func(v [][]byte) error {
		number, version, recovery, readOnly, database = pg.ReadInt8(v[0]), string(v[1]), pg.ReadBool(v[2]), pg.ReadBool(v[3]), string(v[4])
		d.started = string(v[5])
		return nil
	}}})
	switch {
	case err != nil:
		fix := "start the server, or correct source.url"
		switch err = d.DB.ConnectError(err); { // the server answers
		case errors.Is(err, buffer.ErrNotReady):
			fix = "correct source.url, or create the role or the database"
		case errors.Is(err, buffer.ErrNoWrites):
			fix = freeSpace
		case pg.Code(err) == pg.CodeNoConnection:
			fix = "all connections are in use: end those that are not needed, or raise the limit (max_connections, or CONNECTION LIMIT of the role or the database); a superuser sees who has them: " +
				"SELECT usename, application_name, client_addr, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC. Each relay process keeps up to 32 for a database, and one to listen"
		}
		d.problem(about, err.Error(), fix)
		return false
	case number < 140000:
		d.problem(about, "PostgreSQL "+version+" is too old; the relay needs 14 or later", "upgrade the server")
	case recovery:
		d.problem(about, "the server is in recovery: a standby, which cannot be written to", "name the primary in source.url, or both and target_session_attrs=read-write")
		return false
	case readOnly:
		d.problem(about, "transactions are read-only by default (default_transaction_read_only)",
			"BEGIN READ WRITE; ALTER DATABASE "+database+" SET default_transaction_read_only = off; COMMIT")
		return false
	default:
		d.ok(about, "PostgreSQL "+version+", takes writes")
	}
	return true
}

// tables adds what Check finds missing, and reports whether it found a table of the application.
func (d *diagnosis) tables(ctx context.Context) (application bool) {
	const about = "tables"
	err := d.Check(ctx)
	missing, notReady := errors.AsType[*notready.Error](err)
	switch {
	case err == nil:
		d.ok(about, "tables, columns and privileges exist")
	case notReady:
		d.findings = append(d.findings, missing.Missing...)
		return missing.Application
	case errors.Is(err, buffer.ErrNoWrites) && pg.Code(err) == pg.CodeDiskFull:
		d.problem("server", err.Error(), freeSpace)
	case errors.Is(err, buffer.ErrNotReady): // another claim mode
		d.problem(about, err.Error(), "follow the steps it names")
	default:
		d.failed(about, err)
	}
	return false
}

// The row has the shape of a relay's report, and no other session sees it. It is larger than what is free in pages that exist, and cannot be
// compressed: a small row still finds room when the disk is full.
const probeSQL = `
INSERT INTO outbox_relays (buffer, sink, owner, version, seen_at, stopped, delivered, dead, last_minute, notice)
SELECT $1, '', 'doctor', '', clock_timestamp(), true, 0, 0, 0, string_agg(encode(sha256(convert_to(random()::text, 'UTF8')), 'hex'), '')
FROM generate_series(1, 1024) ON CONFLICT DO NOTHING`

// freeSpace is the fix of a full disk.
const freeSpace = "free space on the disk of the database"

// writes adds whether a row can be written, which a full disk prevents. It is rolled back.
func (d *diagnosis) writes(ctx context.Context) {
	err := d.DB.RoundTrip(ctx, []pg.Step{
		pg.Begin, d.DB.WriteTx(d.DB.StatementTimeout), {SQL: d.state.Tables.SQL(probeSQL), Args: []string{d.state.Tables.Buffer}}, {SQL: "ROLLBACK"},
	})
	switch {
	case err == nil:
	case pg.Code(err) == pg.CodeDiskFull:
		d.problem("server", "it cannot write, its disk is full: "+err.Error(), freeSpace)
	default:
		d.problem("server", "it cannot write: "+d.DB.ConnectError(err).Error(), "remove this cause; the server's log says more")
	}
}

// wakeUps adds how the relay learns of commits.
func (d *diagnosis) wakeUps(ctx context.Context, events catalog.Table) {
	switch {
	case d.Listener == nil:
	case d.Custom:
		d.ok(listen.Subject, "polling (5 to 100 ms for each pipeline), because a custom table has no trigger "+listen.TriggerName)
	default:
		f, err := d.Listener.Diagnose(ctx, events.Quoted)
		if !d.failed(listen.Subject, err) {
			d.findings = append(d.findings, f)
		}
	}
}

// deadlockTimeout adds whether the relay has enough time to wait for a lock.
func (d *diagnosis) deadlockTimeout(events catalog.Table) {
	const (
		about   = "deadlock_timeout"
		minimum = 100 // milliseconds
	)
	timeout := events.DeadlockTimeout
	if timeout.Milliseconds() < minimum {
		d.warn(about, "it is "+timeout.String()+"; the relay waits for a lock half as long, so that it is the victim of a deadlock, and gives up too early",
			"ALTER DATABASE "+pg.Quote(events.Database)+" SET deadlock_timeout = '1s'")
		return
	}
	d.ok(about, timeout.String())
}
