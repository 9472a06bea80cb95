package introspect

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is how a table could serve as a buffer.
type Kind int

// The kinds, the fittest first.
const (
	// Relays: it has the relay's own shape.
	Relays Kind = iota
	// Stamped: a table of the user's own with a column group_id for the relay.
	Stamped
	// Known: a table of a shape that has a preset.
	Known
	// Plain: any other table with a primary key that serves.
	Plain
	// Unfit: it cannot be one, as it is.
	Unfit
)

// group is the column that a claim stamps.
const group = "group_id"

// Kind tells how the table could serve.
func (t *Table) Kind() Kind {
	switch {
	case t.has("id", "topic", "key", "payload", "headers", "created_at", group) && t.keyed() == "":
		return Relays
	case t.Unfit() != "":
		return Unfit
	case t.Shape() != "":
		return Known
	case t.Column(group) != nil:
		return Stamped
	}
	return Plain
}

// Shape is the preset for the table, "" when there is none. Those of tables which others
// may be reading from are to be asked for by name.
func (t *Table) Shape() string {
	switch {
	case t.has("id", "aggregatetype", "aggregateid", "type", "payload"):
		return "debezium"
	case t.has("id", "identifier", "event", "payload", "aggregate", "aggregate_identifier"):
		return "rails"
	}
	return ""
}

// rank puts tables that sound like events before others of their kind.
func (t *Table) rank() int {
	rank := 2 * int(t.Kind())
	if !slices.ContainsFunc([]string{"event", "outbox", "queue"}, func(word string) bool {
		return strings.Contains(strings.ToLower(t.Name), word)
	}) {
		rank++
	}
	return rank
}

// Unfit says why the table cannot be a buffer, and what was expected; "" when it can.
func (t *Table) Unfit() string {
	if why := t.keyed(); why != "" {
		return why
	}
	g := t.Column(group)
	switch {
	case g == nil:
		return ""
	case t.Schema == "" && g.Type != "text" && g.Type != "blob" && g.Type != "uuid":
		return fmt.Sprintf("its column group_id is %s and not the relay's, a column group_id of type text was expected", g.Type)
	case t.Schema != "" && g.Type != "uuid":
		return fmt.Sprintf("its column group_id is %s and not the relay's, a column group_id of type uuid was expected", g.Type)
	}
	return ""
}

// keyed says why the primary key does not serve.
func (t *Table) keyed() string {
	sqlite := t.Schema == ""
	expected := "an integer or a uuid"
	if sqlite {
		expected = "an INTEGER PRIMARY KEY"
	}
	if len(t.Key) == 0 {
		return "it has no primary key, " + expected + " was expected"
	}
	if len(t.Key) > 1 {
		return fmt.Sprintf("its primary key has %d columns, %s was expected", len(t.Key), expected)
	}
	key := t.Column(t.Key[0])
	if !sqlite && (key.Integer() || key.Type == "uuid") || sqlite && key.Type == "integer" {
		return ""
	}
	return fmt.Sprintf("its primary key %s is %s, %s was expected", key.Name, key.Type, expected)
}

// Integer tells whether the column is one that a claim can go by.
func (c *Column) Integer() bool {
	return slices.Contains([]string{"bigint", "integer", "smallint", "int"}, c.Type)
}

// JSON tells whether the column is one of JSON.
func (c *Column) JSON() bool { return c.Type == "jsonb" || c.Type == "json" }

// Text tells whether the column is one of text.
func (c *Column) Text() bool {
	return slices.Contains([]string{"text", "character varying", "varchar", "nvarchar", "citext", "character"}, c.Type)
}

// Cursor is the column that grows beside a primary key that does not; "" when the
// primary key does, or nothing.
func (t *Table) Cursor() string {
	if key := t.Column(t.Key[0]); key.Integer() {
		return ""
	}
	for _, grown := range []bool{true, false} { // those that surely grow before those that may
		for _, c := range t.Columns {
			if c.Integer() && c.NotNull && c.Unique && c.Grows == grown && (grown || seldomElse(c.Name)) {
				return c.Name
			}
		}
	}
	return ""
}

// seldomElse names columns that are there to grow, whoever counts.
func seldomElse(name string) bool {
	return slices.Contains([]string{"seq", "sequence", "seqno", "position", "global_position", "offset", "number", "version_id"}, name)
}
