package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Diagnose is described by buffertest.Buffer.
func (b *Buffer) Diagnose(ctx context.Context) []buffer.Finding {
	return b.examine(ctx, b.config.Watch.WarnAfter)
}

func (b *Buffer) examine(ctx context.Context, long time.Duration) []buffer.Finding {
	e := examination{b: b}
	if !e.server(ctx) {
		return e.found
	}
	e.tables(ctx)
	schema, name := pg.SplitTable(b.config.Table)
	events, err := catalog.Find(ctx, b.db, schema, name)
	if e.failed("tables", err) || !events.Exists {
		return e.found
	}
	if events.Unlogged {
		e.problem("tables", "table "+events.Quoted+" is UNLOGGED, and a crash would empty it", "ALTER TABLE "+events.Quoted+" SET LOGGED")
	}
	e.rowSecurity(ctx, events)
	e.claims(ctx, events)
	e.waiting(ctx)
	e.wakeUps(ctx, events)
	if e.b.config.Own.Is() {
		e.own(ctx, events)
	} else {
		e.indexes(ctx, events)
	}
	e.plan(ctx, events)
	e.settings(ctx, events)
	e.deadlocks(events)
	e.deadRows(ctx, events)
	e.sessions(ctx)
	e.holders(ctx, long)
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
func (e *examination) fine(about, text string)       { e.add(buffer.LevelOK, about, text, "") }
func (e *examination) warn(about, text, mend string) { e.add(buffer.LevelWarning, about, text, mend) }

func (e *examination) problem(about, text, mend string) { e.add(buffer.LevelError, about, text, mend) }

// failed notes that something could not be looked at; not that the role may not, where
// Check has said what it may not.
func (e *examination) failed(about string, err error) bool {
	if err != nil && (pg.Code(err) != pg.CodeNoPrivilege || e.b.table.Load() != nil || about == "tables") {
		e.problem(about, "it could not be looked at: "+e.b.db.ConnectError(err).Error(), "run relay doctor again; if it says the same, look at the server's log")
	}
	return err != nil
}

// wakeUps says how the relay learns of commits.
func (e *examination) wakeUps(ctx context.Context, events catalog.Table) {
	switch {
	case e.b.config.Wake == buffer.WakePoll:
		return
	case e.b.config.Own.Is():
		e.fine(listen.Subject, "polling (5 ms to 1 s), because a custom table has no trigger outbox_notify")
		return
	}
	f, err := e.b.Listener(nil).Diagnose(ctx, events.Quoted)
	if !e.failed(listen.Subject, err) {
		e.found = append(e.found, f)
	}
}

// ask runs one statement, whose columns are all text.
func (e *examination) ask(ctx context.Context, about, sql string, row func(v []string), args ...string) bool {
	return !e.failed(about, e.b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(pg.BulkTimeout), {SQL: sql, Args: args, Row: func(v [][]byte) error {
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = string(v[i])
		}
		row(texts)
		return nil
	}}}))
}

const serverSQL = `
SELECT current_setting('server_version_num'), current_setting('server_version'), pg_is_in_recovery()::text,
       current_setting('default_transaction_read_only'), quote_ident(current_database())`

// server tells whether there is one that takes writes: nothing else can be said of
// one that does not.
func (e *examination) server(ctx context.Context) bool {
	const about = "server"
	var v []string
	err := e.b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(e.b.db.StatementTimeout), {SQL: serverSQL, Row: func(row [][]byte) error {
		for _, column := range row {
			v = append(v, string(column))
		}
		return nil
	}}})
	if err != nil || len(v) != 5 {
		e.problem(about, e.b.db.ConnectError(err).Error(), "start the server, or correct source.url")
		return false
	}
	if number, err := strconv.Atoi(v[0]); err != nil || number < 140000 {
		e.problem(about, "this is PostgreSQL "+v[1]+", and the relay needs 14 or later", "upgrade the server")
		return true
	}
	switch {
	case v[2] == "true":
		e.problem(about, "the server is in recovery: a standby, which cannot be written to", "name the primary in source.url, or both and target_session_attrs=read-write")
		return false
	case v[3] == "on":
		e.problem(about, "transactions are read-only by default (default_transaction_read_only)",
			"BEGIN READ WRITE; ALTER DATABASE "+v[4]+" SET default_transaction_read_only = off; COMMIT")
		return false
	}
	e.fine(about, "PostgreSQL "+v[1]+", takes writes")
	return true
}

// tables shows what Check says, a finding each.
func (e *examination) tables(ctx context.Context) {
	const about = "tables"
	err := e.b.Check(ctx)
	missing, notReady := errors.AsType[*notready.Error](err)
	switch {
	case err == nil:
		e.fine(about, "tables, columns and privileges are there")
	case notReady:
		e.found = append(e.found, missing.Missing...)
	case errors.Is(err, buffer.ErrNotReady): // another claim mode
		e.problem(about, err.Error(), "follow the steps it names")
	default:
		e.failed(about, err)
	}
}

const indexesSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), i.indisprimary::text, (i.indisvalid AND i.indisready)::text,
       (am.amname = 'btree' AND i.indpred IS NULL AND i.indkey[0] = (
         SELECT attnum FROM pg_attribute WHERE attrelid = i.indrelid AND attname = 'id' AND NOT attisdropped))::text,
       coalesce((SELECT quote_ident(conname) FROM pg_constraint WHERE conindid = i.indexrelid AND conrelid = i.indrelid AND contype IN ('p', 'u', 'x') LIMIT 1), '')
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_am am ON am.oid = c.relam
WHERE i.indrelid = $1::regclass
ORDER BY i.indisprimary DESC, i.indisvalid DESC, c.relname`

// indexes looks for the one that claims walk, and for those that are of no use.
func (e *examination) indexes(ctx context.Context, events catalog.Table) {
	const about = "indexes"
	var claims string
	primary, extra := false, 0
	answered := e.ask(ctx, about, indexesSQL, func(v []string) {
		name, isPrimary, valid, walksIDs, constraint := v[0], v[1] == "true", v[2] == "true", v[3] == "true", v[4]
		primary = primary || isPrimary
		switch {
		case walksIDs && claims == "":
			claims = name
			if !valid {
				e.problem(about, "index "+name+" is invalid, and claims cannot use it", "REINDEX INDEX "+name)
			}
		case isPrimary: // not on id: somebody needs it
		case constraint != "":
			extra++
			e.warn(about, "constraint "+constraint+" has an index that nothing here uses; each event costs the application a write to it, and each stamp another",
				"ALTER TABLE "+events.Quoted+" DROP CONSTRAINT "+constraint)
		default:
			extra++
			e.warn(about, "index "+name+" is of no use to the relay; each event costs the application a write to it, and each stamp another",
				"DROP INDEX "+name)
		}
	}, events.Quoted)
	switch {
	case !answered:
	case claims == "" && primary:
		e.problem(about, "table "+events.Quoted+" has no index that begins with id, and each claim reads all of it", "CREATE UNIQUE INDEX ON "+events.Quoted+" (id)")
	case claims == "":
		e.problem(about, "table "+events.Quoted+" has no primary key, and each claim reads all of it", "ALTER TABLE "+events.Quoted+" ADD PRIMARY KEY (id)")
	case extra == 0:
		e.fine(about, claims+" is the only index of the buffer")
	}
}

// planNode is a part of what EXPLAIN answers.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Schema   string     `json:"Schema"`
	Index    string     `json:"Index Name"`
	Plans    []planNode `json:"Plans"`
}

// scans are the nodes that read the relation.
func (n *planNode) scans(relation string) []planNode {
	var all []planNode
	if n.Relation == relation && strings.HasSuffix(n.Type, "Scan") {
		all = append(all, *n)
	}
	for i := range n.Plans {
		all = append(all, n.Plans[i].scans(relation)...)
	}
	return all
}

// has tells whether there is a node of a type.
func (n *planNode) has(kind string) bool {
	return n.Type == kind || slices.ContainsFunc(n.Plans, func(m planNode) bool { return m.has(kind) })
}

// plan explains a claim under the settings of a claim.
func (e *examination) plan(ctx context.Context, events catalog.Table) {
	const about = "claim plan"
	t := e.b.table.Load()
	if t == nil { // what is missing was said
		return
	}
	sql, args := claim.Example(&t.Tables, e.b.ClaimMode())
	if t.own != nil {
		sql = t.SQL(claimOwnSQL)
	}
	var answer []byte
	err := e.b.db.Transact(
		ctx,
		pg.ReadTx(e.b.db.StatementTimeout, pg.PlanByPrimaryKey...),
		pg.Step{
			SQL: "EXPLAIN (FORMAT JSON) " + sql, Args: args,
			Row: func(v [][]byte) error { answer = slices.Clone(v[0]); return nil },
		},
	)
	if e.failed(about, err) {
		return
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal(answer, &plans); err != nil || len(plans) == 0 {
		e.failed(about, fmt.Errorf("EXPLAIN answered %.100q: %w", answer, err))
		return
	}
	scans := plans[0].Plan.scans(events.Name)
	if t.own != nil && !t.own.numbered() { // ownUUID says how such a table is read
		return
	}
	for _, scan := range scans {
		if scan.Index == "" || scan.Type == "Bitmap Heap Scan" {
			e.problem(about, fmt.Sprintf("a claim reads table %s by a %s, not by its primary key", events.Quoted, scan.Type),
				"ANALYZE "+events.Quoted+" (and see what is said about indexes)")
			return
		}
	}
	if len(scans) > 0 {
		e.fine(about, "a claim walks "+scans[0].Index)
	}
}
