package scaffold

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// createdNames are names of columns that say when a row was inserted, in lower case and without separators; the first one is
// preferred.
var createdNames = []string{
	"createdat", "insertedat", "occurredat", "recordedat", "enqueuedat", "emittedat", "raisedat", "addedat", "createdon", "insertedon", "occurredon",
	"created", "inserted", "createdtime", "creationtime", "creationdate", "createddate", "eventtime", "eventtimestamp", "timestamp", "ts", "time",
}

// createdColumn returns the column that says when an event was inserted; "" if there is none.
func createdColumn(driver string, t *introspect.Table) string {
	fits := func(c *introspect.Column) bool {
		if driver == "sqlite" { // the type of a column says little of its values
			return c.Type != "blob" && !c.JSON()
		}
		return strings.HasPrefix(c.Type, "timestamp")
	}
	if c := t.Column("created_at"); c != nil && fits(c) {
		return c.Name
	}
	for _, name := range createdNames {
		i := slices.IndexFunc(t.Columns, func(c introspect.Column) bool {
			return strings.TrimSuffix(bareName(c.Name), "utc") == name && fits(&c)
		})
		if i >= 0 {
			return t.Columns[i].Name
		}
	}
	return ""
}

// writeCreated names the column that ages are measured by. The relay finds created_at itself.
func (s *Source) writeCreated(w *writer) {
	switch created := createdColumn(s.Driver, s.Table); created {
	case "created_at":
	case "":
		w.comment(3, "The column that says when a row was inserted. Without one, the age of waiting events is unknown.")
		w.line(3, "#created_at: inserted_at")
	default:
		w.comment(3, "When a row was inserted: the age of waiting events is measured by it.")
		w.line(3, "created_at: "+scalar(created))
	}
}

// LocalTime returns the column that says when a row was inserted if it may hold local time, and the statement that gives it a time zone. A
// timestamp without time zone is read as UTC, and now() writes it in the database's zone.
func (s *Source) LocalTime(d *introspect.Database) (column, fix string) {
	if s.Table == nil || !s.IsCustom() || d.Zone == "" {
		return "", ""
	}
	c := s.Table.Column(createdColumn(s.Driver, s.Table))
	if c == nil || c.Type != "timestamp without time zone" || c.InUTC {
		return "", ""
	}
	name := identifier(c.Name)
	return c.Name, "ALTER TABLE " + tableName(s.Driver, s.Table) + " ALTER COLUMN " + name + " TYPE timestamptz USING " + name + " AT TIME ZONE " + text(d.Zone)
}

// AddCreated returns what adds a column that says when a row was inserted.
func (s *Source) AddCreated() string {
	if s.Driver == "sqlite" { // which adds no column with such a default
		return "recreate the table with created_at TEXT DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ'))"
	}
	// Not ADD COLUMN ... DEFAULT now(), which says of the rows that wait that they are new.
	alter := "ALTER TABLE " + tableName(s.Driver, s.Table)
	return alter + " ADD COLUMN created_at timestamptz; " + alter + " ALTER created_at SET DEFAULT now()"
}

// Times returns the columns that hold times and suggest nothing else by their names. None of them says by its name that it is the time of the insert.
func (s *Source) Times() (names []string) {
	for i := range s.Table.Columns {
		if c := &s.Table.Columns[i]; buffer.Suggests(c.Name) == buffer.SuggestsNothing && !buffer.LooksWait(c.Name) && (strings.HasPrefix(c.Type, "timestamp") || s.Driver == "sqlite" && strings.HasSuffix(strings.ToLower(c.Name), "_at")) {
			names = append(names, c.Name)
		}
	}
	return names
}

// HasAges reports whether a column says when an event was inserted.
func (s *Source) HasAges() bool {
	return s.Table == nil || !s.IsCustom() || createdColumn(s.Driver, s.Table) != ""
}
