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

// TestTransactions_Settings: the relay's settings last for one transaction, through a
// transaction pooler too, and do not stay in the session.
func TestTransactions_Settings(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	if _, err := Migrate(t.Context(), direct, SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]string{"direct": direct, "PgBouncer": testserver.PgBouncer(t, direct)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := Open(Config{URL: url, Pipeline: "orders", Connections: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := b.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				begin pg.Step
				want  string
			}{
				{pg.ReadTx(pg.ShortTimeout), "15s 30s 10s off"},
				{b.db.WriteTx(pg.BulkTimeout), "1min 30s 40s off"},
				{b.db.WriteTx(pg.ShortTimeout, "lock_timeout", "700"), "15s 30s 700ms off"},
			} {
				if got := b.bounds(t, c.begin); got != c.want {
					t.Errorf("in a transaction: %q, want %q", got, c.want)
				}
				if got := b.bounds(t, pg.Step{SQL: "SELECT 1"}); got != "0 0 0 on" {
					t.Errorf("after it: %q", got)
				}
			}
			// One round trip without BEGIN is a transaction too.
			var got []string
			err = b.db.RoundTrip(t.Context(), []pg.Step{pg.ReadTx(pg.ShortTimeout), {SQL: boundsSQL, Row: func(v [][]byte) error {
				got = append(got, string(v[0]))
				return nil
			}}})
			if diff := cmp.Diff([]string{"15s 30s 10s off"}, got); diff != "" || err != nil {
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

const boundsSQL = `
SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),
                 current_setting('lock_timeout'), current_setting('jit'))`

// bounds are the settings in a transaction that begins so.
func (b *Buffer) bounds(t *testing.T, begin pg.Step) string {
	t.Helper()
	var got []string
	err := b.db.Transact(t.Context(), begin, pg.Step{SQL: boundsSQL, Row: func(v [][]byte) error {
		got = append(got, string(v[0]))
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(got, "; ")
}
