package postgres

import (
	"cmp"
	"context"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// checkOwn tells what is missing of a table of the user's own, all of it.
func (b *Buffer) checkOwn(ctx context.Context, t ownFacts, missing *findings) error {
	switch {
	case t.table.closed != "":
		missing.closed(t.table.closed, t.table.role)
		return nil
	case !t.table.exists:
		missing.add("table %s, which source.project makes your own, does not exist (or its schema may not be used): make it, or correct source.table", t.table.wanted)
		return nil
	case !t.table.isTable:
		missing.add("%s is no table, and events are claimed and deleted in one: name the table behind it as source.table", t.table.quoted)
		return nil
	}
	before := len(*missing)
	missing.ownKey(t, b.config)
	missing.ownCursor(t, b.config)
	missing.ownGroup(t)
	if err := b.checkOwnRights(ctx, t, missing); err != nil {
		return err
	}
	if len(*missing) > before { // the projection would only say it again
		return nil
	}
	return b.checkProjection(ctx, t, missing)
}

// ownKey looks at the primary key.
func (f *findings) ownKey(t ownFacts, c Config) {
	table, key := t.table.quoted, t.column(c.Own.ID)
	if key.name == "" {
		var names []string
		for _, c := range t.columns {
			names = append(names, c.quoted)
		}
		f.add("table %s has no column %s, which source.id names: name its primary key there, one of %s", table, pg.Quote(c.Own.ID), strings.Join(names, ", "))
		return
	}
	if !key.unique {
		f.add("column %s of table %s, which source.id names, is not unique%s: %s", key.quoted, table, t.table.why(key), t.table.mendUnique(key))
	}
	if !key.notNull {
		f.add("column %s of table %s, which source.id names, may be NULL: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", key.quoted, table, table, key.quoted)
	}
	switch {
	case c.Own.Cursor == "" && !key.isInteger() && key.oid != pg.OIDUUID:
		f.add("column %s of table %s is %s, and an integer that grows or a uuid was expected; name a column that grows as source.cursor: %s", key.quoted, table, key.kind, addCursor(table))
	case c.Own.Cursor == "" && !key.isInteger() && c.Archive != "":
		f.add("column %s of table %s is a uuid, and an archive is kept by integers; leave archive.table out, or name a column that grows as source.cursor: %s", key.quoted, table, addCursor(table))
	}
}

// ownCursor looks at the column that grows beside the primary key.
func (f *findings) ownCursor(t ownFacts, c Config) {
	if c.Own.Cursor == "" {
		return
	}
	table, cursor := t.table.quoted, t.column(c.Own.Cursor)
	switch {
	case cursor.name == "":
		f.add("table %s has no column %s, which source.cursor names: ALTER TABLE %s ADD COLUMN %s bigint GENERATED ALWAYS AS IDENTITY UNIQUE",
			table, pg.Quote(c.Own.Cursor), table, pg.Quote(c.Own.Cursor))
	case !cursor.isInteger():
		f.add("column %s of table %s, which source.cursor names, is %s, and an integer was expected; name another: %s", cursor.quoted, table, cursor.kind, addCursor(table))
	case !cursor.unique:
		f.add("column %s of table %s, which source.cursor names, is not unique%s: %s", cursor.quoted, table, t.table.why(cursor), t.table.mendUnique(cursor))
	case !cursor.notNull:
		f.add("column %s of table %s, which source.cursor names, may be NULL: ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", cursor.quoted, table, table, cursor.quoted)
	}
}

// why says why PostgreSQL does not keep a column's values apart in a partitioned table: an
// index is one a partition, and knows of no other.
func (f *tableFacts) why(c ownColumn) string {
	if f.uniqueable(c) {
		return ""
	}
	return ", and cannot be in a table that is partitioned by " + f.partitioned
}

// mendUnique is what makes a column unique.
func (f *tableFacts) mendUnique(c ownColumn) string {
	if f.uniqueable(c) {
		return "ALTER TABLE " + f.quoted + " ADD UNIQUE (" + c.quoted + ")"
	}
	return "have the events in a table that is not partitioned, or partitioned by " + c.quoted + " alone, and name that as source.table"
}

func (f *tableFacts) uniqueable(c ownColumn) bool {
	return f.partitioned == "" || strings.HasSuffix(f.partitioned, " ("+c.quoted+")")
}

// addCursor is the statement that makes a column to name as source.cursor.
func addCursor(table string) string {
	return "ALTER TABLE " + table + " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
}

// ownGroup looks at the one column that is the relay's.
func (f *findings) ownGroup(t ownFacts) {
	table := t.table.quoted
	switch group := t.column("group_id"); {
	case group.name == "":
		f.add("table %s has no column group_id, in which claims are stamped: ALTER TABLE %s ADD COLUMN group_id uuid", table, table)
	case group.generated:
		f.add("column group_id of table %s is computed, and claims write to it: ALTER TABLE %s ALTER COLUMN group_id DROP EXPRESSION", table, table)
	case group.oid != pg.OIDUUID:
		f.add("column group_id of table %s is %s, and uuid was expected: ALTER TABLE %s ALTER COLUMN group_id TYPE uuid USING NULL", table, group.kind, table)
	case group.notNull:
		f.add("column group_id of table %s may not be NULL, as it is of an event that is not claimed: ALTER TABLE %s ALTER COLUMN group_id DROP NOT NULL", table, table)
	}
}

// What a role may do with the table column by column, with the sequence that hands its
// integers out, and with the one that makes numbers where it has none. Whoever may not
// use a schema may use nothing in it.
const ownRightsSQL = `
SELECT coalesce((SELECT has_column_privilege(attrelid, attnum, 'UPDATE') FROM pg_attribute
                 WHERE attrelid = $1::regclass AND attname = 'group_id' AND NOT attisdropped), true),
       coalesce(has_sequence_privilege(to_regclass($2), 'SELECT, USAGE'), true),
       to_regclass($3) IS NOT NULL, coalesce(has_sequence_privilege(to_regclass($3), 'USAGE'), false)`

// checkOwnRights looks at what a role needs to run. Who may not INSERT cannot replay, and
// sends all the same: Diagnose tells.
func (b *Buffer) checkOwnRights(ctx context.Context, t ownFacts, missing *findings) error {
	ledger := b.config.Schema
	if ledger == "" {
		ledger = t.table.schema
	}
	own := t.own(b.config.Own)
	closed, role, err := b.closed(ctx, ledger)
	if err != nil {
		return err
	}
	numbers, sequence := pg.Ident(ledger, "outbox_numbers"), own.number.sequence
	var stamps, looks, thereAre, draws bool
	asked := numbers
	if closed != "" {
		missing.closed(closed, role)
		asked = pg.Null
	}
	err = b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL: ownRightsSQL, Args: []string{t.table.quoted, cmp.Or(sequence, pg.Null), asked},
		Row: func(v [][]byte) error {
			stamps, looks, thereAre, draws = pg.ReadBool(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2]), pg.ReadBool(v[3])
			return nil
		},
	}})
	if err != nil {
		return err
	}
	table := t.table.quoted
	role = pg.Quote(t.table.role)
	var grants []string
	for _, g := range []struct {
		may  bool
		name string
	}{{t.table.selects, "SELECT"}, {stamps, "UPDATE (group_id)"}, {t.table.deletes, "DELETE"}} {
		if !g.may {
			grants = append(grants, g.name)
		}
	}
	if len(grants) > 0 {
		list := strings.Join(grants, ", ")
		missing.add("role %s may not %s on table %s: GRANT %s ON %s TO %s", t.table.role, list, table, list, table, role)
	}
	if !looks {
		missing.add("role %s may not see the last value of sequence %s: GRANT SELECT ON SEQUENCE %s TO %s", t.table.role, sequence, sequence, role)
	}
	switch {
	case own.numbered() || own.key.name == "" || closed != "":
	case !thereAre:
		missing.add("sequence %s does not exist: relay migrate -c relay.yaml", numbers)
	case !draws:
		missing.add("role %s may not use sequence %s: GRANT USAGE ON SEQUENCE %s TO %s", t.table.role, numbers, numbers, role)
	}
	return nil
}
