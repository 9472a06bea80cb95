package sqlite

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// No statement reads all of a custom table whose only index is its key.
func TestPlans_CustomTable(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"TEXT", "BLOB"} {
		url := "sqlite://" + filepath.Join(t.TempDir(), group+".db")
		if _, err := Migrate(t.Context(), url, SchemaConfig{Table: "customDB", Custom: true}); err != nil {
			t.Fatal(err)
		}
		b, err := Open(Config{URL: url, Table: "customDB", Pipeline: "orders", Custom: buffer.CustomTable{ID: "No", Project: "SELECT No AS id, '1' AS payload FROM customDB WHERE group_id = ?"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := b.db.ExecContext(t.Context(), "CREATE TABLE customDB (No INTEGER PRIMARY KEY, created_at DATETIME, group_id "+group+")"); err != nil {
			t.Fatal(err)
		}
		for name, statement := range map[string]string{
			"pick": pickCustomSQL, "load": loadCustomSQL, "stamp": stampCustomSQL, "rows": rowsCustomSQL, "delete": deleteCustomSQL, "regroup": regroupCustomSQL,
			"openPart": openPartSQL, "countBacklog": countBacklogSQL, "status": statusSQL, "openReplayed": openReplayedSQL, "pickReplay": pickReplayCustomSQL,
		} {
			var steps []string
			err := b.begin(t.Context(), b.db, nil, func(tx transaction) (err error) {
				steps, err = planSteps(tx.rows(t.Context(), "EXPLAIN QUERY PLAN "+statement, make([]any, 25)...))
				return err
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, step := range steps {
				if strings.HasPrefix(step, "SCAN customDB") || strings.HasPrefix(step, "SCAN e") || strings.Contains(step, "TEMP B-TREE") || strings.HasPrefix(step, "MATERIALIZE customDB") {
					t.Errorf("%s, group_id %s: %q", name, group, steps)
				}
			}
		}
	}
}
