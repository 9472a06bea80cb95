package scaffold

import (
	"slices"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// delays returns the columns of a custom table whose names suggest that a row must not be sent before the time in them.
func (s *Source) delays() (all []*introspect.Column) {
	if s.Table == nil || !s.IsCustom() || s.Preset != "" || s.Table.Unsuitable() != "" {
		return nil
	}
	for i := range s.Table.Columns {
		if c := &s.Table.Columns[i]; buffer.LooksDelay(c.Name) {
			all = append(all, c)
		}
	}
	return all
}

// unfit returns why source.available_at cannot name the column; "" if it can.
func (s *Source) unfit(c *introspect.Column) string {
	key := s.Table.Column(s.Table.Key[0])
	switch {
	case s.Driver != "postgres":
		return "PostgreSQL"
	case c.Type != "timestamp with time zone":
		return "a timestamptz"
	case !key.Integer() && s.Table.Cursor() == "":
		return "an integer that grows, as the primary key or source.cursor"
	}
	return ""
}

// delay returns the first column that source.available_at can name; nil if there is none.
func (s *Source) delay() *introspect.Column {
	all := s.delays()
	if i := slices.IndexFunc(all, func(c *introspect.Column) bool { return s.unfit(c) == "" }); i >= 0 {
		return all[i]
	}
	return nil
}

// Delay returns the column that delays events in the configuration; "" if there is none.
func (s *Source) Delay() string {
	if c := s.delay(); c != nil {
		return c.Name
	}
	return ""
}

// Undelayed returns the first column whose name suggests that it delays events if none does so in the configuration, and what
// source.available_at would need; "" if there is none.
func (s *Source) Undelayed() (column, needs string) {
	if all := s.delays(); all != nil && s.delay() == nil {
		return all[0].Name, s.unfit(all[0])
	}
	return "", ""
}

// writeDelay names the column that delays events.
func (s *Source) writeDelay(w *writer) {
	if c := s.delay(); c != nil {
		w.comment(3, "When a row may be sent: not before this time. NULL means at once. The column needs an index.")
		w.line(3, "available_at: "+scalar(c.Name))
	}
}

// addDelayIndex adds the index by which delayed events are found.
func (s *Source) addDelayIndex(add func(why, sql string)) {
	if c := s.delay(); c != nil && !c.Indexed {
		name := identifier(c.Name)
		add("so that no look for delayed events reads the whole table", "CREATE INDEX CONCURRENTLY ON "+tableName(s.Driver, s.Table)+" ("+name+") WHERE "+name+" IS NOT NULL")
	}
}
