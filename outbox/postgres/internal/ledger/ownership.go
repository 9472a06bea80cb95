package ledger

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The first pipeline that claims owns the buffer.
const (
	ownSQL = `
UPDATE outbox_buffers SET pipeline = $2, owned_since = clock_timestamp() WHERE buffer = $1 AND pipeline IS NULL`

	ownerSQL = `
SELECT coalesce(pipeline, ''), coalesce(owned_since, 'epoch') FROM outbox_buffers WHERE buffer = $1`

	// OtherLedgersSQL returns the ledgers of other schemas than that of table $1, of which each would send the events of buffer $2. Reading a table may run functions of
	// its owner (row security, rules), so only those are read whose owner is this role, the owner of the events, or a superuser.
	OtherLedgersSQL = `
SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
WHERE c.relname = 'outbox' || '_buffers' AND c.relkind = 'r' AND NOT c.relrowsecurity AND NOT c.relhasrules
  AND c.oid IS DISTINCT FROM pg_catalog.to_regclass($1)
  AND (r.rolsuper OR c.relowner = (SELECT relowner FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass($2)) OR pg_catalog.pg_has_role(c.relowner, 'USAGE'))
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
  AND EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attname = 'owned_since')`
)

// Own makes the pipeline the buffer's owner if it has none. The error is an *ownership.Error if another pipeline owns it; counts look
// again whether that is still so.
func (b *Base) Own(ctx context.Context, t *Tables) error {
	if b.Ownership.Elsewhere() {
		if err := b.LookElsewhere(ctx, t); err != nil {
			return err
		}
	}
	mine, err := b.Ownership.Known()
	if mine || err != nil {
		return err
	}
	var (
		owner string
		since time.Time
	)
	err = b.DB.Transact(ctx, b.DB.WriteTx(b.DB.StatementTimeout, "synchronous_commit", "on"),
		pg.Step{SQL: t.SQL(ownSQL), Args: []string{t.Buffer, b.Pipeline}},
		pg.Step{SQL: t.SQL(ownerSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
			owner, since = string(v[0]), pg.ReadTime(v[1])
			return nil
		}})
	if err != nil {
		return b.Explain(ctx, "reading the buffer's owner", err)
	}
	b.Ownership.Saw(t.Buffer, owner, b.Pipeline, since)
	// Another ledger may have got its owner at the same time; then both refuse.
	if err := b.LookElsewhere(ctx, t); err != nil {
		return err
	}
	_, conflict := b.Ownership.Known()
	return conflict
}

// LookElsewhere looks for another ledger in this database in which a pipeline owns the buffer. Claims and counts return the conflict.
func (b *Base) LookElsewhere(ctx context.Context, t *Tables) error {
	var conflict *ownership.Error
	err := b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{SQL: OtherLedgerSQL, Args: []string{t.Events, t.Schema}, Row: func(v [][]byte) error {
		conflict = b.MovedTo(t, string(v[0]))
		return nil
	}})
	if err != nil {
		return b.Explain(ctx, "looking for other ledgers", err)
	}
	if conflict != nil {
		b.Ownership.SawElsewhere(conflict)
		return nil
	}
	err = b.otherOwners(ctx, t, t.Events, t.Buffer, func(ledger, owner string, since time.Time) {
		conflict = &ownership.Error{Buffer: t.Buffer, Owner: owner, Pipeline: b.Pipeline, Since: since, Ledger: ledger}
	})
	if err != nil {
		return b.Explain(ctx, "looking for other ledgers", err)
	}
	b.Ownership.SawElsewhere(conflict)
	return nil
}

// otherOwners calls found for each ledger of another schema in which a pipeline owns a table, "schema.table". events is its quoted name.
func (b *Base) otherOwners(ctx context.Context, t *Tables, events, table string, found func(ledger, owner string, since time.Time)) error {
	var ledgers []string
	read := func(sql string, row func([][]byte) error, args ...string) error {
		return b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{SQL: sql, Args: args, Row: row})
	}
	err := read(OtherLedgersSQL, func(v [][]byte) error {
		ledgers = append(ledgers, string(v[0]))
		return nil
	}, t.SQL("outbox_buffers"), events)
	for _, name := range ledgers {
		if err != nil {
			break
		}
		err = read("SELECT pipeline, owned_since FROM "+name+" WHERE buffer = $1 AND pipeline IS NOT NULL", func(v [][]byte) error {
			found(name, string(v[0]), pg.ReadTime(v[1]))
			return nil
		}, table)
	}
	return err
}

// Other tables whose buffers the pipeline owns and no relay that runs sends from. Reading a table may run functions of its owner (row security, rules). In one of exactly
// the relay's own columns every row is an event; what rows of another one are, its configuration says, and that is not known any more.
const alsoOwnsSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN outbox_buffers b ON b.buffer = n.nspname || '.' || c.relname
WHERE b.pipeline = $1 AND b.buffer <> $2 AND c.relkind IN ('r', 'p') AND NOT c.relrowsecurity AND NOT c.relhasrules
  AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
  AND NOT EXISTS (SELECT FROM outbox_relays r WHERE r.buffer = b.buffer AND NOT r.stopped AND r.seen_at > clock_timestamp() - $3::interval) LIMIT 10`

// maxLeft bounds how many rows of a table are counted.
const maxLeft = 1000

// Left is another table that the pipeline owns and that has rows: the pipeline was configured for it before, and source.table has another
// name since, perhaps by mistake.
type Left struct {
	// Table is the quoted name.
	Table string
	// Rows are at most maxLeft.
	Rows int64
	// Events reports whether each row is an event. Otherwise it is a custom table, some of whose rows may not be events.
	Events bool
}

// AlsoOwns returns other tables that the pipeline owns in which rows are left, and from which no relay that runs sends.
func (b *Base) AlsoOwns(ctx context.Context, t *Tables) (left []Left, err error) {
	const doing = "looking for other tables of the pipeline"
	var tables []Left
	begin := pg.ReadTx(b.DB.StatementTimeout)
	begin.Row = func([][]byte) error {
		tables = nil
		return nil
	}
	err = b.DB.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(alsoOwnsSQL), Args: []string{b.Pipeline, t.Buffer, pg.Interval(buffer.SilentAfter)}, Row: func(v [][]byte) error {
			var columns []string
			pg.ReadArray(v[1], func(c []byte) { columns = append(columns, string(c)) })
			tables = append(tables, Left{Table: string(v[0]), Events: buffer.IsEventTable(columns)})
			return nil
		},
	})
	if err != nil {
		return nil, b.Explain(ctx, doing, err)
	}
	for _, table := range tables {
		err := b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{
			SQL: "SELECT count(*) FROM (SELECT FROM " + table.Table + " LIMIT " + pg.Int(maxLeft) + ") r",
			Row: func(v [][]byte) error { table.Rows = pg.ReadInt8(v[0]); return nil },
		})
		if err != nil {
			return nil, b.Explain(ctx, doing, err)
		}
		if table.Rows > 0 {
			left = append(left, table)
		}
	}
	return left, nil
}

// FindLeft returns a finding about each table of AlsoOwns: an error if nobody sends its events, a warning if its rows may not be events.
func (b *Base) FindLeft(ctx context.Context, t *Tables) (found []buffer.Finding, err error) {
	left, err := b.AlsoOwns(ctx, t)
	for _, table := range left {
		n, level := pg.Int(table.Rows), buffer.LevelWarning
		if table.Rows == maxLeft {
			n += " or more"
		}
		if table.Events {
			level = buffer.LevelError
		}
		found = append(found, buffer.Finding{
			Level: level, Subject: "owner",
			Text: "pipeline " + b.Pipeline + " also owns table " + table.Table + ", which has events (" + n + ") that this configuration does not send: it names " + t.Events +
				", and no relay runs that sends from the other",
			Fix: "correct source.table; if it was changed on purpose, run the relay with the old source.table, too, until that table is empty",
		})
	}
	return found, err
}

// Other tables with all columns of the buffer that no pipeline owns, such as the buffer itself before another table got its name. Archives and partitions
// are none. A table that is locked would keep a reader waiting.
const replacedSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.columns, position(me.relname IN c.relname) > 0, n.nspname || '.' || c.relname
FROM pg_class me, LATERAL (
  SELECT o.*, ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
  FROM pg_class o WHERE o.relkind IN ('r', 'p') AND NOT o.relispartition AND o.relpersistence <> 't' AND NOT o.relrowsecurity AND NOT o.relhasrules
) c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE me.oid = $1::regclass AND c.oid <> me.oid AND NOT 'archived_at' = ANY (c.columns) AND 'group_id' = ANY (c.columns)
  AND c.columns @> ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = me.oid AND a.attnum > 0 AND NOT a.attisdropped)
  AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
  AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid AND i.inhparent = me.oid)
  AND NOT EXISTS (SELECT FROM outbox_buffers b WHERE b.buffer = n.nspname || '.' || c.relname AND b.pipeline IS NOT NULL)
  AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.relation = c.oid AND l.mode = 'AccessExclusiveLock'
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
ORDER BY 3 DESC, 1 LIMIT 10`

// FindReplaced returns a finding about each table that may have been the buffer before another table got its name: rows in it have a group_id. Of a table of
// the relay's own, whose claims may write none, the name says it, too.
func (b *Base) FindReplaced(ctx context.Context, t *Tables) (found []buffer.Finding, err error) {
	const doing = "looking for a table that had the buffer's name"
	type candidate struct {
		table, name string
		own         bool
	}
	var like []candidate
	begin := pg.ReadTx(b.DB.StatementTimeout)
	begin.Row = func([][]byte) error {
		like = nil
		return nil
	}
	err = b.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(replacedSQL), Args: []string{t.Events}, Row: func(v [][]byte) error {
		var columns []string
		pg.ReadArray(v[1], func(c []byte) { columns = append(columns, string(c)) })
		like = append(like, candidate{string(v[0]), string(v[3]), pg.ReadBool(v[2]) && buffer.IsEventTable(columns)})
		return nil
	}})
	if err != nil {
		return nil, b.Explain(ctx, doing, err)
	}
	for _, c := range like {
		var stamped, looked int64
		ours := true
		err := b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{SQL: OtherLedgerSQL, Args: []string{c.table, t.Schema}, Row: func([][]byte) error {
			ours = false
			return nil
		}})
		if err == nil && ours {
			err = b.otherOwners(ctx, t, c.table, c.name, func(string, string, time.Time) { ours = false })
		}
		if err != nil {
			return nil, b.Explain(ctx, doing, err)
		}
		if !ours { // each pipeline may have its tables in a schema of its own
			continue
		}
		err = b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{
			SQL: "SELECT count(group_id), count(*) FROM (SELECT group_id FROM " + c.table + " LIMIT " + pg.Int(ownership.Looked) + ") r",
			Row: func(v [][]byte) error { stamped, looked = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]); return nil },
		})
		if err != nil {
			return nil, b.Explain(ctx, doing, err)
		}
		if stamped > 0 || c.own && looked > 0 {
			found = append(found, ownership.Replaced(c.table, t.Events, looked, stamped))
		}
	}
	return found, nil
}

// MovedTo is the conflict of a buffer whose trigger names the ledger of another schema; see OtherLedgerSQL.
func (b *Base) MovedTo(t *Tables, schema string) *ownership.Error {
	return &ownership.Error{Buffer: t.Buffer, Pipeline: b.Pipeline, Ledger: pg.Ident(schema, "outbox_buffers"), Events: t.Events}
}
