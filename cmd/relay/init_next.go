package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/outboxrelay/relay/internal/introspect"
	"github.com/outboxrelay/relay/internal/scaffold"
)

// whatNext says what was written, what to do in the database and the environment, and
// the commands that come then.
func whatNext(d *scaffold.Draft, found *introspect.Database) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is written: from %s\nto %s\n", d.File, d.Source.Name, d.Sink.Text)
	for _, warning := range warnings(d) {
		fmt.Fprintf(&b, "\n%s\n", wrapped(warning))
	}
	if add := d.Source.AddCursor(); add != "" {
		fmt.Fprintf(&b, "\n%s\n\n    %s;\n", wrapped("Its primary key is a uuid, which does not grow: each claim reads all of the table, in no order, and the more "+
			"of it the longer another session holds an old snapshot. If you may add a column, write cursor: seq below source after"), add)
	}
	first := "First"
	if steps := d.Source.Steps(found); len(steps) > 0 {
		fmt.Fprintf(&b, "\n%s, in the database:\n", first)
		first = "Then"
		for _, step := range steps {
			fmt.Fprintf(&b, "\n  -- %s\n  %s\n", step.Why, step.SQL)
		}
	}
	var unset []scaffold.Variable
	for _, v := range d.Variables() {
		if value, set := os.LookupEnv(v.Name); !set || v.Value != "" && v.Value != value {
			unset = append(unset, v)
		}
	}
	if len(unset) > 0 {
		fmt.Fprintf(&b, "\n%s, in the environment:\n\n", first)
		for _, v := range unset {
			fmt.Fprintf(&b, "  export %s=...   # %s\n", v.Name, v.What)
		}
	}
	made := "make the relay's own tables"
	if d.Source.IsOwn() && d.Source.Driver == "postgres" {
		made += ", in the schema " + scaffold.Schema
	}
	file := d.FileArgument()
	fmt.Fprintf(&b, "\nThen:\n\n  relay migrate -c %s   # %s\n  relay preview -c %s   # see what the next events would send\n  relay run -c %s       # send\n",
		file, made, file, file)
	return b.String()
}

// warnings are about what the API has to find in a payload, and what a table of the
// user's own is not made for.
func warnings(d *scaffold.Draft) []string {
	var all []string
	for _, warning := range d.Warnings() {
		all = append(all, "Look: "+warning)
	}
	t := d.Source.Table
	if t == nil || !d.Source.IsOwn() {
		return all
	}
	all = append(all, "Each row of "+d.Source.Name+" is an event, and is deleted once it was delivered.")
	if len(t.ReferredBy) > 0 {
		all = append(all, "Look: "+strings.Join(t.ReferredBy, ", ")+" refer to it, and may keep its rows from being deleted, or go with them.")
	}
	if t.Reuses {
		all = append(all, "Look: SQLite hands an id out again after a delete, and a sink would take the new event for a duplicate: make the table anew with "+t.Key[0]+" INTEGER PRIMARY KEY AUTOINCREMENT.")
	}
	return all
}
