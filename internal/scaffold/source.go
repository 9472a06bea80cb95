package scaffold

import (
	"cmp"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
)

// writeSource writes the source.
func (d *Draft) writeSource(w *writer) {
	s := &d.Source
	w.line(2, "source:")
	w.line(3, "url: ${"+SourceVariable+"}")
	if !s.IsCustom() {
		w.comment(3, "The relay's own table; `relay migrate` creates it if it does not exist. Your application inserts into it, "+
			"in its own transactions: INSERT INTO "+s.Name+" (topic, key, payload, headers) VALUES (...)")
		w.line(3, "table: "+scalar(s.Name))
		return
	}
	const needs = "The table needs a primary key and a nullable column group_id. "
	if _, stays := s.Stays(); stays {
		w.comment(3, "A custom table, whose rows stay and are marked. "+needs+"The relay changes that column and the mark.")
	} else {
		w.comment(3, "A custom table: each row is an event, and the relay DELETES it after delivery. "+needs+"The relay changes no other column.")
	}
	w.line(3, "table: "+scalar(s.Name))
	if s.Driver == "postgres" {
		w.comment(3, "The schema of the relay's own tables; `relay migrate` creates it.")
		w.line(3, "schema: "+Schema)
	}
	if s.Preset != "" {
		w.comment(3, "A known table layout, which defines id and project. You can write those yourself instead, see docs/tables.md.")
		w.line(3, "preset: "+s.Preset)
		if s.Table != nil && s.Table.Unsuitable() == "" {
			s.writeCursor(w)
			s.writeCreated(w)
		}
		return
	}
	w.comment(3, "The primary key.")
	w.line(3, "id: "+scalar(s.Table.Key[0]))
	s.writeCursor(w)
	s.writeCreated(w)
	s.writeDelay(w)
	s.writeMark(w)
	p := d.proposal()
	w.comment(3, "What to send: a SELECT that runs once for each batch. {events} stands for the rows of the batch. It returns one row for each event, with the columns id and payload "+
		"and optionally topic, key, headers and created_at. An event without a row becomes a dead letter: \"not projected\".")
	for _, note := range append(p.warnings, p.notes...) {
		w.comment(3, note)
	}
	w.comment(3, "Sent: "+strings.Join(p.sent, ", ")+". Remove what the sink must not see. "+p.later)
	if p.unsent != nil {
		w.comment(3, "Not sent, because their names suggest secrets: "+strings.Join(p.unsent, ", ")+".")
	}
	for _, one := range d.Unrequested() {
		w.comment(3, "Not sent by "+cmp.Or(one.Sink, "sink")+".request"+": "+strings.Join(one.What, ", ")+".")
	}
	w.line(3, "project: |")
	w.lines(4, literal(p.sql))
}

// writeCursor names a growing column next to a uuid key, or proposes one.
func (s *Source) writeCursor(w *writer) {
	if s.Driver == "sqlite" || s.Table.Column(s.Table.Key[0]).Integer() {
		return
	}
	if cursor := s.Table.Cursor(); cursor != "" {
		w.comment(3, "A growing column. Claims use it because the primary key does not grow.")
		w.line(3, "cursor: "+scalar(cursor))
		return
	}
	w.comment(3, "The primary key is a uuid: each claim reads the whole table. A growing column prevents that. Add it, and remove the #: "+s.AddCursor())
	w.line(3, "#cursor: seq")
}

// AddCursor returns a statement that adds a growing column to a table whose primary key is a uuid; "" if
// the table needs none.
func (s *Source) AddCursor() string {
	t := s.Table
	if t == nil || s.Driver != "postgres" || !s.IsCustom() || t.Unsuitable() != "" || t.Column(t.Key[0]).Integer() || t.Cursor() != "" {
		return ""
	}
	return "ALTER TABLE " + tableName(s.Driver, t) + " ADD COLUMN seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE"
}

// Step is an SQL statement to run, and its purpose.
type Step struct{ Why, SQL string }

// Steps returns the statements to run in the database before the relay runs.
func (s *Source) Steps(d *introspect.Database) []Step {
	t := s.Table
	if t == nil || !s.IsCustom() {
		return nil
	}
	var steps []Step
	add := func(why, sql string) { steps = append(steps, Step{why, sql + ";"}) }
	name, role := tableName(s.Driver, t), identifier(d.Role)
	group := t.Column("group_id")
	if s.Driver == "sqlite" {
		if group == nil {
			add("the batch that a row belongs to", "ALTER TABLE "+name+" ADD COLUMN group_id text")
		}
		s.addMarkIndex(add)
		s.addDelayIndex(add)
		return steps
	}
	switch {
	case group == nil:
		add("the batch that a row belongs to", "ALTER TABLE "+name+" ADD COLUMN group_id uuid")
	case group.NotNull:
		add("a row that belongs to no batch has no group_id", "ALTER TABLE "+name+" ALTER COLUMN group_id DROP NOT NULL")
	}
	s.addMarkIndex(add)
	s.addDelayIndex(add)
	if len(t.MissingPrivileges) > 0 {
		add("as the owner of the table", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+name+" TO "+role)
	}
	for _, c := range t.Columns {
		if c.UnreadableSequence != "" {
			add("as the owner of the sequence; claims read its last value", "GRANT SELECT ON SEQUENCE "+c.UnreadableSequence+" TO "+role)
		}
	}
	if p := parent(t); p != nil && p.Table.Unreadable() {
		add("as the owner of the table; the projection reads it", "GRANT SELECT ON "+tableName(s.Driver, p.Table)+" TO "+role)
	}
	if canCreate, exists := d.Schemas[Schema]; !exists && !d.CanCreateSchema || exists && !canCreate {
		add("as the owner of the database; for the relay's own tables",
			"CREATE SCHEMA IF NOT EXISTS "+Schema+"; GRANT CREATE, USAGE ON SCHEMA "+Schema+" TO "+role)
	}
	return steps
}
