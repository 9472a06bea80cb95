package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/internal/scaffold"
)

const (
	relaysTable = "outbox_events"
	// mostListed is how many tables are shown to choose from: a screen of them.
	mostListed = 15
)

// askTable finds the table of events.
func (a *app) askTable(q *questions, f *initFlags, d *scaffold.Draft, found *introspect.Database) error {
	offered := offer(found)
	if q.on() && f.table == "" {
		fmt.Fprintf(q.out, "\n%s", tableList(offered, terminalWidth(a.stderr)))
		if more := fitting(found) - len(offered); more > 0 {
			fmt.Fprintf(q.out, "and %d more, which you may name\n", more)
		}
	}
	return q.ask(question{
		flag: "--table", given: f.table, proposed: proposed(offered, q.on()),
		text: "The table of events, by its number or name",
	}, func(answer string) error {
		name := answer
		if n, err := strconv.Atoi(answer); err == nil && f.table == "" && n >= 1 && n <= len(offered) {
			name = offered[n-1].name
		}
		t := found.Find(name)
		switch {
		case t == nil && name != relaysTable:
			return usage("there is no table %s%s, %s was expected", name, lettersDiffer(found, name), expectedTable(offered))
		case t != nil && t.Unfit() != "" && t.Kind() != introspect.Relays && f.preset == "":
			return usage("the table %s cannot hold events: %s", name, t.Unfit())
		}
		s := scaffold.Source{Driver: d.Source.Driver, URL: d.Source.URL, Name: name, Table: t, Preset: f.preset}
		if t != nil {
			s.Name = t.FullName()
		}
		if t != nil && t.Kind() == introspect.Known && f.preset == "" {
			s.Preset = t.Shape()
		}
		if err := q.confirm(&s); err != nil {
			return err
		}
		d.Source = s
		return nil
	})
}

var errOther = errors.New("then another table")

// confirm asks about a table that does not look like one of events.
func (q *questions) confirm(s *scaffold.Source) error {
	if s.Table == nil || s.Table.Kind() != introspect.Plain {
		return nil
	}
	text := "Each row of " + s.Name + " is deleted once it was delivered. Is that a table of events only?"
	ok, err := q.sure(text)
	if err != nil {
		return err
	}
	if !ok {
		return errOther
	}
	return nil
}

// offered is a table to choose.
type offered struct {
	name, what string
	kind       introspect.Kind
}

// offer lists the tables that could be buffers, the fittest first, and the relay's own.
func offer(found *introspect.Database) []offered {
	var all []offered
	own := offered{relaysTable, "the relay's own, for migrate to make", introspect.Relays}
	there := found.Find(relaysTable) != nil
	for _, t := range found.Tables {
		if t.Kind() == introspect.Unfit || len(all) == mostListed {
			continue
		}
		if !there && t.Kind() == introspect.Plain { // it stands before those that may be anything
			all, there = append(all, own), true
		}
		all = append(all, offered{t.FullName(), describe(t), t.Kind()})
	}
	if !there {
		all = append(all, own)
	}
	return all
}

func fitting(found *introspect.Database) (n int) {
	for _, t := range found.Tables {
		if t.Kind() != introspect.Unfit {
			n++
		}
	}
	return n
}

// describe says what one has to know of a table to choose it.
func describe(t *introspect.Table) string {
	switch t.Kind() {
	case introspect.Relays:
		return "the relay's own shape"
	case introspect.Known:
		return "the shape of preset " + t.Shape()
	case introspect.Stamped:
		if len(t.Refs) > 0 {
			return "has a group_id, refers to " + t.Refs[0].Table.FullName()
		}
		return "has a group_id"
	}
	return "would need a column group_id"
}

func tableList(all []offered, most int) string {
	rows := make([][]string, 0, len(all))
	for i, o := range all {
		rows = append(rows, []string{strconv.Itoa(i + 1), o.name, o.what})
	}
	return columns(rows, most)
}

// proposed is the table that an empty answer means: on a terminal one that is plainly
// meant, if there is one; else the relay's own.
func proposed(all []offered, asked bool) string {
	if asked {
		for i, o := range all {
			if o.kind == introspect.Stamped || o.kind == introspect.Known {
				return strconv.Itoa(i + 1)
			}
		}
		return strconv.Itoa(1 + slices.IndexFunc(all, func(o offered) bool { return o.kind == introspect.Relays }))
	}
	return relaysTable
}

func expectedTable(all []offered) string {
	names := make([]string, 0, len(all))
	for _, o := range all[:min(len(all), 5)] {
		names = append(names, o.name)
	}
	return strings.Join(names, " or ")
}

// lettersDiffer finds a table whose name differs by upper and lower case, or by its
// schema, alone.
func lettersDiffer(found *introspect.Database, name string) string {
	for _, t := range found.Tables {
		if strings.EqualFold(t.FullName(), name) || strings.EqualFold(t.Name, name) {
			return " (did you mean " + t.FullName() + "?)"
		}
	}
	return ""
}
