package buffer_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestSplitTable(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"outbox_events":             {"", "outbox_events"},
		"Shop.Events":               {"Shop", "Events"},
		`"Odd.Table"`:               {"", "Odd.Table"},
		`"my schema"."Odd.Table"`:   {"my schema", "Odd.Table"},
		`shop."a ""quoted"" table"`: {"shop", `a "quoted" table`},
		`"shop".events`:             {"shop", "events"},
		`Shop.user's events`:        {"Shop", "user's events"},
		`it's odd.we"ird 'events'`:  {"it's odd", `we"ird 'events'`},
		`"".x`:                      {"", "x"},
		`"ünïcode"."таблица событий"`: {"ünïcode", "таблица событий"},
	} {
		schema, table, ok := buffer.SplitTable(name)
		if !ok || schema != want[0] || table != want[1] {
			t.Errorf("%s: got %q, %q, %v", name, schema, table, ok)
		}
	}
	for _, name := range []string{`"open`, `"a"b`, `"a"."b`, `a."b"c`, `"a""`} {
		if schema, table, ok := buffer.SplitTable(name); ok {
			t.Errorf("%s: got %q, %q", name, schema, table)
		}
	}
}

func FuzzSplitTable(f *testing.F) {
	f.Add("a", `b"."`)
	f.Fuzz(func(t *testing.T, schema, table string) {
		s, n, ok := buffer.SplitTable(buffer.QuoteName(schema) + "." + buffer.QuoteName(table))
		if !ok || s != schema || n != table {
			t.Errorf("%q and %q become %q and %q, %v", schema, table, s, n, ok)
		}
	})
}
