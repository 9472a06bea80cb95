package introspect

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Declared foreign keys come first. A reference is inferred only if a table has the name and the type fits.
func TestOpen_SQLiteRefs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `
		CREATE TABLE companies (id INTEGER PRIMARY KEY);
		CREATE TABLE leads (id INTEGER PRIMARY KEY);
		CREATE TABLE visits (id TEXT PRIMARY KEY);
		CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, company_id INTEGER, visit_id INTEGER, missing_id INTEGER,
			lead_id INTEGER REFERENCES leads, group_id TEXT)`); err != nil {
		t.Fatal(err)
	}
	d, err := Open(t.Context(), "sqlite", "sqlite://"+path)
	if err != nil {
		t.Fatal(err)
	}
	events := d.Find("events")
	var got []string
	for _, r := range events.Refs {
		name := r.Column + " " + r.Table.Name + "." + r.To
		if r.Inferred {
			name += " inferred"
		}
		got = append(got, name)
	}
	if diff := cmp.Diff([]string{"lead_id leads.id", "company_id companies.id inferred"}, got); diff != "" {
		t.Error(diff)
	}
	if d.Tables[0] != events || events.Kind() != Grouped || d.Find("visits").Kind() != Unsuitable {
		t.Errorf("the most suitable table is %s, events are %v, visits are %v", d.Tables[0].Name, events.Kind(), d.Find("visits").Kind())
	}
}

// No reference is guessed from a column that identifies the row itself, whatever its name.
func TestInferForeignKeys_OwnKey(t *testing.T) {
	t.Parallel()
	orders := &Table{Name: "orders", Key: []string{"id"}, Columns: []Column{{Name: "id", Type: "bigint"}}}
	for name, try := range map[string]struct {
		key    []string
		column Column
		want   int
	}{
		"key":           {[]string{"orderId"}, Column{Name: "orderId", Type: "bigint"}, 0},
		"sequence":      {[]string{"id"}, Column{Name: "order_id", Type: "bigint", Generated: true}, 0},
		"part of a key": {[]string{"order_id", "line"}, Column{Name: "order_id", Type: "bigint"}, 1},
		"no key":        {[]string{"id"}, Column{Name: "order_id", Type: "bigint"}, 1},
	} {
		items := &Table{Name: "items", Key: try.key, Columns: []Column{try.column}}
		d := &Database{Tables: []*Table{orders, items}}
		d.inferForeignKeys(items)
		if len(items.Refs) != try.want {
			t.Errorf("%s: the references are %v, want %d", name, items.Refs, try.want)
		}
	}
}
