package custom

import (
	"cmp"
	"context"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Config is what a custom table is checked for.
type Config struct {
	buffer.CustomTable
	// Schema is where the relay's own tables are; the custom table's if empty.
	Schema string
	// Gone is the finding about the custom table if it does not exist.
	Gone *buffer.Finding
	// Archive reports whether delivered events are archived.
	Archive bool
}

// Check adds all that the table lacks, and completes the facts by what the projection returns.
func Check(ctx context.Context, db *pg.DB, facts *Facts, c Config, missing *catalog.Findings) (err error) {
	t := *facts
	switch {
	case t.Table.ForbiddenSchema != "":
		missing.AddForbidden(t.Table.ForbiddenSchema, t.Table.Role)
		return nil
	case !t.Table.Exists:
		*missing = append(*missing, *c.Gone)
		return nil
	case !t.Table.IsTable:
		missing.Add(t.Table.Quoted+" is not a table; events are claimed and deleted in one", "name the table behind it as source.table")
		return nil
	}
	before := len(*missing)
	checkKey(missing, t, c)
	checkCursor(missing, t, c)
	checkGroup(missing, t)
	checkCreated(missing, t, c)
	if err := checkAvailable(ctx, db, missing, t, c); err != nil {
		return err
	}
	if err := checkPrivileges(ctx, db, t, c, missing); err != nil {
		return err
	}
	if len(*missing) > before { // the projection would fail for the same reason
		return nil
	}
	for _, check := range []func(context.Context, *pg.DB, Facts, Config, *catalog.Findings) error{checkWhere, checkMark} {
		if err := check(ctx, db, t, c, missing); err != nil || len(*missing) > before { // without the condition nothing can be read, either
			return err
		}
	}
	var wrong catalog.Findings
	facts.Returned, err = checkProjection(ctx, db, t, c, &wrong)
	for _, f := range wrong {
		f.Subject = notready.Projection
		*missing = append(*missing, f)
	}
	return err
}

// addMissing adds that a column which a setting names does not exist. create is the statement that adds it, "" if none does; fix says what to do without it.
// With a column of a similar name create comes second: a new column of delays would send all delayed events at once.
func addMissing(f *catalog.Findings, t Facts, name, setting, fix, create string) {
	names := make([]string, len(t.Columns))
	for i := range t.Columns {
		names[i] = t.Columns[i].Name
	}
	text := "table " + t.Table.Quoted + " has no column " + pg.Quote(name) + ", which " + setting + " names"
	switch near := buffer.Nearest(name, names, max(1, len(name)/3)); {
	case near != "" && create != "":
		fix = "correct " + setting + ", or, to create it: " + create
		fallthrough
	case near != "":
		text += " (did you mean " + near + "?)"
	case create != "":
		fix = create
	}
	f.Add(text, fix)
}

// checkKey checks the primary key.
func checkKey(f *catalog.Findings, t Facts, c Config) {
	table, key := t.Table.Quoted, t.Column(c.ID)
	if key.Name == "" {
		var names []string
		for _, c := range t.Columns {
			names = append(names, c.Quoted)
		}
		addMissing(f, t, c.ID, "source.id", "name its primary key there, one of "+strings.Join(names, ", "), "")
		return
	}
	checkUnique(f, t.Table, key, "source.id")
	switch column := "column " + key.Quoted + " of table " + table; {
	case c.Cursor != "" || key.IsInteger():
	case key.OID != pg.OIDUUID:
		f.Add(column+" is "+key.Type+"; expected an integer that grows or a uuid (or name a column that grows as source.cursor)", AddCursor(table))
	case c.Archive:
		f.Add(column+" is a uuid, but an archive needs integers; remove archive.table, or name a column that grows as source.cursor", AddCursor(table))
	}
}

// checkCursor checks the column that grows, if the primary key does not.
func checkCursor(f *catalog.Findings, t Facts, c Config) {
	table, cursor := t.Table.Quoted, t.Column(c.Cursor)
	switch {
	case c.Cursor == "":
	case cursor.Name == "":
		addMissing(f, t, c.Cursor, "source.cursor", "", "ALTER TABLE "+table+" ADD COLUMN "+pg.Quote(c.Cursor)+" bigint GENERATED ALWAYS AS IDENTITY UNIQUE")
	case !cursor.IsInteger():
		f.Add("column "+cursor.Quoted+" of table "+table+", which source.cursor names, is "+cursor.Type+"; expected an integer; name another", AddCursor(table))
	default:
		checkUnique(f, t.Table, cursor, "source.cursor")
	}
}

// checkCreated checks the column that ages are measured by.
func checkCreated(f *catalog.Findings, t Facts, c Config) {
	table, created := t.Table.Quoted, t.Column(c.CreatedAt)
	switch {
	case c.CreatedAt == "":
	case created.Name == "":
		addMissing(f, t, c.CreatedAt, "source.created_at", "name the column that says when a row was inserted", "")
	case created.OID != pg.OIDTimestamptz && created.OID != pg.OIDTimestamp:
		f.Add("column "+created.Quoted+" of table "+table+", which source.created_at names, is "+created.Type+"; expected timestamptz", "name another column, or none")
	}
}

// checkAvailable checks the column that delays events.
func checkAvailable(ctx context.Context, db *pg.DB, f *catalog.Findings, t Facts, c Config) error {
	table, available := t.Table.Quoted, t.Column(c.AvailableAt)
	switch {
	case c.AvailableAt == "":
		return nil
	case available.Name == "":
		addMissing(f, t, c.AvailableAt, "source.available_at", "", "ALTER TABLE "+table+" ADD COLUMN "+pg.Quote(c.AvailableAt)+" timestamptz")
		return nil
	case available.OID == pg.OIDTimestamp:
		zone, err := ZoneOf(ctx, db, table, c.AvailableAt)
		f.Add("column "+available.Quoted+" of table "+table+", which source.available_at names, has no time zone; expected timestamptz", zone.Alter(table, available.Quoted))
		return err
	case available.OID != pg.OIDTimestamptz:
		f.Add("column "+available.Quoted+" of table "+table+", which source.available_at names, is "+available.Type+"; expected timestamptz",
			"name another column, or the condition as source.where")
		return nil
	case c.Cursor == "" && !t.Column(c.ID).IsInteger():
		f.Add("table "+table+" has no integer that grows, without which source.available_at would make each claim read all delayed events; name one as source.cursor", AddCursor(table))
	}
	return f.AddDelayedIndex(ctx, db, t.Table, c.AvailableAt)
}

// checkUnique adds what keeps the column that a setting names from naming each row. An index of a partitioned table is one
// index for each partition, and so not unique in the table.
func checkUnique(f *catalog.Findings, t catalog.Table, c Column, setting string) {
	column := "column " + c.Quoted + " of table " + t.Quoted + ", which " + setting + " names,"
	switch {
	case c.Unique:
	case t.PartitionKey == "" || strings.HasSuffix(t.PartitionKey, " ("+c.Quoted+")"):
		f.Add(column+" is not unique", "ALTER TABLE "+t.Quoted+" ADD UNIQUE ("+c.Quoted+")")
	default:
		f.Add(column+" is not unique, and cannot be in a table that is partitioned by "+t.PartitionKey,
			"use a table that is not partitioned, or partitioned by "+c.Quoted+" alone, as source.table")
	}
	if !c.NotNull {
		f.Add(column+" may be NULL", "ALTER TABLE "+t.Quoted+" ALTER COLUMN "+c.Quoted+" SET NOT NULL")
	}
}

// AddCursor returns the statement that makes a column for source.cursor.
func AddCursor(table string) string {
	return "ALTER TABLE " + table + " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
}

// checkGroup checks the one column that is the relay's.
func checkGroup(f *catalog.Findings, t Facts) {
	table := t.Table.Quoted
	column, alter := "column group_id of table "+table, "ALTER TABLE "+table+" ALTER COLUMN group_id "
	switch group := t.Column("group_id"); {
	case group.Name == "":
		f.Add("table "+table+" has no column group_id, in which claims are stamped", "ALTER TABLE "+table+" ADD COLUMN group_id uuid")
	case group.Generated:
		f.Add(column+" is computed, but claims write to it", alter+"DROP EXPRESSION")
	case group.OID != pg.OIDUUID:
		f.Add(column+" is "+group.Type+"; expected uuid", alter+"TYPE uuid USING NULL")
	case group.NotNull:
		f.Add(column+" may not be NULL, but unclaimed events have no group_id", alter+"DROP NOT NULL")
	}
}

// What a role may do with column group_id, with the sequence of the integers, and with the one that makes numbers for a
// table without integers.
const privilegesSQL = `
SELECT coalesce((SELECT has_column_privilege(attrelid, attnum, 'UPDATE') FROM pg_attribute
                 WHERE attrelid = $1::regclass AND attname = 'group_id' AND NOT attisdropped), true),
       coalesce(has_sequence_privilege(to_regclass($2), 'SELECT, USAGE'), true),
       to_regclass($3) IS NOT NULL, coalesce(has_sequence_privilege(to_regclass($3), 'USAGE'), false)`

// checkPrivileges checks what a role needs to run. A role that may not INSERT cannot replay; Diagnose reports that.
func checkPrivileges(ctx context.Context, db *pg.DB, t Facts, c Config, missing *catalog.Findings) error {
	schema := cmp.Or(c.Schema, t.Table.Schema)
	key, number := t.keys(c.CustomTable)
	closed, role, err := catalog.ForbiddenSchema(ctx, db, schema)
	if err != nil {
		return err
	}
	numbers, sequence := pg.Ident(schema, "outbox_numbers"), number.Sequence
	var canStamp, canRead, exists, canDraw bool
	asked := numbers
	if closed != "" {
		missing.AddForbidden(closed, role)
		asked = pg.Null
	}
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: privilegesSQL, Args: []string{t.Table.Quoted, cmp.Or(sequence, pg.Null), asked},
		Row: func(v [][]byte) error {
			canStamp, canRead, exists, canDraw = pg.ReadBool(v[0]), pg.ReadBool(v[1]), pg.ReadBool(v[2]), pg.ReadBool(v[3])
			return nil
		},
	}})
	if err != nil {
		return err
	}
	role = t.Table.Role
	var denied []string
	for i, granted := range []bool{t.Table.CanSelect, canStamp, t.Table.CanDelete || c.Mark != nil} {
		if !granted {
			denied = append(denied, []string{"SELECT", "UPDATE (group_id)", "DELETE"}[i])
		}
	}
	if c.Mark != nil {
		privilege, err := markDenied(ctx, db, t, c)
		if err != nil {
			return err
		}
		if privilege != "" {
			denied = append(denied, privilege)
		}
	}
	missing.AddDenied("table "+t.Table.Quoted, t.Table.Quoted, role, denied...)
	if !canRead {
		missing.Add("role "+role+" may not read the last value of sequence "+sequence, "GRANT SELECT ON SEQUENCE "+sequence+" TO "+pg.Quote(role))
	}
	switch {
	case number.Name != "" || key.Name == "" || closed != "":
	case !exists:
		missing.Add("sequence "+numbers+" does not exist", notready.MigrateCommand)
	case !canDraw:
		missing.Add("role "+role+" may not use sequence "+numbers, "GRANT USAGE ON SEQUENCE "+numbers+" TO "+pg.Quote(role))
	}
	return nil
}
