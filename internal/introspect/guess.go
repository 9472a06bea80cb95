package introspect

import (
	"slices"
	"strings"
)

// guess adds what looks like a foreign key and is none: many applications declare few,
// or drop them on purpose. A column lead_id refers to the table lead, leads, ... beside
// its own, if the types are the same.
func (d *Database) guess(t *Table) {
	for _, c := range t.Columns {
		base, ok := strings.CutSuffix(strings.ToLower(c.Name), "_id")
		if !ok || base == "" || c.Name == group || slices.ContainsFunc(t.Refs, func(r Ref) bool { return r.Column == c.Name }) {
			continue
		}
		for _, name := range plurals(base) {
			i := slices.IndexFunc(d.Tables, func(o *Table) bool {
				return o != t && o.Schema == t.Schema && strings.EqualFold(o.Name, name) && len(o.Key) == 1 && o.Column(o.Key[0]).Type == c.Type
			})
			if i >= 0 {
				parent := d.Tables[i]
				t.Refs = append(t.Refs, Ref{Column: c.Name, Table: parent, To: parent.Key[0], Guessed: true})
				break
			}
		}
	}
}

// Likeness is how like a column's name is to the one that is looked for, the nearest
// first.
type Likeness int

// The likenesses: email itself; Email and e_mail; contact_email; email_address.
const (
	Same Likeness = iota
	Spelt
	Ends
	Has
)

// Alike finds the column whose name is most like name; nil when there is none. What is
// only like it has to be text.
func (t *Table) Alike(name string) (found *Column, best Likeness) {
	if c := t.Column(name); c != nil {
		return c, Same
	}
	bare := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
	want := bare(name)
	for i := range t.Columns {
		c := &t.Columns[i]
		var like Likeness
		switch has := bare(c.Name); {
		case !c.Text():
			continue
		case has == want:
			like = Spelt
		case strings.HasSuffix(has, want):
			like = Ends
		case strings.Contains(has, want):
			like = Has
		default:
			continue
		}
		if found == nil || like < best {
			found, best = c, like
		}
	}
	return found, best
}

// plurals are what a table of such rows could be called.
func plurals(one string) []string {
	all := []string{one + "s", one, one + "es"}
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		all = append(all, stem+"ies")
	}
	return all
}
