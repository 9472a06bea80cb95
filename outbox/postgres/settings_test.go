package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// TestTransactions_Settings: a transaction has its settings and no others, whether a pooler lends the session to others, so that
// the relay must leave nothing there, or the session keeps some.
func TestTransactions_Settings(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	if _, err := Migrate(t.Context(), direct, SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	const (
		restored = ` "$user", public/on/auto/on/on/on`
		found    = ` pg_catalog, pg_temp/on/auto/on/on/on`
		batch    = ` pg_catalog, pg_temp/on/force_generic_plan/off/off/off`
	)
	for name, c := range map[string]struct{ url, after string }{
		"direct":    {direct, "15s/30s/10s/off" + batch},
		"PgBouncer": {testserver.PgBouncer(t, direct), "0/0/0/on" + restored},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := Open(Config{URL: c.url, Pipeline: "orders", Connections: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := b.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, tx := range []struct {
				begin pg.Step
				want  string
			}{
				{pg.ReadTx(pg.ShortTimeout), "15s/30s/10s/off" + found},
				{b.db.WriteTx(pg.BulkTimeout), "1min/30s/40s/off" + found},
				{b.db.WriteTx(pg.ShortTimeout, "lock_timeout", "700"), "15s/30s/700ms/off" + found},
				{b.db.WriteTx(pg.ShortTimeout, "synchronous_commit", "off", "enable_seqscan", "off"), "15s/30s/10s/off pg_catalog, pg_temp/off/auto/off/on/on"},
				{b.db.OwnPathTx(pg.ShortTimeout), "15s/30s/10s/off" + restored},
				{b.db.UserTx(pg.ShortTimeout, "public, pg_temp"), "15s/30s/10s/off public, pg_temp/on/auto/on/on/on"},
				{b.db.BatchTx(pg.ShortTimeout), "15s/30s/10s/off" + batch},
				{b.db.BatchTx(time.Second, "synchronous_commit", "off"), "1s/30s/666ms/off pg_catalog, pg_temp/off/force_generic_plan/off/off/off"},
			} {
				if got := b.settings(t, tx.begin); got != tx.want {
					t.Errorf("in a transaction: %q, want %q", got, tx.want)
				}
				if got := b.settings(t, pg.Step{SQL: "SELECT 1"}); got != c.after {
					t.Errorf("after it: %q, want %q", got, c.after)
				}
			}
			// One round trip without BEGIN is a transaction too.
			var got []string
			err = b.db.RoundTrip(t.Context(), []pg.Step{pg.ReadTx(pg.ShortTimeout), {SQL: settingsSQL, Row: func(v [][]byte) error {
				got = append(got, string(v[0]))
				return nil
			}}})
			if diff := cmp.Diff([]string{"15s/30s/10s/off" + found}, got); diff != "" || err != nil {
				t.Errorf("%s, %v", diff, err)
			}
			if _, err := b.Blockers(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := b.MissingPrivileges(t.Context(), buffer.SupervisorPolicy{TerminateAfter: time.Hour}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTransactions_Begin: what a transaction resets when it begins is reset although it sets nothing.
func TestTransactions_Begin(t *testing.T) {
	t.Parallel()
	b, err := Open(Config{URL: testserver.Postgres(t), Pipeline: "orders", Connections: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var calls []string
	step := func(name string, s pg.Step) pg.Step {
		s.Row = func([][]byte) error {
			calls = append(calls, name)
			return nil
		}
		return s
	}
	err = b.db.Transact(t.Context(), step("begins", b.db.BatchTx(pg.ShortTimeout)), step("reads", pg.Step{SQL: "SELECT 1"}), pg.Commit, pg.Begin,
		step("begins again", b.db.BatchTx(pg.ShortTimeout)), step("divides", pg.Step{SQL: "SELECT 1/0"}), step("never", b.db.BatchTx(pg.ShortTimeout)))
	if pg.Code(err) != "22012" {
		t.Errorf("error %v, want a division by zero", err)
	}
	if diff := cmp.Diff([]string{"begins", "reads", "begins again"}, calls); diff != "" {
		t.Error(diff)
	}
}

const settingsSQL = `
SELECT concat_ws('/', current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),
                 current_setting('jit')) || ' ' || concat_ws('/', current_setting('search_path'), current_setting('synchronous_commit'),
                 current_setting('plan_cache_mode'), current_setting('enable_seqscan'), current_setting('enable_bitmapscan'), current_setting('enable_sort'))`

// settings are those in a transaction that begins so.
func (b *Buffer) settings(t *testing.T, begin pg.Step) string {
	t.Helper()
	var got []string
	err := b.db.Transact(t.Context(), begin, pg.Step{SQL: settingsSQL, Row: func(v [][]byte) error {
		got = append(got, string(v[0]))
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(got, "; ")
}
