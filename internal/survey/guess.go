package survey

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

// plurals are what a table of such rows could be called.
func plurals(one string) []string {
	all := []string{one + "s", one, one + "es"}
	if stem, ok := strings.CutSuffix(one, "y"); ok {
		all = append(all, stem+"ies")
	}
	return all
}
