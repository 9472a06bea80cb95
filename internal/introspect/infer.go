package introspect

import (
	"slices"
	"strings"
)

// inferForeignKeys adds references that no foreign key declares: a column lead_id or leadId refers to the table
// lead or leads in the same schema, if the types are equal. Many applications declare no foreign keys. A column that is the key, or whose
// values the database generates, identifies the row itself.
func (d *Database) inferForeignKeys(t *Table) {
	for _, c := range t.Columns {
		base, ok := strings.CutSuffix(strings.ToLower(c.Name), "_id")
		if camel, is := strings.CutSuffix(c.Name, "Id"); is && !ok {
			base, ok = strings.ToLower(camel), true
		}
		if !ok || base == "" || c.Name == groupID || c.Generated || len(t.Key) == 1 && t.Key[0] == c.Name || slices.ContainsFunc(t.Refs, func(r Ref) bool { return r.Column == c.Name }) {
			continue
		}
		names := []string{base + "s", base, base + "es", strings.TrimSuffix(base, "y") + "ies"}
		i := slices.IndexFunc(d.Tables, func(o *Table) bool {
			return o != t && o.Schema == t.Schema && slices.Contains(names, strings.ToLower(o.Name)) &&
				len(o.Key) == 1 && o.Column(o.Key[0]).Type == c.Type
		})
		if i >= 0 {
			t.Refs = append(t.Refs, Ref{Column: c.Name, Table: d.Tables[i], To: d.Tables[i].Key[0], Inferred: true})
		}
	}
}
