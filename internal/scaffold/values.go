package scaffold

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Probe is a condition on the values of a column, and the notice if rows meet it.
type Probe struct {
	Condition string
	notice    func(rows string) Notice
}

// Probes returns what the values of a custom table may say although the names of its columns do not: that they delay or mark rows, or that events
// have no payload.
func (d *Draft) Probes() (all []Probe) {
	s := &d.Source
	if !s.inspected() {
		return nil
	}
	created, payload := createdColumn(s.Driver, s.Table), s.payload(d.hasNATS())
	for i := range s.Table.Columns {
		c := &s.Table.Columns[i]
		switch {
		case payload != nil && payload.Name == c.Name && !c.NotNull:
			all = append(all, Probe{identifier(c.Name) + " IS NULL", func(rows string) Notice {
				return Notice{Text: "Warning: " + rows + " have no " + c.Name + ", which is the payload. An event without payload becomes a dead letter. " +
					"If they are events, send something else for them, such as coalesce(e." + identifier(c.Name) + ", '{}') AS payload; otherwise exclude them by source.where."}
			}})
		case c.Name == created, slices.Contains(s.Table.Key, c.Name), c.Name == "group_id":
		default:
			all = append(all, s.later(c)...)
			all = append(all, s.sent(c)...)
			if payload == nil && c.Text() && !isSecret(s.Table, c.Name) {
				all = append(all, s.encoded(c))
			}
		}
	}
	return all
}

// payload returns the column that the projection sends as the payload; nil if there is none.
func (s *Source) payload(nats bool) *introspect.Column {
	p := proposal{driver: s.Driver, t: s.Table, created: createdColumn(s.Driver, s.Table)}
	return p.payloadColumn(nats)
}

// Sample returns the question to the database for these probes.
func (s *Source) Sample(all []Probe) introspect.Sample {
	sample := introspect.Sample{Table: tableName(s.Driver, s.Table), Key: identifier(s.Table.Key[0])}
	if s.Table.Schema == "public" { // which is not in the search path
		sample.Table = "public." + sample.Table
	}
	if m, ok := s.mark(); ok {
		sample.Where = m.where
	}
	for _, one := range all {
		sample.Conditions = append(sample.Conditions, one.Condition)
	}
	return sample
}

// Notices returns those of the probes that rows meet.
func Notices(all []Probe, counts introspect.Counts) (notices []Notice) {
	for i, one := range all {
		if counts.Of[i] > 0 {
			notices = append(notices, one.notice(fmt.Sprintf("%d of the newest %d rows", counts.Of[i], counts.Rows)))
		}
	}
	return notices
}

// later returns the probes of a column that may say when a row is sent, but not by its name.
func (s *Source) later(c *introspect.Column) []Probe {
	name := identifier(c.Name)
	_, isSpan := buffer.LooksSpan(c.Name)
	number := c.Integer() || s.Driver == "sqlite" && c.Type == "real"
	switch {
	case isSpan && number:
		return []Probe{{name + " > 0", s.early(c, "a "+c.Name+" greater than 0")}}
	case isSpan && c.Type == "interval":
		return []Probe{{name + " > interval '0'", s.early(c, "a "+c.Name+" greater than 0")}}
	case buffer.LooksDelay(c.Name), !buffer.MayDelay(c.Name): // which is known by its name
		return nil
	}
	condition := ""
	switch ahead := strconv.Itoa(buffer.UnixAhead(c.Name)); {
	case number && ahead == "0":
		return nil
	case s.Driver == "postgres" && number: // a Unix time in seconds or milliseconds, up to ten years ahead
		const now = "extract(epoch FROM now())"
		condition = name + " - " + now + " BETWEEN 60 AND " + ahead + " OR " + name + " / 1000 - " + now + " BETWEEN 60 AND " + ahead
	case s.Driver == "sqlite" && number:
		const now = "CAST(strftime('%s', 'now') AS INTEGER)"
		condition = name + " - " + now + " BETWEEN 60 AND " + ahead + " OR " + name + " / 1000 - " + now + " BETWEEN 60 AND " + ahead
	case s.Driver == "sqlite":
		condition = "typeof(" + name + ") = 'text' AND " + name + " GLOB '[0-9][0-9][0-9][0-9]-*' AND julianday(" + name + ") > max(julianday('now'), julianday('now', 'localtime')) + 1.0 / 1440"
	case c.Type == "timestamp with time zone":
		condition = name + " > now() + interval '1 minute'"
	case c.Type == "timestamp without time zone": // local time or UTC
		condition = name + " > greatest(localtimestamp, now() AT TIME ZONE 'UTC') + interval '1 minute'"
	case c.Type == "date":
		condition = name + " > current_date + 1"
	default:
		return nil
	}
	return []Probe{{condition, s.early(c, "a "+c.Name+" in the future")}}
}

// early returns the notice that rows which have something are sent at once.
func (s *Source) early(c *introspect.Column, what string) func(rows string) Notice {
	return func(rows string) Notice {
		n := Notice{Column: c.Name, Text: "Warning: " + rows + " have " + what + ", and are sent at once. If it delays rows, "}
		if s.unfit(c) == "" && s.delay() == nil {
			n.Text += "add to source (relay doctor then names the index that it needs):"
			n.Lines = []string{"available_at: " + scalar(c.Name)}
		} else {
			n.Text += "name the condition as source.where (docs/enqueue.md#delayed-events)."
		}
		return n
	}
}

// sent returns the probes of a column that may be the mark of a loop, but not by its name.
func (s *Source) sent(c *introspect.Column) []Probe {
	isWord := c.Text() || s.Driver == "postgres" && strings.Contains(c.Type, ".") // or an enum
	if !isWord || buffer.LooksMark(c.Name) || !buffer.MayMark(c.Name) {
		return nil
	}
	cast := "lower(" + identifier(c.Name) + ")"
	if s.Driver == "postgres" {
		cast = "lower(" + identifier(c.Name) + "::text)"
	}
	return []Probe{{cast + " IN (" + buffer.DoneValues + ")", func(rows string) Notice {
		m, _ := s.mark()
		change := "add to source"
		if m.column != "" {
			change = "set in source"
		}
		return Notice{
			Column: c.Name,
			Text: "Warning: " + rows + " look as if a loop had sent them, by the values of " + c.Name + ". The relay does not look at it, and would send them again. If it says which rows are events, " +
				change + ", with your values:",
			Lines: s.linesOf(stateMark(c), m),
		}
	}}}
}

// encoded returns the probe of a text column of a row that is sent as a whole: JSON in it becomes a string.
func (s *Source) encoded(c *introspect.Column) Probe {
	name := identifier(c.Name)
	condition, object := name+`::text ~ '^\s*(\{\s*("|\})|\[\s*[\[{"\]])'`, "add || jsonb_build_object("+text(c.Name)+", e."+name+"::jsonb) to the payload"
	if s.Driver == "sqlite" {
		condition, object = "substr(ltrim("+name+"), 1, 1) IN ('{', '[') AND json_valid("+name+")", "write json(e."+name+") in place of e."+name
	}
	return Probe{condition, func(rows string) Notice {
		return Notice{Column: c.Name, Text: "Warning: " + rows + " have JSON in the text column " + c.Name + ". It is sent as a string that contains JSON. To send it as JSON, " + object +
			" in source.project; a row in which it is no JSON then becomes a dead letter."}
	}}
}
