package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// refuseForeign returns a buffer.ErrNotReady if another role made an object that Migrate would take for the relay's:
// IF NOT EXISTS keeps a table with its triggers, and OR REPLACE a function's owner.
func refuseForeign(ctx context.Context, tx pgx.Tx, c Config) error {
	var foreign catalog.Findings
	if err := foreign.AddForeignTx(ctx, tx, c.objects()); err != nil {
		return err
	}
	return foreign.Err()
}

// objects are those that Migrate makes.
func (c Config) objects() catalog.Objects {
	o := LedgerObjects(c.ledgerSchema())
	o.Relations = append(o.Relations, c.versionTable())
	o.Guarded = append(o.Guarded, c.versionTable())
	if !c.Custom {
		o.Relations = append(o.Relations, c.events())
	}
	if c.Archive != "" {
		archive := pg.Ident(archiveName(c.Archive, c.ledgerSchema()))
		o.Relations, o.Guarded = append(o.Relations, archive), append(o.Guarded, archive)
		maintain, _ := ArchiveMaintain(archiveName(c.Archive, c.ledgerSchema()))
		o.Functions = append(o.Functions, maintain)
	}
	return o
}

// LedgerObjects are the relay's own tables, sequence and functions in a schema.
func LedgerObjects(schema string) catalog.Objects {
	var o catalog.Objects
	for _, name := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_rates", "outbox_sinks", "outbox_relays", "outbox_numbers"} {
		o.Relations = append(o.Relations, pg.Ident(schema, name))
	}
	o.Guarded = append(o.Guarded, o.Relations...)
	o.Functions = []string{pg.Ident(schema, "outbox_truncated"), pg.Ident(schema, listen.TriggerName)}
	return o
}

const columnsSQL = `
SELECT coalesce(to_regclass($1)::text, ''), ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped)`

// refuseNotEvents returns a buffer.ErrNotReady if a table exists that is to be the relay's own and lacks columns of it: the application owns it,
// and IF NOT EXISTS would keep it and give it the relay's triggers.
func refuseNotEvents(ctx context.Context, tx pgx.Tx, c Config) (exists bool, err error) {
	var (
		name    string
		columns []string
	)
	if err := tx.QueryRow(ctx, columnsSQL, c.events()).Scan(&name, &columns); err != nil || name == "" || c.Custom {
		return name != "", err
	}
	lacks := buffer.LacksEventColumns(columns)
	if lacks == nil {
		return true, nil
	}
	_, table := c.eventsName()
	t := notready.Table{Quoted: name, Name: table, Columns: columns, Lacks: lacks}
	f := t.Finding()
	if !buffer.CannotBeEvents(columns) && t.More() == nil {
		f.Fix += "; if a relay has sent from it, relay doctor names the statements that add them"
	}
	f.Fix += ". No table was changed"
	return true, catalog.Findings{f}.Err()
}

// refuseOther returns a buffer.ErrNotReady if the buffer belongs to the ledger of another schema: its trigger names that one, or a
// pipeline owns the buffer there.
func refuseOther(ctx context.Context, tx pgx.Tx, c Config) error {
	var (
		other   string
		missing catalog.Findings
	)
	schema, table := c.eventsName()
	name := schema + "." + table
	free := func(ledger string) string {
		return "UPDATE " + ledger + " SET pipeline = NULL WHERE buffer = " + pg.Literal(name)
	}
	const move = "; or, to move the ledger, stop the relays that use that one when relay status shows no batches, and run: "
	err := tx.QueryRow(ctx, ledger.OtherLedgerSQL, c.events(), c.ledgerSchema()).Scan(&other)
	switch {
	case err == nil:
		missing.Add(fmt.Sprintf("table %s belongs to the ledger in schema %s, which its trigger outbox_truncated names; two ledgers would each send all of its events", c.events(), pg.Quote(other)),
			"set source.schema: "+other+move+free(pg.Ident(other, "outbox_buffers"))+"; DROP TRIGGER outbox_truncated ON "+c.events())
		return missing.Err()
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	rows, err := tx.Query(ctx, ledger.OtherLedgersSQL, c.ledger("outbox_buffers"), c.events())
	if err != nil {
		return err
	}
	ledgers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, ledger := range ledgers {
		var owner string
		err := tx.QueryRow(ctx, "SELECT pipeline FROM "+ledger+" WHERE buffer = $1 AND pipeline IS NOT NULL", name).Scan(&owner)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		missing.Add(fmt.Sprintf("pipeline %s owns table %s in another ledger, that of %s; two ledgers would each send all of its events", owner, name, ledger),
			"set source.schema: "+strings.TrimSuffix(ledger, ".outbox_buffers")+", and source.project as pipeline "+owner+" has it"+move+free(ledger))
	}
	return missing.Err()
}

// renamedSQL returns the table that had the name of the buffer when a pipeline claimed from it last, and the pipeline: numbering begins with its oid.
const renamedSQL = `
SELECT b.pipeline, quote_ident(n.nspname) || '.' || quote_ident(c.relname), n.nspname || '.' || c.relname, n.nspname = $2
FROM %s b JOIN pg_class c ON c.oid = split_part(b.numbering, '/', 1)::oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE b.buffer = $1 AND b.pipeline IS NOT NULL AND b.numbering ~ '^[0-9]+/' AND c.relkind IN ('r', 'p') AND NOT c.relrowsecurity AND NOT c.relhasrules
  AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'group_id' AND NOT a.attisdropped)
  AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')`

// refuseRenamed returns a buffer.ErrNotReady if the buffer, which does not exist, was renamed and has events: nobody would send them, and an empty table in its place looks as if all were sent.
func refuseRenamed(ctx context.Context, tx pgx.Tx, c Config) error {
	var (
		known, sameSchema     bool
		pipeline, now, source string
		waits                 bool
	)
	schema, table := c.eventsName()
	buffers := c.ledger("outbox_buffers")
	if err := tx.QueryRow(ctx, "SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname IN ('pipeline', 'numbering') AND NOT attisdropped", buffers).Scan(&known); err != nil || !known {
		return err
	}
	err := tx.QueryRow(ctx, fmt.Sprintf(renamedSQL, buffers), schema+"."+table, schema).Scan(&pipeline, &now, &source, &sameSchema)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+now+")").Scan(&waits); err != nil || !waits {
		return err
	}
	back := "ALTER TABLE " + now + " RENAME TO " + pg.Quote(table)
	if !sameSchema {
		back = "ALTER TABLE " + now + " SET SCHEMA " + pg.Quote(schema)
	}
	lost := notready.Lost{Table: pg.Ident(schema, table), Pipeline: pipeline, Renamed: true, Now: notready.Found{Quoted: now, Source: source, Back: back}}
	f := lost.Finding(false)
	f.Text += ", and has rows that nobody would send"
	f.Fix += "; if they must not be sent, for an empty table: CREATE TABLE " + pg.Ident(schema, table) + " (LIKE " + now + " INCLUDING ALL), then relay migrate. No table was changed"
	return catalog.Findings{f}.Err()
}
