package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// own is what a buffer on a table of the user's own has beside.
//
// A statement that only reads events is written for the relay's table, and of a user's
// own it sees the columns id, created_at and group_id under those names (see shapeOf).
// One that writes is written for itself, with own_events for the table and own_id for its
// key, as names in SQL go.
type own struct {
	// reads is where projections run: nothing can be written there.
	reads *sql.DB
	shape atomic.Pointer[shape]
}

// validateOwn looks at what goes with a table of the user's own.
func (c Config) validateOwn() error {
	switch {
	case !c.Own.Is():
		return nil
	case c.Own.ID == "" || strings.ContainsRune(c.Own.ID, 0):
		return fmt.Errorf("sqlite buffer: table %s is the user's own, and %q cannot be its primary key's column", quote(c.Table), c.Own.ID)
	case c.Own.Cursor != "":
		return fmt.Errorf("sqlite buffer: a table of the user's own has an INTEGER PRIMARY KEY in SQLite, which grows: there is no use for the cursor %q", c.Own.Cursor)
	case c.Ordered:
		return errors.New("sqlite buffer: order by key needs the relay's own table, and a projection was given")
	case c.Claim != buffer.ClaimAuto && c.Claim != buffer.ClaimStamp:
		return fmt.Errorf("sqlite buffer: events of a table of the user's own are claimed by stamp, and cannot be by %q", c.Claim)
	}
	return nil
}

// pragmas are what a connection that writes begins with. The foreign keys of a user's own
// tables are meant, even if each connection has to say so.
func (c Config) pragmas() []string {
	if c.Own.Is() {
		return []string{"foreign_keys(1)"}
	}
	return nil
}

// shape is what a table of the user's own is like, as of one version of the schema.
type shape struct {
	version int64
	columns []string // names as they are written, generated ones apart
	all     []string // and with those
	bytes   bool     // group_id takes the 16 bytes of the uuid, not its text
	names   *strings.Replacer
	sees    atomic.Int32 // the projection's sight
}

// Whoever alters a table changes the version.
const schemaVersionSQL = `
SELECT schema_version FROM pragma_schema_version`

const ownColumnsSQL = `
SELECT name, upper(type), hidden FROM pragma_table_xinfo(?1)`

// shapeOf looks at the table if it may have changed since the last time.
func (b *Buffer) shapeOf(ctx context.Context, tx *sql.Tx) (*shape, error) {
	var version int64
	if err := tx.QueryRowContext(ctx, schemaVersionSQL).Scan(&version); err != nil {
		return nil, err
	}
	if s := b.own.shape.Load(); s != nil && s.version == version {
		return s, nil
	}
	rows, err := tx.QueryContext(ctx, ownColumnsSQL, b.config.Table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	s := &shape{version: version}
	created := "NULL"
	for rows.Next() {
		var (
			name, is string
			hidden   int
		)
		if err := rows.Scan(&name, &is, &hidden); err != nil {
			return nil, err
		}
		switch strings.ToLower(name) {
		case "group_id":
			s.bytes = isBytes(is)
		case "created_at":
			created = timeOf(quote(name))
		}
		s.all = append(s.all, name)
		if hidden == 0 {
			s.columns = append(s.columns, name)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	group := "group_id"
	if s.bytes {
		group = textOfUUID
	}
	view := "(SELECT " + quote(b.config.Own.ID) + " AS id, " + created + " AS created_at, " + group + " AS group_id FROM " + quote(b.config.Table) + ")"
	s.names = strings.NewReplacer(defaultTable, view, defaultArchive, quote(b.config.Archive),
		"own_events", quote(b.config.Table), "own_id", quote(b.config.Own.ID), "own_columns", s.values())
	b.own.shape.Store(s)
	return s, nil
}

// isBytes tells of a column's declared type, in upper case, whether it is for bytes.
func isBytes(declared string) bool {
	return strings.Contains(declared, "BLOB") || strings.Contains(declared, "BINARY") || strings.Contains(declared, "BYTE")
}

// What no uuid is, a hand's stamp, stays as it is.
const textOfUUID = `CASE WHEN typeof(group_id) = 'blob' AND length(group_id) = 16
    THEN lower(substr(hex(group_id), 1, 8) || '-' || substr(hex(group_id), 9, 4) || '-' || substr(hex(group_id), 13, 4) || '-' ||
               substr(hex(group_id), 17, 4) || '-' || substr(hex(group_id), 21))
    ELSE group_id END`

// timeOf is the time in a column in timeFormat: any of the forms that SQLite has
// (https://sqlite.org/lang_datefunc.html), or milliseconds since 1970, which are
// widespread too. NULL when it is none.
//
// strftime takes longer than all the rest of reading an event, and most times are in one
// of two forms.
func timeOf(column string) string {
	return "CASE WHEN length(" + column + ") = 24 AND " + column + " GLOB '????-??-??T??:??:??.???Z' THEN " + column +
		" WHEN length(" + column + ") = 19 AND " + column + " GLOB '????-??-?? ??:??:??' THEN replace(" + column + ", ' ', 'T') || '.000Z'" +
		" ELSE strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN typeof(" + column + ") IN ('integer', 'real') AND abs(" + column + ") > 253402300799" +
		" THEN " + column + " / 1000.0 ELSE " + column + " END, 'auto') END"
}

// values are all columns as what they hold: the plus keeps the driver from making
// something else of it because of the declared type. The stamp is the relay's, and none
// of the user's row.
func (s *shape) values() string {
	var list strings.Builder
	for i, name := range s.columns {
		if i > 0 {
			list.WriteString(", ")
		}
		if strings.EqualFold(name, "group_id") {
			list.WriteString("NULL")
			continue
		}
		list.WriteString("+" + quote(name))
	}
	return list.String()
}

// stamp is a group_id as the table has it.
func (s *shape) stamp(group uuid.UUID) any {
	if s.bytes {
		return group[:]
	}
	return group.String()
}
