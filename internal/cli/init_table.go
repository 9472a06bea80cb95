package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/internal/scaffold"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	defaultTable = "outbox_events"
	// maxOffered is the number of tables in the list to choose from.
	maxOffered = 15
)

// offer is a table to choose.
type offer struct {
	name, what string
	kind       introspect.Kind
}

// askTable asks for the table of events.
func (a *app) askTable(q *questions, f *initFlags, d *scaffold.Draft, catalog *introspect.Database) error {
	offers := tableOffers(catalog)
	if q.enabled() && f.table == "" {
		rows := make([][]string, 0, len(offers))
		for i, o := range offers {
			rows = append(rows, []string{strconv.Itoa(i + 1), o.name, o.what})
		}
		fmt.Fprintf(q.out, "\n%s", columns(rows, terminalWidth(a.stderr)))
	}
	others := otherTables(catalog)
	if !q.enabled() && !f.yes && f.table == "" && len(others) > 0 {
		return usage("init asks questions on a terminal only; expected --table %s, or --table %s, the relay's own", strings.Join(others[:min(len(others), 5)], " or "), defaultTable)
	}
	return q.ask(question{
		flag: "--table", given: f.table, proposed: proposedTable(offers, q.enabled() || f.yes), text: "Table of events, by number or name",
	}, func(answer string) error {
		name := answer
		if n, err := strconv.Atoi(answer); err == nil && f.table == "" && n >= 1 && n <= len(offers) {
			name = offers[n-1].name
		}
		t := catalog.Find(name)
		switch {
		case t == nil && name != defaultTable:
			return unknownTable(catalog, offers, name)
		case t != nil && t.Unsuitable() != "" && t.Kind() != introspect.Relay && f.preset == "":
			return usage("table %s cannot hold events: %s; %s", name, t.Unsuitable(), wayOut(scaffold.FixTable(d.Source.Driver, t)))
		}
		s := scaffold.Source{Driver: d.Source.Driver, URL: d.Source.URL, Name: name, Table: t, Preset: f.preset}
		if t != nil {
			s.Name = t.FullName()
		}
		if t != nil && t.Kind() == introspect.Known && f.preset == "" {
			s.Preset = t.Preset()
		}
		s.PresetMarks = config.PresetMarks(s.Preset)
		if column := s.Doubtful(); column != "" {
			ok, err := q.propose(column + " may be the mark of a loop that sends, by its name: empty until the row was sent. Is it, and should the relay send only rows without it, and set it after delivery?")
			if err != nil {
				return err
			}
			if ok {
				s.Mark = column
			}
		}
		if t != nil && t.Kind() == introspect.Plain {
			ok, err := q.confirm(becomes(&s) + " Does the table hold nothing but events?")
			if err != nil {
				return err
			}
			if !ok {
				return errors.New("choose another table")
			}
		}
		d.Source = s
		if f.yes && f.table == "" {
			f.others = slices.DeleteFunc(others, func(name string) bool { return name == s.Name })
		}
		return nil
	})
}

// becomes says what becomes of the rows of a custom table.
func becomes(s *scaffold.Source) string {
	switch column, stays := s.Stays(); {
	case column != "":
		return "Each row of " + s.Name + " that is not marked as sent in " + column + " is an event, and the relay marks it after delivery, or as it becomes a dead letter."
	case stays:
		return "The relay marks each row of " + s.Name + " after delivery, as the preset says."
	}
	return "The relay deletes each row of " + s.Name + " after delivery."
}

// otherTables are the tables that may hold events, but for the default one.
func otherTables(catalog *introspect.Database) (names []string) {
	for _, t := range catalog.Tables {
		if name := t.FullName(); name != defaultTable && t.MayHoldEvents() {
			names = append(names, name)
		}
	}
	return names
}

// wayOut says what to do about a table that cannot hold events.
func wayOut(fix scaffold.Fix) string {
	own := "use the relay's own table (--table " + defaultTable + ")"
	if fix.What == "" {
		return own
	}
	text := fix.What + " and run init again, or " + own
	if fix.If != "" {
		text = fix.If + ", " + text
	}
	if fix.SQL != "" {
		text += " > " + fix.SQL
	}
	return text
}

// tableOffers lists the tables that can be buffers, the most suitable ones first, and the relay's own.
func tableOffers(catalog *introspect.Database) []offer {
	var all []offer
	own := offer{defaultTable, "the relay's own, created by migrate", introspect.Relay}
	listed := catalog.Find(defaultTable) != nil
	for _, t := range catalog.Tables {
		if t.Kind() == introspect.Unsuitable || len(all) == maxOffered {
			continue
		}
		if !listed && t.Kind() == introspect.Plain {
			all, listed = append(all, own), true
		}
		all = append(all, offer{t.FullName(), describeTable(t), t.Kind()})
	}
	if !listed {
		all = append(all, own)
	}
	return all
}

func describeTable(t *introspect.Table) string {
	switch t.Kind() {
	case introspect.Relay:
		return "the relay's own"
	case introspect.Known:
		return "preset " + t.Preset()
	case introspect.Grouped:
		if len(t.Refs) > 0 {
			return "has a group_id, refers to " + t.Refs[0].Table.FullName()
		}
		return "has a group_id"
	}
	return "would need a column group_id"
}

// proposedTable is the meaning of an empty answer: the first table that is clearly meant for events. Without a terminal or --yes it
// is the relay's own.
func proposedTable(offers []offer, propose bool) string {
	if !propose {
		return defaultTable
	}
	i := slices.IndexFunc(offers, func(o offer) bool { return o.kind == introspect.Grouped || o.kind == introspect.Known })
	if i < 0 {
		i = slices.IndexFunc(offers, func(o offer) bool { return o.kind == introspect.Relay })
	}
	if i < 0 { // the default name is that of another table
		i = slices.IndexFunc(offers, func(o offer) bool { return o.name == defaultTable })
	}
	return strconv.Itoa(max(i, 0) + 1)
}

// unknownTable reports a table that does not exist.
func unknownTable(catalog *introspect.Database, offers []offer, name string) error {
	if v := catalog.FindView(name); v != nil {
		return usage("%s is a view; expected a table, because the relay deletes the events that it has delivered", name)
	}
	near, all := "", make([]string, 0, len(catalog.Tables))
	for _, t := range catalog.Tables {
		all = append(all, t.FullName())
		if strings.EqualFold(t.FullName(), name) || strings.EqualFold(t.Name, name) {
			near = t.FullName()
		}
	}
	hint := ""
	if near = cmp.Or(near, buffer.NearestTable(name, all)); near != "" {
		hint = " (did you mean " + near + "?)"
	}
	const shown = 5
	names := make([]string, 0, len(offers))
	for _, o := range offers[:min(len(offers), shown)] {
		names = append(names, o.name)
	}
	expected := strings.Join(names, " or ")
	if len(offers) > shown {
		expected += ", among others"
	}
	return usage("table %s does not exist%s; expected %s", name, hint, expected)
}
