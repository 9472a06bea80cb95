package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/rowjson"
)

// customTable is a buffer table that the application owns.
//
// In a statement of this package outbox_events stands for a view of the table with the columns id,
// created_at and group_id, in the form that the relay's own table has them. If only some rows are events, the condition
// e.group_id IS NULL finds only those. Statements that change
// the table, or read its rows, name it custom_events and its key custom_id.
type customTable struct {
	b *Buffer
	// reads is where projections run: nothing can be written there.
	reads *sql.DB
	shape atomic.Pointer[shape]
}

func newCustomTable(b *Buffer) *customTable {
	return &customTable{b: b, reads: b.follow.Open("rw", 4, nil, "query_only(1)")}
}

func (c *customTable) close() error { return c.reads.Close() }

// shape is the definition of a custom table in one version of the schema of one file.
type shape struct {
	generation, version int64
	columns             []string // without generated ones
	notNull             []string // columns that cannot be NULL
	bytes               bool     // group_id holds the 16 bytes of the uuid, not its text
	ages                bool     // a column says when an event was inserted
	names               *strings.Replacer
}

const (
	// Every change of a table changes the version.
	schemaVersionSQL = `
SELECT schema_version FROM pragma_schema_version`

	customColumnsSQL = `
SELECT name, upper(type), hidden, "notnull" OR pk > 0 FROM pragma_table_xinfo(?1)`
)

// begin reads the table's definition if it may have changed since the last time.
func (c *customTable) begin(ctx context.Context, t *transaction) error {
	var version int64
	if err := t.tx.QueryRowContext(ctx, schemaVersionSQL).Scan(&version); err != nil {
		return err
	}
	s := c.shape.Load()
	if s == nil || s.generation != t.generation || s.version != version {
		s = &shape{generation: t.generation, version: version}
		if err := c.readShape(ctx, t.tx, s); err != nil {
			return err
		}
		c.shape.Store(s)
	}
	t.shape, t.names = s, s.names
	return nil
}

func (c *customTable) readShape(ctx context.Context, tx *sql.Tx, s *shape) error {
	rows, err := tx.QueryContext(ctx, customColumnsSQL, c.b.config.Table)
	if err != nil {
		return err
	}
	defer rows.Close()
	created := "NULL"
	for rows.Next() {
		var (
			name, declared string
			hidden         int
			notNull        bool
		)
		if err := rows.Scan(&name, &declared, &hidden, &notNull); err != nil {
			return err
		}
		if notNull {
			s.notNull = append(s.notNull, name)
		}
		if strings.EqualFold(name, "group_id") {
			s.bytes = isBytes(declared)
		}
		if strings.EqualFold(name, c.created()) {
			created, s.ages = buffer.SQLiteTime(db.Quote(name)), true
		}
		if hidden == 0 {
			s.columns = append(s.columns, name)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	group, isStamp := "group_id", isStampSQL
	if s.bytes {
		group, isStamp = textOfUUID, "(typeof(group_id) = 'blob' AND length(group_id) = 16)"
	}
	table := db.Quote(c.b.config.Table)
	columns := db.Quote(c.b.config.Custom.ID) + " AS id, NULL AS key, " + created + " AS created_at, " + group + " AS group_id, " + c.available() + " AS available_at, group_id AS stamp"
	free := "e.stamp IS NULL" // as an index has it
	names := []string{
		defaultArchive, db.Quote(c.b.config.Archive),
		"custom_events", table, "custom_marks", c.assignments(), "custom_id", db.Quote(c.b.config.Custom.ID), "custom_columns", s.values(), "custom_version", db.VersionOf(s.valueList()), "custom_is_stamp", isStamp,
	}
	if where := c.b.config.Custom.Where; where != "" {
		columns += ", (\n" + where + "\n) AS is_event"
		free += " AND e.is_event"
	}
	names = append(names, "e.group_id IS NULL", free)
	s.names = strings.NewReplacer(append(names, defaultTable, "(SELECT "+columns+" FROM "+table+" AS e)")...)
	return nil
}

// created is the column that says when a row was inserted, if there is one.
func (c *customTable) created() string { return cmp.Or(c.b.config.Custom.CreatedAt, "created_at") }

// available is an expression for the time before which an event is not delivered, as the index of delayed events has it; NULL: at once.
func (c *customTable) available() string {
	if c.b.config.Custom.AvailableAt == "" {
		return "NULL"
	}
	return buffer.SQLiteAvailable(db.Quote(c.b.config.Custom.AvailableAt))
}

// isBytes reports whether a column's declared type, in upper case, is one for bytes.
func isBytes(declared string) bool {
	return strings.Contains(declared, "BLOB") || strings.Contains(declared, "BINARY") || strings.Contains(declared, "BYTE")
}

// A value that is not a uuid stays as it is; see clearCustomSQL.
const textOfUUID = `CASE WHEN typeof(group_id) = 'blob' AND length(group_id) = 16
    THEN lower(substr(hex(group_id), 1, 8) || '-' || substr(hex(group_id), 9, 4) || '-' || substr(hex(group_id), 13, 4) || '-' ||
               substr(hex(group_id), 17, 4) || '-' || substr(hex(group_id), 21))
    ELSE group_id END`

// values returns all columns as a list of expressions. The plus keeps the driver from converting a value
// because of the declared type. The stamp is the relay's and not part of the row.
func (s *shape) values() string { return strings.Join(s.valueList(), ", ") }

func (s *shape) valueList() []string {
	list := make([]string, len(s.columns))
	for i, name := range s.columns {
		list[i] = "+" + db.Quote(name)
		if strings.EqualFold(name, "group_id") {
			list[i] = "NULL"
		}
	}
	return list
}

// stampOf returns a group_id as the table holds it.
func (s *shape) stampOf(group uuid.UUID) any {
	if s.bytes {
		return group[:]
	}
	return group.String()
}

// stamped returns an extent whose stamp is as the table holds it.
func (s *shape) stamped(which extent) extent {
	if text, ok := which.stamp.(string); ok {
		if group, err := uuid.Parse(text); err == nil { // otherwise no event carries it
			which.stamp = s.stampOf(group)
		}
	}
	return which
}

const (
	// Ids and times come in one row: a step of the driver costs more than reading an event's row. Events
	// that have no created_at are as old as their first claim, so that what is sent under one group_id stays the same.
	pickCustomSQL = `
SELECT coalesce(group_concat(id), ''), coalesce(group_concat(coalesce(created_at, '')), ''), coalesce(group_concat(coalesce(available_at, '')), '')
FROM (SELECT e.id, e.created_at, e.available_at FROM outbox_events AS e
      WHERE e.id > ?1 AND e.group_id IS NULL AND (e.available_at IS NULL OR e.available_at <= ?3)
      ORDER BY e.id LIMIT ?2)`

	pickDueCustomSQL = `
SELECT coalesce(group_concat(id), ''), coalesce(group_concat(coalesce(created_at, '')), ''), coalesce(group_concat(coalesce(available_at, '')), '')
FROM (SELECT e.id, e.created_at, e.available_at FROM json_each(?1) AS j CROSS JOIN outbox_events AS e
      WHERE e.id = j.value AND e.group_id IS NULL AND e.available_at <= ?2)`

	// ?1 to ?5 are an extent.
	loadCustomSQL = `
SELECT coalesce(group_concat(id), ''), coalesce(group_concat(coalesce(created_at, '')), ''), coalesce(group_concat(coalesce(available_at, '')), '')
FROM (SELECT id, created_at, available_at FROM outbox_events
      WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
        AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
        AND (?5 IS NULL OR created_at <= ?5)
      ORDER BY id)`

	stampCustomSQL = `
UPDATE custom_events SET group_id = ?1
WHERE custom_id BETWEEN ?2 AND ?3 AND group_id IS NULL`

	// Between those that were picked are rows that are no events, or not yet.
	stampPickedCustomSQL = `
UPDATE custom_events SET group_id = ?1
WHERE custom_id IN (SELECT value FROM json_each(?2)) AND group_id IS NULL`
)

func (c *customTable) pick(ctx context.Context, tx transaction, batch *buffer.Lease, _ string, from int64, limit int, now string) (err error) {
	batch.ClaimedAt = time.Now().UTC().Truncate(time.Millisecond)
	batch.Events, err = scanIDs(tx.row(ctx, pickCustomSQL, from, limit, now), batch.ClaimedAt)
	return err
}

func (c *customTable) pickDue(ctx context.Context, tx transaction, batch *buffer.Lease, ids []int64, now string) (err error) {
	batch.ClaimedAt = time.Now().UTC().Truncate(time.Millisecond)
	batch.Events, err = scanIDs(tx.row(ctx, pickDueCustomSQL, idset.JSONIDs(ids), now), batch.ClaimedAt)
	return err
}

func (c *customTable) stamp(ctx context.Context, tx transaction, batch *buffer.Lease, _ []int64, _ string) error {
	if c.b.conditional() || c.b.delays() {
		return c.stampEach(ctx, tx, batch)
	}
	return c.b.stamped(len(batch.Events))(tx.exec(ctx, stampCustomSQL, tx.shape.stampOf(batch.GroupID), batch.FirstID, batch.LastID))
}

// stampEach stamps the events of a batch, and no row between them.
func (c *customTable) stampEach(ctx context.Context, tx transaction, batch *buffer.Lease) error {
	ids := idset.JSONIDs(batch.IDs())
	if err := c.b.stamped(len(batch.Events))(tx.exec(ctx, stampPickedCustomSQL, tx.shape.stampOf(batch.GroupID), ids)); err != nil || !c.b.marks() {
		return err
	}
	return c.noteVersions(ctx, tx, ids)
}

// topics are in what the projection returns.
func (c *customTable) topics(ctx context.Context, tx transaction, batch *buffer.Lease, in holding) error {
	return c.load(ctx, tx, batch, in, 0)
}

const restampCustomSQL = `
UPDATE custom_events AS e SET group_id = ?2
WHERE group_id = ?1 AND NOT EXISTS (
  SELECT 1 FROM outbox_batches AS l, json_each(CASE WHEN json_valid(l.members) THEN l.members END) AS run
  WHERE l.claim_id = ?3 AND e.custom_id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]'))`

func (c *customTable) restamp(ctx context.Context, tx transaction, from, to uuid.UUID) error {
	_, err := tx.exec(ctx, restampCustomSQL, tx.shape.stampOf(from), tx.shape.stampOf(to), from.String())
	if err == nil && c.b.marks() {
		_, err = tx.exec(ctx, noteStampedSQL, c.b.config.Table, tx.shape.stampOf(to))
	}
	return err
}

// No batch of a custom table is claimed by range.
const clearCustomSQL = `
UPDATE custom_events AS e SET group_id = NULL
WHERE group_id IS NOT NULL AND NOT custom_is_stamp
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = lower(e.group_id))`

func (c *customTable) clear(ctx context.Context, tx transaction) (events int64, err error) {
	return tx.exec(ctx, clearCustomSQL)
}

func (c *customTable) load(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, _ int) (err error) {
	claimed, err := time.Parse(db.TimeFormat, in.claimed)
	if err != nil {
		return err
	}
	batch.Events, err = scanIDs(tx.row(ctx, loadCustomSQL, in.extent(batch, nil).args()...), claimed)
	return err
}

// scanIDs reads a row of ids and times, each separated by commas. Events without a time have that of their claim.
func scanIDs(row *sql.Row, claimed time.Time) (events []outbox.Event, err error) {
	var ids, times, available string
	if err := row.Scan(&ids, &times, &available); err != nil || ids == "" {
		return nil, err
	}
	events = make([]outbox.Event, 0, strings.Count(ids, ",")+1)
	for id := range strings.SplitSeq(ids, ",") {
		var e outbox.Event
		if e.ID, err = strconv.ParseInt(id, 10, 64); err != nil {
			return nil, err
		}
		at, rest, _ := strings.Cut(times, ",")
		if e.CreatedAt, err = time.Parse(db.TimeFormat, at); err != nil { // none, or the 30th of February
			e.CreatedAt = claimed
		}
		times = rest
		if at, available, _ = strings.Cut(available, ","); at != "" {
			if e.AvailableAt, err = time.Parse(db.TimeFormat, at); err != nil {
				e.AvailableAt = time.Time{}
			}
		}
		events = append(events, e)
	}
	// group_concat keeps the order, but does not promise to.
	slices.SortFunc(events, func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) })
	return events, nil
}

// ?1 to ?4 are an extent.
const rowsCustomSQL = `
SELECT custom_id, custom_columns FROM custom_events
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4)))
ORDER BY custom_id`

// customRow is a row of a custom table.
type customRow struct {
	id   int64
	text string // as rowjson encodes it
}

// customRows reads the rows of an extent, whose stamp is as the table holds it. fit is called with the bytes of each.
func (t transaction) customRows(ctx context.Context, which extent, fit func(n int) error) ([]customRow, error) {
	values := make([]any, len(t.shape.columns))
	into := make([]any, 1, 1+len(values))
	for i := range values {
		into = append(into, &values[i])
	}
	rows, err := t.rows(ctx, rowsCustomSQL, which.args()[:4]...)
	return db.All(rows, err, func(rows *sql.Rows, row *customRow) (err error) {
		into[0] = &row.id
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if row.text, err = rowjson.Encode(t.shape.columns, values); err != nil {
			return err
		}
		return fit(len(row.text))
	})
}

// rowsOf returns the SELECT that {events} stands for: the rows of the batch, found by their primary key; of those with the stamp only some,
// unless only is nil. Its values are in the text, because the only parameter is the projection's own.
func (c *customTable) rowsOf(s *shape, group uuid.UUID, first, last int64, only []int64) string {
	stamp := db.Text(group.String())
	if s.bytes {
		stamp = "x'" + strings.ReplaceAll(group.String(), "-", "") + "'"
	}
	rows := "SELECT * FROM main." + db.Quote(c.b.config.Table) + " WHERE " + db.Quote(c.b.config.Custom.ID) +
		" BETWEEN " + strconv.FormatInt(first, 10) + " AND " + strconv.FormatInt(last, 10) + " AND group_id = " + stamp
	if only != nil {
		rows += " AND " + db.Quote(c.b.config.Custom.ID) + " IN (SELECT value FROM json_each(" + db.Text(idset.JSONIDs(only)) + "))"
	}
	return rows
}

// project returns the projection of the batch, and whether it uses {events}.
func (c *customTable) projectOf(s *shape, group uuid.UUID, first, last int64, only []int64) (sql string, uses bool) {
	return projection.Expand(projection.Trim(c.b.config.Custom.Project), c.rowsOf(s, group, first, last, only))
}
