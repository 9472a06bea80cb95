// Package custom is a buffer table that the application owns. Claims stamp its rows and read nothing but keys:
// what is sent is what the projection returns, which runs after the claim or the take-over has
// committed.
//
// An event is known by its integer key, or by its cursor column. If there is neither, it is known by its
// uuid: numbers stand for the events of each batch, the ledger row has their uuids, and there are no
// watermarks, so that claims need an index on unclaimed rows.
package custom

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Inserted is the column that says when a row was inserted; "" if there is none.
func (t *Table) Inserted() string { return t.inserted.Name }

// Table is a custom table that lacks nothing.
type Table struct {
	Parts
	tables *ledger.Tables

	// key is what the projection names an event by. number is the integer that is the event's ID; its Name is
	// "" if the key is a uuid without a cursor.
	key, number Column
	// created is the expression for an event's created_at; the time of the claim if the table has no such column.
	created string
	// available is the column that delays events; NULL::timestamptz if there is none.
	available string
	// withoutZone is the column of that time if it is a timestamp without time zone, which is read as UTC; otherwise its Name is "".
	withoutZone Column
	// where is the condition for a row e that is an event.
	where string
	// condition is source.where; "" for none.
	condition string
	// mark are the expressions that a row is marked with, by column; nil if it is deleted.
	mark map[string]string
	// inserted is the column that says when a row was inserted; its Name is "" if there is none.
	inserted Column
	// columns are the names of all columns, and unsent those that the projection drops.
	columns, unsent []string
	// ignored are columns that the projection returns in vain.
	ignored  []buffer.IgnoredColumn
	excepted func(column string) bool
	// nullable are the columns that may be NULL, and local those that are timestamps without time zone.
	nullable, local []string
	// times are the columns that hold times.
	times []string
	// row is the expression for the row e as json.
	row string
	// insert are the columns that take a value.
	insert []Column
	// topic is the table's name, for events whose projection returns no topic.
	topic string
	// project is the projection with the rows of the batch for {events}, projectShared that of one of several sinks;
	// expands reports whether it has {events}.
	project, projectShared string
	expands                bool
	// path is the search path of the projection.
	path string
}

// Parts are what a custom table works with.
type Parts struct {
	Base       *ledger.Base
	Ledger     *ledger.Ledger
	Claimer    *claim.Claimer
	Watermarks *watermark.Watermarks
}

// noTime is the time of a claim: when an event was created whose row does not say it. Repeated batches have that of
// their first claim, so that what is sent under one group_id stays the same.
const noTime = "statement_timestamp()"

// New returns the table, and completes its tables. relay are the names of the relay's own tables, in pairs
// of default and real name.
func New(p Parts, tables *ledger.Tables, facts Facts, c buffer.CustomTable, relay []string) *Table {
	t := &Table{
		Parts: p, tables: tables,
		created: noTime, available: "NULL::timestamptz", mark: c.Mark, topic: facts.Table.Name, row: facts.asJSON(), path: facts.path(),
	}
	t.key, t.number = facts.keys(c)
	tables.AvailableAt = ""
	t.condition = c.Where
	t.where, tables.Conditional = condition(c.Where)
	tables.Marks = c.Mark != nil
	inserted := "NULL::timestamptz"
	switch c := facts.Column(cmp.Or(c.CreatedAt, createdAt)); c.OID {
	case pg.OIDTimestamptz:
		t.inserted = c
		inserted = "CASE WHEN isfinite(e." + c.Quoted + ") THEN e." + c.Quoted
	case pg.OIDTimestamp:
		t.inserted, t.withoutZone = c, c
		inserted = "CASE WHEN isfinite(e." + c.Quoted + ") THEN e." + c.Quoted + " AT TIME ZONE 'UTC'"
	default:
		tables.NoAges = true
	}
	if !tables.NoAges {
		t.created = inserted + " ELSE " + noTime + " END"
		inserted += " END"
	}
	if c.AvailableAt != "" {
		tables.AvailableAt = c.AvailableAt
		t.available = "e." + facts.Column(c.AvailableAt).Quoted
	}
	columns := make([]string, 0, len(facts.Columns))
	for _, c := range facts.Columns {
		columns = append(columns, c.Name)
		if !c.Generated {
			t.insert = append(t.insert, c)
		}
	}
	t.columns, t.unsent = columns, c.Unsent(columns)
	t.excepted = c.Excepted
	t.ignored = projection.Ignored(c, facts.Returned, columns, projection.SameName)
	for _, c := range facts.Columns {
		if !c.NotNull {
			t.nullable = append(t.nullable, c.Name)
		}
		if c.OID == pg.OIDTimestamp {
			t.local = append(t.local, c.Name)
		}
		if (c.OID == pg.OIDTimestamptz || c.OID == pg.OIDTimestamp) && !buffer.LooksDelay(c.Name) {
			t.times = append(t.times, c.Name)
		}
	}
	tables.Sequence = cmp.Or(t.number.Sequence, pg.Null)
	tables.Names = strings.NewReplacer(t.names(tables.Events, tables.DeadPayloadOID, relay)...)
	tables.Statements = t.backlogStatements(tables.Events, inserted, relay)
	t.project, t.expands = projection.Expand(c.Project, tables.SQL(t.either(rowsByIDSQL, rowsByUUIDSQL)))
	t.projectShared, _ = projection.Expand(c.Project, tables.SQL(t.either(rowsSharedSQL, rowsSharedUUIDSQL)))
	tables.UUIDs, tables.Bury = !t.Numbered(), t.buryUnrouted
	return t
}

// createdAt is the column that says when an event was inserted, unless source.created_at names another.
const createdAt = "created_at"

// Path is the search path of the projection.
func (t *Table) Path() string { return t.path }

// HasAges reports whether a column says when an event was inserted.
func (t *Table) HasAges() bool { return !t.tables.NoAges }

// WithoutZone returns the column that says when an event was inserted if it is a timestamp without time zone.
func (t *Table) WithoutZone() (c Column, is bool) { return t.withoutZone, t.withoutZone.Name != "" }

// Columns are the names of all columns.
func (t *Table) Columns() []string { return t.columns }

// Nullable reports whether a column may be NULL.
func (t *Table) Nullable(column string) bool { return slices.Contains(t.nullable, column) }

// Local returns the timestamps without time zone that source.where compares with the time in the session's zone.
func (t *Table) Local() []string {
	return slices.DeleteFunc(slices.Clone(t.local), func(column string) bool { return !comparesLocal(t.condition, column) })
}

// Times are the columns that hold times.
func (t *Table) Times() []string { return t.times }

// Unsent are the columns that the projection drops; see [buffer.CustomTable.Unsent].
func (t *Table) Unsent() []string { return t.unsent }

// Ignored are the columns that the projection returns and the relay does not know.
func (t *Table) Ignored() []buffer.IgnoredColumn { return t.ignored }

// Excepted reports whether a comment of the projection says that a column neither delays nor marks rows.
func (t *Table) Excepted(column string) bool { return t.excepted(column) }

// Where is the condition for a row that is an event; "" if every row is one.
func (t *Table) Where() string { return t.condition }

// Marks are the columns of the mark, sorted; nil if rows are deleted.
func (t *Table) Marks() []string { return slices.Sorted(maps.Keys(t.mark)) }

// keys returns the column that the projection names an event by, and the integer that is its ID.
func (f *Facts) keys(c buffer.CustomTable) (key, number Column) {
	key = f.Column(c.ID)
	switch {
	case c.Cursor != "":
		number = f.Column(c.Cursor)
	case key.IsInteger():
		number = key
	}
	return key, number
}

// Numbered reports whether the table has integers for its events.
func (t *Table) Numbered() bool { return t.number.Name != "" }

// Expands reports whether the projection has {events}, and by which column that finds the rows.
func (t *Table) Expands() (by Column, ok bool) { return t.find(), t.expands }

// find is the column by which events are found.
func (t *Table) find() Column {
	if t.Numbered() {
		return t.number
	}
	return t.key
}

// either returns the statement for tables with or without integers.
func (t *Table) either(numbered, uuids string) string {
	if t.Numbered() {
		return numbered
	}
	return uuids
}

// putBack returns the columns of a row r that a replay puts back, and their values; c is the dead letter.
func (t *Table) putBack() (columns, values string) {
	found := t.find().Name
	for i, c := range t.insert {
		value := putBackValue(c)
		switch c.Name {
		case "group_id":
			value = "c.stamp"
		case found:
			value = "c.id"
		}
		if i > 0 {
			columns, values = columns+", ", values+", "
		}
		columns, values = columns+c.Quoted, values+value
	}
	return columns, values
}

// putBackValue is the value of a column in the row of the dead letter.
func putBackValue(c Column) string {
	switch value := "r." + c.Quoted; {
	case c.isText():
		return "(c.event_row->>" + pg.Literal(c.Name) + ")::" + c.Type
	case c.NotNull && c.OID == pg.OIDJSONB: // in a row as JSON it looks like NULL
		return "coalesce(" + value + ", 'null')"
	default:
		return value
	}
}

// finds returns an array of what the events of these ids are found by.
func (t *Table) finds(events []outbox.Event, ids []int64) string {
	if t.Numbered() {
		return pg.IDArray(ids)
	}
	keys := make([]uuid.UUID, 0, len(ids))
	for _, id := range ids {
		if e := eventOf(events, id); e != nil {
			keys = append(keys, e.UUID)
		}
	}
	return pg.UUIDArray(keys)
}

// eventOf returns the event of that id; nil if there is none.
func eventOf(events []outbox.Event, id int64) *outbox.Event {
	if i, found := slices.BinarySearchFunc(events, id, func(e outbox.Event, id int64) int { return cmp.Compare(e.ID, id) }); found {
		return &events[i]
	}
	return nil
}
