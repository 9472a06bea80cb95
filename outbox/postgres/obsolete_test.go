package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestMigrate_RefusesUnreleasedTables(t *testing.T) {
	t.Parallel()
	const (
		fix  = "outbox_events_migrations; then run relay migrate -c relay.yaml"
		drop = "DROP TABLE IF EXISTS outbox_batches, outbox_dead_letters, outbox_events_migrations"
	)
	for name, c := range map[string]struct {
		old       string
		check     bool // Check reads tables only
		says, fix string
		repair    string
	}{
		"Ledger":      {"ALTER TABLE outbox_batches RENAME unfinished_leases TO starts", true, "outbox_batches has column starts, which only an unreleased version of the relay made; expected unfinished_leases: when ", fix, drop},
		"DeadLetters": {"ALTER TABLE outbox_dead_letters RENAME notified_at TO told_at", true, "outbox_dead_letters has column told_at, which only an unreleased version of the relay made; expected notified_at: when ", fix, drop},
		"Versions":    {"INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (2, true), (5, true)", false, "table public.outbox_events_migrations records version 5; expected 1", fix, drop},
		"Trigger": {
			`CREATE FUNCTION outbox_ring() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER outbox_ring AFTER INSERT ON outbox_events EXECUTE FUNCTION outbox_ring()`,
			false, "table public.outbox_events has trigger outbox_ring, which only an unreleased version", ": DROP TRIGGER outbox_ring ON public.outbox_events", "DROP TRIGGER outbox_ring ON outbox_events",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			p.fixture(t, "outbox_events", "orders")
			exec := func(sql string) {
				t.Helper()
				_, err := p.pool.Exec(t.Context(), sql)
				check(t, err)
			}
			exec(c.old)
			migrate := func() error {
				_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
				return err
			}
			refused := map[string]error{"migrate": migrate()}
			if c.check {
				refused["check"] = checkError(t, p.url, "")
				b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders"})
				check(t, err)
				defer func() { check(t, b.Close()) }()
				_, refused["claim"] = b.Claim(t.Context(), 10, lease)
			}
			for what, err := range refused {
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.fix) {
					t.Errorf("%s: got %v; expected %q", what, err, c.says)
				}
			}
			exec(c.repair)
			check(t, migrate())
			check(t, checkError(t, p.url, ""))
		})
	}
}
