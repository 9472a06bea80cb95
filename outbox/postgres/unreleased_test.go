package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestUnreleasedTables(t *testing.T) {
	t.Parallel()
	const fix = "outbox_events_migrations, then run relay migrate -c relay.yaml"
	for name, c := range map[string]struct {
		old   string
		check bool // Check looks at tables, not at versions
		says  string
	}{
		"Ledger":      {"ALTER TABLE outbox_batches RENAME unfinished_leases TO starts", true, "outbox_batches has the column starts of an unreleased version; expected unfinished_leases: when "},
		"DeadLetters": {"ALTER TABLE outbox_dead_letters RENAME notified_at TO told_at", true, "outbox_dead_letters has the column told_at of an unreleased version; expected notified_at: when "},
		"Versions":    {"INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (2, true), (5, true)", false, "table outbox_events_migrations records version 5; expected 1"},
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
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), fix) {
					t.Errorf("%s: got %v; expected %q", what, err, c.says)
				}
			}
			exec("DROP TABLE outbox_batches, outbox_dead_letters, outbox_events_migrations")
			check(t, migrate())
			check(t, checkError(t, p.url, ""))
		})
	}
}
