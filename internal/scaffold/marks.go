package scaffold

import (
	"regexp"
	"slices"
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

// Notice is a warning about a column, and the lines to add to the source if it applies; nil if these are not known.
type Notice struct {
	Text  string
	Lines []string
	// Column is the one whose values it is about; "" for other warnings.
	Column string
}

// inspected reports whether the meaning of the columns is guessed from their names.
func (s *Source) inspected() bool {
	return s.Table != nil && s.IsCustom() && s.Preset == "" && s.Table.Unsuitable() == ""
}

// Marks returns warnings about the columns of a custom table that look like the marks of a loop, but for the one that the configuration names.
func (s *Source) Marks() (all []Notice) {
	if s.Table == nil || !s.IsCustom() || s.PresetMarks {
		return nil
	}
	m, stays := s.mark()
	for i := range s.Table.Columns {
		c := &s.Table.Columns[i]
		if !buffer.LooksMark(c.Name) || c.Name == m.column {
			continue
		}
		text := "Warning: " + c.Name + " looks like the mark of a loop that sends. The relay does not look at it"
		if !stays {
			text += ": rows that were sent before would be sent again"
		}
		text += ". If it says which rows are events, "
		lines := s.example(c, m)
		change := "add to source"
		if m.column != "" {
			change = "set in source"
		}
		switch _, fits := s.markBy(c); {
		case lines == nil:
			text += "name the condition as source.where (docs/tables.md)."
		case fits:
			text += change + ":"
		default:
			text += change + ", with your values:"
		}
		all = append(all, Notice{Text: text, Lines: lines})
	}
	return all
}

// example returns the lines of a source for a column that looks like a mark, next to one that the configuration names; nil if its values
// are not known at all.
func (s *Source) example(c *introspect.Column, named mark) []string {
	if !s.inspected() {
		return nil
	}
	m, ok := s.markBy(c)
	name := identifier(c.Name)
	switch state := buffer.Suggests(c.Name) == buffer.SuggestsState; {
	case ok:
	case state && c.Text():
		m = stateMark(c)
	case !isTime(c, s.Driver) && c.Integer():
		m = mark{c.Name, name + " = 0", "1"}
	case s.Driver == "sqlite" && c.Type == "boolean" && !state:
		m = mark{c.Name, name + " IS NOT TRUE", "true"}
	default:
		return nil
	}
	return s.linesOf(m, named)
}

// linesOf are the lines of a source for a mark, next to one that the configuration names.
func (*Source) linesOf(m, named mark) []string {
	if named.column != "" {
		return []string{"where: " + quoted(named.where+" AND "+m.where), "mark: {" + named.pair() + ", " + m.pair() + "}"}
	}
	return m.lines()
}

// stateMark is an example for a column whose values say what became of a row: those that a row has at first are in its DEFAULT.
func stateMark(c *introspect.Column) mark {
	first := "'new'"
	if found := textDefault.FindStringSubmatch(c.Default); found != nil {
		first = found[1]
	}
	return mark{c.Name, identifier(c.Name) + " = " + first, "'sent'"}
}

// textDefault matches the default value of a column that is a text.
var textDefault = regexp.MustCompile(`^('[^'\\]+')(::[a-z_". ]+)?$`)

// Ends returns warnings about the columns of a custom table that look like those of rows that were given up or withdrawn.
func (s *Source) Ends() (all []Notice) {
	if !s.inspected() {
		return nil
	}
	var live []string
	m, stays := s.mark()
	if stays {
		live = append(live, m.where)
	}
	text := "Warning: rows with "
	for i := range s.Table.Columns {
		c := &s.Table.Columns[i]
		if buffer.Suggests(c.Name) != buffer.SuggestsEnd {
			continue
		}
		name, condition := identifier(c.Name), ""
		switch {
		case isTime(c, s.Driver) && !c.NotNull && c.Default == "":
			condition = name + " IS NULL"
		case c.Type == "boolean", s.Driver == "sqlite" && c.Integer():
			condition = name + " IS NOT TRUE"
		default:
			continue
		}
		live = append(live, condition)
		all = append(all, Notice{Text: c.Name})
	}
	if all == nil {
		return nil
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Text
	}
	line := "where: " + quoted(strings.Join(live, " AND "))
	return []Notice{{Text: text + strings.Join(names, " or ") + " look as if they had been given up or withdrawn. They are events, too, and are sent. " +
		"If they are none, set in source:", Lines: []string{line}}}
}

// Stays reports whether the configuration marks the rows of a custom table, and does not delete them. column is the one that it
// proposes; "" for a preset's.
func (s *Source) Stays() (column string, stays bool) {
	m, ok := s.mark()
	return m.column, ok || s.PresetMarks
}

// mark returns the column that says by its name and type when, or whether, a row was sent: the user's, or the first one if the table looks
// like one of events.
func (s *Source) mark() (mark, bool) {
	if !s.inspected() {
		return mark{}, false
	}
	for _, wanted := range []buffer.Suggestion{buffer.SuggestsMark, buffer.SuggestsOutcome} {
		for i := range s.Table.Columns {
			c := &s.Table.Columns[i]
			if buffer.Suggests(c.Name) != wanted || s.Mark != "" && s.Mark != c.Name || s.Mark == "" && !s.confirms(wanted) {
				continue
			}
			if m, ok := s.markBy(c); ok {
				return m, true
			}
		}
	}
	return mark{}, false
}

// Doubtful returns the first column that may be a mark, or may be the application's own, because nothing else in the table looks like
// events; "" if there is none.
func (s *Source) Doubtful() string {
	if _, ok := s.mark(); ok || !s.inspected() {
		return ""
	}
	for i := range s.Table.Columns {
		c := &s.Table.Columns[i]
		if _, ok := s.markBy(c); ok {
			return c.Name
		}
	}
	return ""
}

var (
	namedForEvents = regexp.MustCompile(`(?i)outbox|event|message|queue|job|notification`)
	// surely are columns of events, in lower case and without separators; mayBe are those that other tables have, too.
	surely = regexp.MustCompile(`^(topic|event|eventtype|eventname|messagetype|eventdata|payload|aggregate|aggregatetype|aggregateid)$`)
	mayBe  = regexp.MustCompile(`^(type|kind|body|data|message|content|headers)$`)
)

// confirms reports whether the table looks like one of events. For an outcome such as published_at a body and a type do not suffice: articles
// have them.
func (s *Source) confirms(what buffer.Suggestion) bool {
	if namedForEvents.MatchString(s.Table.Name) {
		return true
	}
	points := 0
	for i := range s.Table.Columns {
		switch name := bareName(s.Table.Columns[i].Name); {
		case surely.MatchString(name):
			return true
		case mayBe.MatchString(name):
			points++
		case buffer.LooksDelay(name):
			points += 2
		}
	}
	return what == buffer.SuggestsMark && points > 1
}

// isTime reports whether a column holds times. On SQLite its type says little, so its name has to.
func isTime(c *introspect.Column, driver string) bool {
	if driver == "postgres" {
		return c.Type == "date" || strings.HasPrefix(c.Type, "timestamp")
	}
	return !c.Integer() && c.Type != "blob" && c.Type != "real" && timed.MatchString(c.Name)
}

var timed = regexp.MustCompile(`(?i)(at|on|date|time|timestamp|ts|utc)$|^date`)

// markBy returns how a column marks rows. A time that is NOT NULL or has a DEFAULT is set before a row is sent, and the values of a status are
// not known.
func (s *Source) markBy(c *introspect.Column) (mark, bool) {
	if what := buffer.Suggests(c.Name); what != buffer.SuggestsMark && what != buffer.SuggestsOutcome {
		return mark{}, false
	}
	name := identifier(c.Name)
	switch {
	case s.Driver == "postgres" && c.Type == "boolean" && slices.Contains([]string{"", "false"}, c.Default):
		return mark{c.Name, name + " IS NOT TRUE", "true"}, true
	case !isTime(c, s.Driver) || c.NotNull || c.Default != "":
		return mark{}, false
	case s.Driver == "sqlite":
		return mark{c.Name, name + " IS NULL", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"}, true
	case c.Type == "timestamp with time zone":
		return mark{c.Name, name + " IS NULL", "now()"}, true
	case c.Type == "timestamp without time zone":
		return mark{c.Name, name + " IS NULL", "now() AT TIME ZONE 'UTC'"}, true
	case c.Type == "date":
		return mark{c.Name, name + " IS NULL", "CURRENT_DATE"}, true
	}
	return mark{}, false
}

// lines are those of a source that marks rows.
func (m mark) lines() []string {
	return []string{"where: " + quoted(m.where), "done: mark", "mark: {" + m.pair() + "}"}
}

// pair is the column and its value in source.mark.
func (m mark) pair() string { return scalar(m.column) + ": " + quoted(m.value) }

// writeMark names the rows that are events, and what they are marked with.
func (s *Source) writeMark(w *writer) {
	m, ok := s.mark()
	if !ok {
		return
	}
	guess := " That is guessed from its name."
	if s.Mark != "" {
		guess = ""
	}
	w.comment(3, "Only rows that are not marked as sent in "+m.column+" are events."+guess+" A row that was delivered, or that became a dead letter, stays, and is marked. "+
		"To delete it instead, remove done and mark.")
	for _, line := range m.lines() {
		w.line(3, line)
	}
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
