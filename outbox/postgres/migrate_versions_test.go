package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// A role that may create tables in its own schema only can migrate; one that may not gets the GRANT.
func TestMigrate_OwnSchema(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	for _, statement := range []string{
		"REVOKE CREATE ON SCHEMA public FROM PUBLIC", // as it is from PostgreSQL 15 on
		`CREATE SCHEMA outbox`, `CREATE SCHEMA "order"`,
	} {
		_, err := p.pool.Exec(t.Context(), statement)
		check(t, err)
	}
	plain := postgres.SchemaConfig{Table: "outbox.outbox_events"}
	apart := postgres.SchemaConfig{Table: "outbox.shop_events", Schema: "order"}

	poor := p.asRole(t, "poor_")
	for _, c := range []struct {
		config postgres.SchemaConfig
		says   []string
	}{
		{postgres.SchemaConfig{}, []string{"GRANT USAGE, CREATE ON SCHEMA public TO poor_"}},
		{plain, []string{"GRANT USAGE, CREATE ON SCHEMA outbox TO poor_"}},
		{apart, []string{`GRANT USAGE, CREATE ON SCHEMA "order" TO poor_`, "GRANT USAGE, CREATE ON SCHEMA outbox TO poor_"}},
	} {
		_, err := postgres.Migrate(t.Context(), poor, c.config)
		if !errors.Is(err, buffer.ErrNotReady) {
			t.Errorf("%v: got %v", c.config, err)
			continue
		}
		for _, says := range c.says {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("expected %q in: %v", says, err)
			}
		}
	}

	owner := p.asRole(t, "owner_", "GRANT USAGE, CREATE ON SCHEMA outbox", `GRANT USAGE, CREATE ON SCHEMA "order"`)
	for _, c := range []postgres.SchemaConfig{plain, apart} {
		applied, err := postgres.Migrate(t.Context(), owner, c)
		check(t, err)
		if len(applied) == 0 {
			t.Errorf("%v: nothing was applied", c)
		}
		applied, err = postgres.Migrate(t.Context(), owner, c)
		check(t, err)
		if len(applied) != 0 {
			t.Errorf("%v: applied again: %v", c, applied)
		}
		b, err := postgres.Open(postgres.Config{URL: owner, Table: c.Table, Schema: c.Schema, Pipeline: "orders"})
		check(t, err)
		check(t, b.Check(t.Context()))
		check(t, b.Close())
	}
	_, err := postgres.Migrate(t.Context(), poor, plain)
	if !errors.Is(err, buffer.ErrNotReady) {
		t.Errorf("tables of another role: got %v", err)
	}
	schemas := query(t, p.pool, "SELECT schemaname::text FROM pg_tables WHERE tablename LIKE '%\\_migrations' ORDER BY 1", pgx.RowTo[string])
	if diff := cmp.Diff([]string{"order", "outbox"}, schemas); diff != "" {
		t.Errorf("version tables (-want +got):\n%s", diff)
	}
}

// The version table is found in any schema of the search path.
func TestMigrate_FindsVersionTable(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	p.fixture(t, "outbox_events", "orders")
	user := query(t, p.pool, "SELECT current_user::text", pgx.RowTo[string])[0]
	_, err := p.pool.Exec(t.Context(), "CREATE SCHEMA "+pgx.Identifier{user}.Sanitize())
	check(t, err)
	applied, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	if len(applied) != 0 {
		t.Errorf("applied again: %v", applied)
	}
	tables := query(t, p.pool, "SELECT schemaname || '.' || tablename FROM pg_tables WHERE tablename LIKE '%\\_migrations'", pgx.RowTo[string])
	if diff := cmp.Diff([]string{"public.outbox_events_migrations"}, tables); diff != "" {
		t.Errorf("version tables (-want +got):\n%s", diff)
	}
}

// The error names a database that does not answer in time.
func TestStatus_DatabaseDoesNotAnswer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // only the kernel accepts
	check(t, err)
	defer func() { check(t, silent.Close()) }()
	b, err := postgres.Open(postgres.Config{URL: "postgres://app@" + silent.Addr().String() + "/app?sslmode=disable&connect_timeout=1", Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = b.Status(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "PostgreSQL at "+silent.Addr().String()+" did not answer in time") {
		t.Errorf("got %v", err)
	}
}

func TestMigrate_PoolParameters(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t) + "?pool_max_conns=3&pool_max_conn_lifetime=1m"
	_, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{})
	check(t, err)
	check(t, checkError(t, url, ""))
	_, err = postgres.Migrate(t.Context(), url+"&pool_min_conns=many", postgres.SchemaConfig{})
	if err == nil || strings.Contains(err.Error(), "secret-") {
		t.Errorf("pool_min_conns=many: got %v", err)
	}
}
