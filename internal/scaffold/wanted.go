package scaffold

import (
	"fmt"

	"github.com/outboxrelay/relay/internal/introspect"
)

// Warnings are about what the API finds an object by: that it is taken from a column of
// another name, or that nobody can see whether a payload has it.
func (d *Draft) Warnings() []string {
	wants := known(d.Sink).wants
	switch {
	case wants == "":
		return nil
	case d.Source.IsOwn() && d.Source.Preset == "":
		return propose(d.Source.Driver, d.Source.Table, wants).warnings
	}
	return []string{unseen(wants)}
}

// unseen is said where payloads are the application's: what they have is not looked at.
func unseen(wants string) string {
	return "Each payload has to have " + wants + ": an event without one is refused, and becomes a dead letter."
}

// wanted is the pair that the payload has to have and the row t has not, where a row at
// hand has a column of that name or, failing that, one like it; "" when there is nothing
// to add.
func (b *proposer) wanted(of string, t *introspect.Table) string {
	if b.wants == "" || t.Column(b.wants) != nil {
		return ""
	}
	type row struct {
		name, from string
		t          *introspect.Table
		ref        *introspect.Ref // by which it is joined; nil: it is there already
	}
	rows := []row{{name: of, t: t}}
	refer := func(from string, t *introspect.Table) {
		for i := range t.Refs {
			if ref := &t.Refs[i]; ref != b.parent {
				rows = append(rows, row{"w", from, ref.Table, ref})
			}
		}
	}
	if of != "e" {
		rows = append(rows, row{name: "e", t: b.t})
	}
	refer(of, t)
	if of != "e" {
		refer("e", b.t)
	}
	var (
		found *introspect.Column
		best  introspect.Likeness
		where row
	)
	for _, r := range rows {
		if c, like := r.t.Alike(b.wants); c != nil && (found == nil || like < best) {
			found, best, where = c, like, r
		}
	}
	if found == nil {
		b.warnings = append(b.warnings, fmt.Sprintf("The payload has to have %s, and no column is called like that: add it to source.project, or change "+
			"sink.request. Until then each event is refused, and becomes a dead letter.", b.wants))
		return ""
	}
	if best != introspect.Same {
		b.warnings = append(b.warnings, fmt.Sprintf("The payload has to have %s: %s of %s is sent as that, because of its name.", b.wants, found.Name, where.t.FullName()))
	}
	if where.ref != nil {
		b.joins = append(b.joins, b.join("JOIN", where.from, where.name, where.ref))
		b.admit(where.ref)
	}
	return text(b.wants) + ", " + where.name + "." + ident(b.driver, found.Name)
}
