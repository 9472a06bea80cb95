// Package introspect finds the tables of an application's database that could be a buffer, and the rows
// they refer to. It reads the catalog, and the newest rows of one table; it changes nothing.
package introspect

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Database is the content of a database's catalog.
type Database struct {
	// Driver is "postgres" or "sqlite".
	Driver string
	// Role is the current role; "" on SQLite.
	Role string
	// Schemas are the schemas; the value reports whether the role may create tables in it. Nil on SQLite.
	Schemas map[string]bool
	// Zone is the database's time zone; "" if it is UTC, and on SQLite.
	Zone string
	// CanCreateSchema reports whether the role may create schemas.
	CanCreateSchema bool
	// Tables are the tables, the most suitable ones first; see [Kind]. The relay's own tables are left out,
	// except buffers.
	Tables []*Table
	// Views have a name alone.
	Views []*Table
}

// Table is an ordinary table.
type Table struct {
	// Schema is "" on SQLite.
	Schema, Name string
	Columns      []Column
	// Key has the columns of the primary key; instead of one that is not suitable, a unique column, see [Table.Identifying].
	Key []string
	// IsPartitioned reports whether the rows are in partitions, so that no column but the partition key can be unique. Always false on SQLite.
	IsPartitioned bool
	// IsInherited reports whether other tables inherit from it: a SELECT returns their rows, too, without their own columns. Always false on SQLite.
	IsInherited bool
	// Refs are the foreign keys of one column, in the order of the columns, and then the inferred ones.
	Refs []Ref
	// ReferredBy names the tables that have a foreign key to this one.
	ReferredBy []string
	// MissingPrivileges are the privileges that a buffer needs and the role lacks.
	MissingPrivileges []string
	// ReusesIDs reports whether the database hands out an id again after a delete (SQLite without
	// AUTOINCREMENT).
	ReusesIDs bool
}

// Unreadable reports whether the role may not read the table.
func (t *Table) Unreadable() bool { return slices.Contains(t.MissingPrivileges, "SELECT") }

// Column is a column of a table.
type Column struct {
	Name string
	// Type is in lower case, without length or precision.
	Type    string
	NotNull bool
	// Unique reports whether an index on this column alone is unique. Always false on SQLite.
	Unique bool
	// Indexed reports whether an index begins with the column, and has all its values. On SQLite: it is the index of [buffer.SQLiteDelayedIndex].
	Indexed bool
	// Generated reports whether the database generates growing values. Always false on SQLite.
	Generated bool
	// Default is the expression of the default value in SQL, as the database writes it, or that of a generated column; "" if that is NULL.
	Default string
	// InUTC reports whether the default value is a time in UTC, whatever the session's time zone. Always false on SQLite.
	InUTC bool
	// UnreadableSequence is the sequence of the column, in SQL, if the role may not read it; otherwise "".
	UnreadableSequence string
}

// Ref is a reference to a row of another table.
type Ref struct {
	// Column refers to the column To of Table.
	Column string
	Table  *Table
	To     string
	// Inferred reports whether only the names suggest the reference. Otherwise it is a foreign key.
	Inferred bool
}

// Open reads the catalog of the database at url, a postgres:// or sqlite:// URL. The error contains no
// password.
func Open(ctx context.Context, driver, url string) (*Database, error) {
	var (
		d   *Database
		err error
	)
	switch driver {
	case "postgres":
		d, err = openPostgres(ctx, url)
	case "sqlite":
		d, err = openSQLite(ctx, url)
	default:
		return nil, fmt.Errorf("unknown driver %q", driver)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the database's catalog: %w", err)
	}
	d.Driver = driver
	for _, t := range d.Tables {
		t.useUnique()
	}
	for _, t := range d.Tables {
		d.inferForeignKeys(t)
	}
	d.Tables = slices.DeleteFunc(d.Tables, (*Table).isInternal)
	slices.SortStableFunc(d.Tables, func(a, b *Table) int {
		return cmp.Or(a.rank()-b.rank(), strings.Compare(a.Schema, b.Schema), strings.Compare(a.Name, b.Name))
	})
	return d, nil
}

// isInternal reports whether the table is one of the relay's own and not a buffer.
func (t *Table) isInternal() bool {
	switch t.Name {
	case "outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_rates", "outbox_sinks", "outbox_relays", "outbox_versions":
		return true
	}
	return t.has("version_id", "is_applied", "tstamp") || t.has("archived_at", "topic", "payload", groupID)
}

// Find returns the table with a name, which may be schema.table, or nil. The default schema is public, as
// in a configuration.
func (d *Database) Find(name string) *Table { return d.find(d.Tables, name) }

// FindView returns the view with a name, or nil.
func (d *Database) FindView(name string) *Table { return d.find(d.Views, name) }

func (d *Database) find(tables []*Table, name string) *Table {
	schema, table, _ := buffer.SplitTable(name)
	schema = cmp.Or(schema, "public")
	i := slices.IndexFunc(tables, func(t *Table) bool {
		if d.Driver == "sqlite" {
			return strings.EqualFold(t.Name, table)
		}
		return t.Name == table && t.Schema == schema
	})
	if i < 0 {
		return nil
	}
	return tables[i]
}

// Names are the names of all tables and columns.
func (d *Database) Names() (all []string) {
	for _, t := range d.Tables {
		all = append(all, t.Name)
		for _, c := range t.Columns {
			all = append(all, c.Name)
		}
	}
	return all
}

// FullName is the name in a configuration: schema.table outside of public, quoted if necessary.
func (t *Table) FullName() string {
	if t.Schema == "" || t.Schema == "public" {
		return quoted(t.Name)
	}
	return quoted(t.Schema) + "." + quoted(t.Name)
}

// plain matches names that need no quotes in a configuration.
var plain = regexp.MustCompile(`^[\p{L}\p{N}_$-]+$`)

func quoted(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return buffer.QuoteName(name)
}

// Column returns the column with a name, or nil.
func (t *Table) Column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

// has reports whether the table has all of the columns.
func (t *Table) has(names ...string) bool {
	for _, name := range names {
		if t.Column(name) == nil {
			return false
		}
	}
	return true
}

// baseType is the name of a type in lower case, without length or precision.
func baseType(text string) string {
	before, rest, found := strings.Cut(strings.ToLower(text), "(")
	if _, after, ok := strings.Cut(rest, ")"); found && ok {
		before += after
	}
	return strings.Join(strings.Fields(before), " ")
}
