package sqlite

import (
	"math"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRows: a row that was kept as JSON is the row again, whatever SQLite can hold.
func TestRows(t *testing.T) {
	t.Parallel()
	value := rapid.OneOf(
		rapid.Just(any(nil)),
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }),
		rapid.Map(rapid.SampledFrom([]float64{0, 1, -1e300, math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64}), func(v float64) any { return v }),
		rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return append([]byte{}, v...) }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return string(v) }),
		rapid.SampledFrom([]any{`{"$blob": "00"}`, "<&>", "\u2028", "a\x00b", "12", "1.0", "null"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.String(), value).Draw(t, "row")
		var (
			columns []string
			values  []any
		)
		for column, value := range want {
			columns, values = append(columns, column), append(values, value)
		}
		text, err := encodeRow(columns, values)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeRow(text)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v, want %#v, from %s", got, want, text)
		}
	})
}

func TestRowsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "[]", `{"a": true}`, `{"a": [1]}`, `{"a": {"$blob": "zz"}}`, `{"a": {"b": "00"}}`, `{"a": 99999999999999999999}`} {
		if row, err := decodeRow(text); err == nil {
			t.Errorf("%s was read as %v", text, row)
		}
	}
}

// TestPlansOwn: no statement of ours about events walks over a table of the user's own,
// with no index there but its key. See TestPlansShadow for projections.
func TestPlansOwn(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"TEXT", "BLOB"} {
		url := "sqlite://" + filepath.Join(t.TempDir(), group+".db")
		if _, err := Migrate(t.Context(), url, SchemaConfig{Table: "theirs", Own: true}); err != nil {
			t.Fatal(err)
		}
		b, err := Open(Config{URL: url, Table: "theirs", Pipeline: "orders", Own: buffer.CustomTable{ID: "No", Project: "SELECT No AS id, '1' AS payload FROM theirs WHERE group_id = ?"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := b.db.ExecContext(t.Context(), "CREATE TABLE theirs (No INTEGER PRIMARY KEY, created_at DATETIME, group_id "+group+")"); err != nil {
			t.Fatal(err)
		}
		for name, statement := range map[string]string{
			"pick": pickOwnSQL, "ids": idsOfOwnSQL, "stamp": stampOwnSQL, "rows": rowsOfOwnSQL, "delete": deleteOwnSQL, "move": moveOwnSQL,
			"openPart": openPartSQL, "look": lookSQL, "status": statusSQL, "replayLedger": replayLedgerSQL, "pickReplay": pickOwnReplaySQL,
		} {
			var steps []string
			err := b.transact(t.Context(), func(tx transaction) (err error) {
				steps, err = planSteps(tx.rows(t.Context(), "EXPLAIN QUERY PLAN "+statement, make([]any, 20)...))
				return err
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, step := range steps {
				if strings.HasPrefix(step, "SCAN theirs") || strings.HasPrefix(step, "SCAN e") || strings.Contains(step, "TEMP B-TREE") || strings.HasPrefix(step, "MATERIALIZE theirs") {
					t.Errorf("%s, group_id %s: %q", name, group, steps)
				}
			}
		}
	}
}
