// Package introspect looks at the tables of an application's database, for somebody who
// writes a configuration: which could be a buffer, and what they are joined with. It
// reads the catalogue only, no row, and changes nothing.
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

// Database is what was found.
type Database struct {
	// Driver is "postgres" or "sqlite".
	Driver string
	// Role is who looked; "" on SQLite.
	Role string
	// Schemas are those there are, true for those that the role may make tables in.
	// MayMake tells whether it may make further ones. Neither on SQLite.
	Schemas map[string]bool
	MayMake bool
	// Tables are in order of their fitness to be a buffer, see [Table.Kind], and their
	// names. The relay's own, but for buffers, are not among them.
	Tables []*Table
}

// Table is an ordinary table.
type Table struct {
	// Schema is "" on SQLite.
	Schema, Name string
	Columns      []Column
	// Key are the columns of the primary key.
	Key []string
	// Refs are the foreign keys of one column, in the order of those; after them what
	// only looks like one.
	Refs []Ref
	// ReferredBy names the tables that have a foreign key to this one.
	ReferredBy []string
	// Lacks are the privileges on it that a buffer needs and the role has not.
	Lacks []string
	// Unread: the role may not even SELECT from it.
	Unread bool
	// Reuses: ids are handed out again after a delete (SQLite without AUTOINCREMENT).
	Reuses bool
}

// Column is a column of a table.
type Column struct {
	Name string
	// Type is in lower case, without length or precision.
	Type    string
	NotNull bool
	// Unique: an index of its own says that no value comes twice.
	Unique bool
	// Grows: the database hands its values out, one after the other.
	Grows bool
	// Indexed: it is the first column of an index.
	Indexed bool
	// Unseen is the sequence that values come from, in SQL, where the role may not look
	// at it; else "".
	Unseen string
}

// Ref is a foreign key.
type Ref struct {
	// Column refers to the column To of Table.
	Column string
	Table  *Table
	To     string
	// Guessed: there is none, and the names say so.
	Guessed bool
}

// Look finds the tables of the database at url, a postgres:// or sqlite:// one. The
// error holds no password.
func Look(ctx context.Context, driver, url string) (*Database, error) {
	var (
		d   *Database
		err error
	)
	switch driver {
	case "postgres":
		d, err = lookPostgres(ctx, url)
	case "sqlite":
		d, err = lookSQLite(ctx, url)
	default:
		return nil, fmt.Errorf("there is no driver %q", driver)
	}
	if err != nil {
		return nil, fmt.Errorf("looking at the database: %w", err)
	}
	d.Driver = driver
	for _, t := range d.Tables {
		d.guess(t)
	}
	d.Tables = slices.DeleteFunc(d.Tables, (*Table).isOurs)
	slices.SortStableFunc(d.Tables, func(a, b *Table) int {
		return cmp.Or(a.rank()-b.rank(), strings.Compare(a.Schema, b.Schema), strings.Compare(a.Name, b.Name))
	})
	return d, nil
}

// isOurs tells whether the table is one of the relay's that is no buffer.
func (t *Table) isOurs() bool {
	switch t.Name {
	case "outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_rates":
		return true
	}
	return t.has("version_id", "is_applied", "tstamp") || t.has("archived_at", "topic", "payload", group)
}

// Find returns the table of that name, which may be schema.table, or nil. Without a
// schema it is the one in public, as in a configuration.
func (d *Database) Find(name string) *Table {
	schema, table, _ := buffer.SplitTable(name)
	schema = cmp.Or(schema, "public")
	i := slices.IndexFunc(d.Tables, func(t *Table) bool {
		if d.Driver == "sqlite" {
			return strings.EqualFold(t.Name, table)
		}
		return t.Name == table && t.Schema == schema
	})
	if i < 0 {
		return nil
	}
	return d.Tables[i]
}

// FullName is the name as a configuration has it: schema.table outside of public, each
// in quotes where it needs them.
func (t *Table) FullName() string {
	if t.Schema == "" || t.Schema == "public" {
		return quoted(t.Name)
	}
	return quoted(t.Schema) + "." + quoted(t.Name)
}

// plain are names that a configuration takes as they are.
var plain = regexp.MustCompile(`^[\p{L}\p{N}_$-]+$`)

func quoted(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return buffer.QuoteName(name)
}

// Column returns the column of that name, or nil.
func (t *Table) Column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

// has tells whether there are columns of these names.
func (t *Table) has(names ...string) bool {
	for _, name := range names {
		if t.Column(name) == nil {
			return false
		}
	}
	return true
}

// baseType is a type's name without length, precision and case.
func baseType(text string) string {
	before, rest, found := strings.Cut(strings.ToLower(text), "(")
	if _, after, ok := strings.Cut(rest, ")"); found && ok {
		before += after
	}
	return strings.Join(strings.Fields(before), " ")
}
