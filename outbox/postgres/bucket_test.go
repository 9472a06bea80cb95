package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestTakeToken_Privileges: tokens are taken in a database whose transactions are
// SERIALIZABLE by default, by a role with no more than its privileges on a table in
// another schema. Without them the error names them.
func TestTakeToken_Privileges(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "CREATE SCHEMA relay")
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "public.own_events", Schema: "relay"})
	check(t, err)
	const others = "own_events, relay.outbox_batches, relay.outbox_dead_letters, relay.outbox_buffers, relay.outbox_relays"
	url := p.asRole(t, "relay_", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+others, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public", "GRANT USAGE ON SCHEMA relay")
	take := func(url string) (time.Duration, error) {
		b, err := postgres.Open(postgres.Config{URL: url, Table: "public.own_events", Schema: "relay", Pipeline: "own"})
		check(t, err)
		defer func() { check(t, b.Close()) }()
		return b.TakeToken(t.Context(), "own", 1, time.Hour)
	}
	_, err = take(url)
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "GRANT SELECT, INSERT, UPDATE, DELETE ON relay.outbox_rates") {
		t.Errorf("without privileges: %v", err)
	}
	url = p.asRole(t, "relay2_", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+others+", relay.outbox_rates", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public", "GRANT USAGE ON SCHEMA relay")
	f.Exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$")
	wait, err := take(url)
	check(t, err)
	again, err := take(url)
	check(t, err)
	if wait != 0 || again < 59*time.Minute || again > time.Hour {
		t.Errorf("waits of %v and %v, want none and an hour", wait, again)
	}
}

// TestTakeToken_MissingTable by migrate, whose versions say that it is there.
func TestTakeToken_MissingTable(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "DROP TABLE outbox_rates")
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	_, err = f.Buffer.TakeToken(t.Context(), "orders", 10, time.Second)
	check(t, err)
}

// TestTakeToken_PgBouncer: in transaction mode several processes draw from one bucket,
// and the settings of a token's transaction do not stay on a pooled connection.
func TestTakeToken_PgBouncer(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	p.fixture(t, "outbox_events", "orders")
	pooled := testserver.PgBouncer(t, p.url)
	const each = 10
	waits := make(chan time.Duration, 3*each)
	var group sync.WaitGroup
	began := time.Now()
	for range 3 {
		b, err := postgres.Open(postgres.Config{URL: pooled, Pipeline: "orders"})
		check(t, err)
		t.Cleanup(func() { check(t, b.Close()) })
		group.Go(func() {
			for range each {
				wait, err := b.TakeToken(t.Context(), "orders", 1, time.Hour)
				if err != nil {
					t.Error(err)
				}
				waits <- wait
			}
		})
	}
	group.Wait()
	close(waits)
	took := time.Since(began)
	seen := map[time.Duration]bool{}
	for wait := range waits {
		// Each hour once, less what went by since the first token.
		hour := (wait + took).Truncate(time.Hour)
		if seen[hour] || wait > hour {
			t.Errorf("a wait of %v after %v, want each hour once", wait, took)
		}
		seen[hour] = true
	}
	if len(seen) != 3*each {
		t.Errorf("%d different hours, want %d", len(seen), 3*each)
	}
	conn, err := pgx.Connect(t.Context(), pooled)
	check(t, err)
	defer func() { check(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	var commit string
	check(t, conn.QueryRow(t.Context(), "SHOW synchronous_commit", pgx.QueryExecModeSimpleProtocol).Scan(&commit))
	if commit != "on" {
		t.Errorf("synchronous_commit is %s for the next client", commit)
	}
}
