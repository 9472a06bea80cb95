package introspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Kind is how a table can serve as a buffer. The most suitable kinds come first.
type Kind int

// The kinds of tables.
const (
	// Relay is a table with exactly the columns of the relay's own, and an id that the database generates.
	Relay Kind = iota
	// Grouped is a custom table that has a column group_id.
	Grouped
	// Known is a table whose layout has a preset.
	Known
	// Plain is any other table with a suitable primary key.
	Plain
	// Unsuitable is a table that cannot be a buffer.
	Unsuitable
)

// groupID is the column that the relay needs in a custom table.
const groupID = "group_id"

// Kind returns how the table can serve.
func (t *Table) Kind() Kind {
	switch {
	case t.isRelay():
		return Relay
	case t.Unsuitable() != "":
		return Unsuitable
	case t.Preset() != "":
		return Known
	case t.Column(groupID) != nil:
		return Grouped
	}
	return Plain
}

// isRelay reports whether the table can be used as the relay's own. Another column would be lost, so a table that has one is a
// custom table.
func (t *Table) isRelay() bool {
	columns := make([]string, len(t.Columns))
	for i := range t.Columns {
		if columns[i] = t.Columns[i].Name; t.Schema == "" { // SQLite does not tell names apart by case
			columns[i] = strings.ToLower(columns[i])
		}
	}
	other := func(c string) bool { return !slices.Contains(buffer.EventColumns, c) }
	if buffer.LacksEventColumns(columns) != nil || slices.ContainsFunc(columns, other) || len(t.Key) != 1 || !strings.EqualFold(t.Key[0], "id") {
		return false
	}
	id := t.Column(t.Key[0])
	return id.Integer() && (t.Schema == "" && !t.ReusesIDs || id.Generated)
}

// Preset returns the preset for the table's layout, "" if there is none. It leaves out the presets of
// tables that other programs may read.
func (t *Table) Preset() string {
	switch {
	case t.has("id", "aggregatetype", "aggregateid", "type", "payload"):
		return "debezium"
	case t.has("id", "identifier", "event", "payload", "aggregate", "aggregate_identifier"):
		return "rails"
	}
	return ""
}

// rank orders tables by kind, and by whether the name suggests events.
func (t *Table) rank() int {
	rank := 2 * int(t.Kind())
	if !t.namedForEvents() {
		rank++
	}
	return rank
}

func (t *Table) namedForEvents() bool {
	return slices.ContainsFunc([]string{"event", "outbox", "queue"}, func(word string) bool {
		return strings.Contains(strings.ToLower(t.Name), word)
	})
}

// MayHoldEvents reports whether the table looks like one of events: by its columns, or by its name.
func (t *Table) MayHoldEvents() bool {
	return t.Kind() < Plain || t.Kind() == Plain && t.namedForEvents()
}

// Unsuitable returns why the table cannot be a buffer, and what is expected; "" if it can.
func (t *Table) Unsuitable() string {
	if why := t.unsuitableKey(); why != "" {
		return why
	}
	if t.IsInherited {
		return "other tables inherit from it; expected a table without children, because their rows would be sent without their own columns and then deleted"
	}
	types := []string{"uuid"}
	if t.Schema == "" {
		types = []string{"text", "blob", "uuid"}
	}
	if g := t.Column(groupID); g != nil && !slices.Contains(types, g.Type) {
		return fmt.Sprintf("its column group_id is %s; expected %s", g.Type, types[0])
	}
	return ""
}

// LacksKey reports whether only a key is missing for the table to be a buffer.
func (t *Table) LacksKey() bool { return t.unsuitableKey() != "" }

// unsuitableKey returns why the primary key is not suitable, "" if it is.
func (t *Table) unsuitableKey() string {
	sqlite := t.Schema == ""
	expected := "an integer or a uuid"
	if sqlite {
		expected = "an INTEGER PRIMARY KEY"
	}
	switch len(t.Key) {
	case 0:
		return "it has no primary key; expected " + expected + t.partitioned()
	case 1:
	default:
		return fmt.Sprintf("its primary key has %d columns; expected %s", len(t.Key), expected) + t.partitioned()
	}
	key := t.Column(t.Key[0])
	if !sqlite && (key.Integer() || key.Type == "uuid") || sqlite && key.Type == "integer" {
		return ""
	}
	return fmt.Sprintf("its primary key %s is %s; expected %s", key.Name, key.Type, expected)
}

// partitioned says why a table that is partitioned has no key of one column.
func (t *Table) partitioned() string {
	if !t.IsPartitioned {
		return ""
	}
	return " (the table is partitioned, so only its partition key can be unique)"
}

// Identifying returns a column that identifies a row, or would if it were unique, of a table without a suitable primary key: id, or
// one that the database generates. It returns nil if there is none.
func (t *Table) Identifying() (found *Column) {
	if t.unsuitableKey() == "" || t.Schema == "" || t.IsPartitioned {
		return nil
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.NotNull && (c.Integer() || c.Type == "uuid") && (c.Name == "id" || c.Generated && found == nil) {
			found = c
		}
	}
	return found
}

// useUnique takes a unique column for the key if the primary key is not suitable, because the relay can.
func (t *Table) useUnique() {
	if c := t.Identifying(); c != nil && c.Unique {
		t.Key = []string{c.Name}
	}
}

// Integer reports whether the column is an integer.
func (c *Column) Integer() bool {
	return slices.Contains([]string{"bigint", "integer", "smallint", "int"}, c.Type)
}

// JSON reports whether the column holds JSON.
func (c *Column) JSON() bool { return c.Type == "jsonb" || c.Type == "json" }

// Text reports whether the column holds text.
func (c *Column) Text() bool {
	return slices.Contains([]string{"text", "character varying", "varchar", "nvarchar", "citext", "character"}, c.Type)
}

// cursorNames are names of columns that grow, even if the application assigns the values.
var cursorNames = []string{"seq", "sequence", "seqno", "position", "global_position", "offset", "number", "version_id"}

// Cursor returns a column that grows, for a table whose primary key does not; "" if the key grows or no
// column does.
func (t *Table) Cursor() string {
	if key := t.Column(t.Key[0]); key.Integer() {
		return ""
	}
	named := ""
	for _, c := range t.Columns {
		if !c.Integer() || !c.NotNull || !c.Unique {
			continue
		}
		if c.Generated {
			return c.Name
		}
		if named == "" && slices.Contains(cursorNames, c.Name) {
			named = c.Name
		}
	}
	return named
}
