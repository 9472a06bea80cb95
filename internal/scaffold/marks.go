package scaffold

import (
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// mark says how rows of a custom table are marked as sent.
type mark struct {
	column string
	// where is the condition for a row that is not marked, value the expression that marks it.
	where, value string
}

// Marks returns the columns of a custom table that look like the marks of a loop, but for the one that the configuration names.
func (s *Source) Marks() (names []string) {
	if s.Table == nil || !s.IsCustom() || s.PresetMarks {
		return nil
	}
	m, _ := s.mark()
	for i := range s.Table.Columns {
		if name := s.Table.Columns[i].Name; buffer.LooksMark(name) && name != m.column {
			names = append(names, name)
		}
	}
	return names
}

// Stays reports whether the configuration marks the rows of a custom table, and does not delete them. column is the one that it
// proposes; "" for a preset's.
func (s *Source) Stays() (column string, stays bool) {
	m, ok := s.mark()
	return m.column, ok || s.PresetMarks
}

// mark returns the first column that says by its name and type when, or whether, a row was sent.
func (s *Source) mark() (mark, bool) {
	if s.Table == nil || !s.IsCustom() || s.Preset != "" || s.Table.Unsuitable() != "" {
		return mark{}, false
	}
	for i := range s.Table.Columns {
		if m, ok := s.markBy(&s.Table.Columns[i]); ok {
			return m, true
		}
	}
	return mark{}, false
}

func (s *Source) markBy(c *introspect.Column) (mark, bool) {
	// The value of a status is not known, and a NOT NULL time is not NULL before.
	isTime := strings.HasSuffix(strings.ToLower(c.Name), "at") && !c.NotNull
	name := identifier(c.Name)
	switch {
	case !buffer.LooksMark(c.Name):
	case isTime && s.Driver == "postgres" && c.Type == "timestamp with time zone":
		return mark{c.Name, name + " IS NULL", "now()"}, true
	case isTime && s.Driver == "postgres" && c.Type == "timestamp without time zone":
		return mark{c.Name, name + " IS NULL", "now() AT TIME ZONE 'UTC'"}, true
	case isTime && s.Driver == "sqlite" && !c.Integer() && c.Type != "blob" && c.Type != "real":
		return mark{c.Name, name + " IS NULL", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"}, true
	case s.Driver == "postgres" && c.Type == "boolean":
		return mark{c.Name, name + " IS NOT TRUE", "true"}, true
	}
	return mark{}, false
}

// writeMark names the rows that are events, and what they are marked with.
func (s *Source) writeMark(w *writer) {
	m, ok := s.mark()
	if !ok {
		return
	}
	w.comment(3, "Only rows that are not marked as sent in "+m.column+" are events. A row that was delivered stays, and is marked. "+
		"To delete it instead, remove done and mark.")
	w.line(3, "where: "+quoted(m.where))
	w.line(3, "done: mark")
	w.line(3, "mark: {"+scalar(m.column)+": "+quoted(m.value)+"}")
}

// quoted is SQL as a YAML value.
func quoted(sql string) string { return "'" + strings.ReplaceAll(literal(sql), "'", "''") + "'" }

// addMarkIndex adds the index of the rows that are events.
func (s *Source) addMarkIndex(add func(why, sql string)) {
	m, ok := s.mark()
	if !ok {
		return
	}
	key, named := s.Table.Key[0], identifier(s.Table.Name+"_unsent")+" "
	if s.Driver == "postgres" {
		named = "CONCURRENTLY "
		if cursor := s.Table.Cursor(); cursor != "" && !s.Table.Column(key).Integer() {
			key = cursor
		}
	}
	add("so that no claim reads the rows that were sent", "CREATE INDEX "+named+"ON "+tableName(s.Driver, s.Table)+
		" ("+identifier(key)+") WHERE "+m.where)
}
