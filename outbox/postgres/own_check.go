package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// checkOwn tells what is missing of a table of the user's own, all of it.
func (b *Buffer) checkOwn(ctx context.Context, t ownFacts, missing *catalog.Findings) error {
	switch {
	case t.table.ForbiddenSchema != "":
		missing.AddForbidden(t.table.ForbiddenSchema, t.table.Role)
		return nil
	case !t.table.Exists:
		missing.Add(fmt.Sprintf("table %s, which source.project makes your own, does not exist ", t.table.Wanted),
			"make it, or correct source.table")
		return nil
	case !t.table.IsTable:
		missing.Add(fmt.Sprintf("%s is no table, and events are claimed and deleted in one", t.table.Quoted),
			"name the table behind it as source.table")
		return nil
	}
	before := len(*missing)
	checkOwnKey(missing, t, b.config)
	checkOwnCursor(missing, t, b.config)
	checkOwnGroup(missing, t)
	if err := b.checkOwnRights(ctx, t, missing); err != nil {
		return err
	}
	if len(*missing) > before { // the projection would only say it again
		return nil
	}
	return b.checkProjection(ctx, t, missing)
}

// ownKey looks at the primary key.
func checkOwnKey(f *catalog.Findings, t ownFacts, c Config) {
	table, key := t.table.Quoted, t.column(c.Own.ID)
	if key.name == "" {
		var names []string
		for _, c := range t.columns {
			names = append(names, c.quoted)
		}
		f.Add(fmt.Sprintf("table %s has no column %s, which source.id names", table, pg.Quote(c.Own.ID)),
			fmt.Sprintf("name its primary key there, one of %s", strings.Join(names, ", ")))
		return
	}
	if !key.unique {
		f.Add(fmt.Sprintf("column %s of table %s, which source.id names, is not unique%s", key.quoted, table, why(&t.table, key)),
			mendUnique(&t.table, key))
	}
	if !key.notNull {
		f.Add(fmt.Sprintf("column %s of table %s, which source.id names, may be NULL", key.quoted, table),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", table, key.quoted))
	}
	switch {
	case c.Own.Cursor == "" && !key.isInteger() && key.oid != pg.OIDUUID:
		f.Add(fmt.Sprintf("column %s of table %s is %s, and an integer that grows or a uuid was expected; name a column that grows as source.cursor", key.quoted, table, key.kind),
			addCursor(table))
	case c.Own.Cursor == "" && !key.isInteger() && c.Archive != "":
		f.Add(fmt.Sprintf("column %s of table %s is a uuid, and an archive is kept by integers; leave archive.table out, or name a column that grows as source.cursor", key.quoted, table),
			addCursor(table))
	}
}

// ownCursor looks at the column that grows beside the primary key.
func checkOwnCursor(f *catalog.Findings, t ownFacts, c Config) {
	if c.Own.Cursor == "" {
		return
	}
	table, cursor := t.table.Quoted, t.column(c.Own.Cursor)
	switch {
	case cursor.name == "":
		f.Add(fmt.Sprintf("table %s has no column %s, which source.cursor names", table, pg.Quote(c.Own.Cursor)),
			fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s bigint GENERATED ALWAYS AS IDENTITY UNIQUE", table, pg.Quote(c.Own.Cursor)))
	case !cursor.isInteger():
		f.Add(fmt.Sprintf("column %s of table %s, which source.cursor names, is %s, and an integer was expected; name another", cursor.quoted, table, cursor.kind),
			addCursor(table))
	case !cursor.unique:
		f.Add(fmt.Sprintf("column %s of table %s, which source.cursor names, is not unique%s", cursor.quoted, table, why(&t.table, cursor)),
			mendUnique(&t.table, cursor))
	case !cursor.notNull:
		f.Add(fmt.Sprintf("column %s of table %s, which source.cursor names, may be NULL", cursor.quoted, table),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", table, cursor.quoted))
	}
}

// why says why PostgreSQL does not keep a column's values apart in a partitioned table: an
// index is one a partition, and knows of no other.
func why(f *catalog.Table, c ownColumn) string {
	if uniqueable(f, c) {
		return ""
	}
	return ", and cannot be in a table that is partitioned by " + f.PartitionKey
}

// mendUnique is what makes a column unique.
func mendUnique(f *catalog.Table, c ownColumn) string {
	if uniqueable(f, c) {
		return "ALTER TABLE " + f.Quoted + " ADD UNIQUE (" + c.quoted + ")"
	}
	return "have the events in a table that is not partitioned, or partitioned by " + c.quoted + " alone, and name that as source.table"
}

func uniqueable(f *catalog.Table, c ownColumn) bool {
	return f.PartitionKey == "" || strings.HasSuffix(f.PartitionKey, " ("+c.quoted+")")
}

// addCursor is the statement that makes a column to name as source.cursor.
func addCursor(table string) string {
	return "ALTER TABLE " + table + " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
}

// ownGroup looks at the one column that is the relay's.
func checkOwnGroup(f *catalog.Findings, t ownFacts) {
	table := t.table.Quoted
	switch group := t.column("group_id"); {
	case group.name == "":
		f.Add(fmt.Sprintf("table %s has no column group_id, in which claims are stamped", table),
			fmt.Sprintf("ALTER TABLE %s ADD COLUMN group_id uuid", table))
	case group.generated:
		f.Add(fmt.Sprintf("column group_id of table %s is computed, and claims write to it", table),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN group_id DROP EXPRESSION", table))
	case group.oid != pg.OIDUUID:
		f.Add(fmt.Sprintf("column group_id of table %s is %s, and uuid was expected", table, group.kind),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN group_id TYPE uuid USING NULL", table))
	case group.notNull:
		f.Add(fmt.Sprintf("column group_id of table %s may not be NULL, as it is of an event that is not claimed", table),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN group_id DROP NOT NULL", table))
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
func (b *Buffer) checkOwnRights(ctx context.Context, t ownFacts, missing *catalog.Findings) error {
	ledger := b.config.Schema
	if ledger == "" {
		ledger = t.table.Schema
	}
	own := t.own(b.config.Own)
	closed, role, err := catalog.ForbiddenSchema(ctx, b.db, ledger)
	if err != nil {
		return err
	}
	numbers, sequence := pg.Ident(ledger, "outbox_numbers"), own.number.sequence
	var stamps, looks, thereAre, draws bool
	asked := numbers
	if closed != "" {
		missing.AddForbidden(closed, role)
		asked = pg.Null
	}
	err = b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL: ownRightsSQL, Args: []string{t.table.Quoted, cmp.Or(sequence, pg.Null), asked},
		Row: func(v [][]byte) error {
			stamps, looks, thereAre, draws = pg.ReadBool(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2]), pg.ReadBool(v[3])
			return nil
		},
	}})
	if err != nil {
		return err
	}
	table := t.table.Quoted
	role = pg.Quote(t.table.Role)
	var grants []string
	for _, g := range []struct {
		may  bool
		name string
	}{{t.table.CanSelect, "SELECT"}, {stamps, "UPDATE (group_id)"}, {t.table.CanDelete, "DELETE"}} {
		if !g.may {
			grants = append(grants, g.name)
		}
	}
	if len(grants) > 0 {
		list := strings.Join(grants, ", ")
		missing.Add(fmt.Sprintf("role %s may not %s on table %s", t.table.Role, list, table),
			fmt.Sprintf("GRANT %s ON %s TO %s", list, table, role))
	}
	if !looks {
		missing.Add(fmt.Sprintf("role %s may not see the last value of sequence %s", t.table.Role, sequence),
			fmt.Sprintf("GRANT SELECT ON SEQUENCE %s TO %s", sequence, role))
	}
	switch {
	case own.numbered() || own.key.name == "" || closed != "":
	case !thereAre:
		missing.Add(fmt.Sprintf("sequence %s does not exist", numbers),
			"relay migrate -c relay.yaml")
	case !draws:
		missing.Add(fmt.Sprintf("role %s may not use sequence %s", t.table.Role, numbers),
			fmt.Sprintf("GRANT USAGE ON SEQUENCE %s TO %s", numbers, role))
	}
	return nil
}
