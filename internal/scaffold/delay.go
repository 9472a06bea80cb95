package scaffold

import (
	"slices"
	"strings"

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
	case s.Driver == "sqlite": // has times in columns of every type
		if _, span := buffer.LooksSpan(c.Name); span {
			return "a time"
		}
		return ""
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

// dueCondition returns the condition for rows whose time in a column is over; "" for a number. A timestamp without time zone is compared in UTC if the database's
// zone is another one, which is zone.
func (s *Source) dueCondition(c *introspect.Column, zone string) (condition string) {
	name := identifier(c.Name)
	switch {
	case s.Driver == "sqlite" && (c.Integer() || c.Type == "real"), c.Integer(): // in seconds or milliseconds
		return ""
	case s.Driver == "sqlite":
		condition = "julianday(" + name + ") <= julianday('now')"
	case c.Type == "timestamp without time zone" && zone != "":
		condition = name + " <= now() AT TIME ZONE 'UTC'"
	case strings.HasPrefix(c.Type, "timestamp"):
		condition = name + " <= now()"
	case c.Type == "date":
		condition = name + " <= CURRENT_DATE"
	}
	if condition != "" && !c.NotNull {
		condition = name + " IS NULL OR " + condition
	}
	return condition
}

// Due returns what to do to keep rows until the time in a column: the condition for source.where. zone is the database's, unless that is UTC.
func (s *Source) Due(column, zone string) string {
	condition := s.dueCondition(s.Table.Column(column), zone)
	m, marked := s.mark()
	switch {
	case condition == "":
		return "name the condition as source.where"
	case marked:
		return "set source.where: " + m.where + " AND (" + condition + ")"
	}
	return "name the condition as source.where, such as " + condition
}

// LocalDelay returns a warning about a column that says when a row may be sent, and may hold UTC although the database's zone is another one; "" if it does not.
func (s *Source) LocalDelay(column, zone string) string {
	if c := s.Table.Column(column); zone == "" || c.Type != "timestamp without time zone" {
		return ""
	}
	return " It has no time zone, and the database's is " + zone + ": that compares it with the time in UTC, as many frameworks write it. If rows hold local time, write now() instead of now() AT TIME ZONE 'UTC'."
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
		if s.Driver == "sqlite" {
			add("so that no look for delayed events reads the whole table", buffer.SQLiteDelayedIndex(identifier(s.Table.Name+"_delayed"), tableName(s.Driver, s.Table), name))
			return
		}
		add("so that no look for delayed events reads the whole table", "CREATE INDEX CONCURRENTLY ON "+tableName(s.Driver, s.Table)+" ("+name+") WHERE "+name+" IS NOT NULL")
	}
}
