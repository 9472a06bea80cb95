package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// asRole gives the URL's database a new role with a password and returns the URL
// for it. Roles belong to the whole server, so they are named after the database.
func (p *testDB) asRole(t *testing.T, name string, grants ...string) string {
	t.Helper()
	u, err := url.Parse(p.url)
	check(t, err)
	role := name + strings.ToLower(strings.TrimPrefix(u.Path, "/"))
	exec := func(statement string) {
		t.Helper()
		_, err := p.pool.Exec(context.Background(), statement)
		check(t, err)
	}
	exec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'pass-word'`)
	t.Cleanup(func() {
		exec(`DROP OWNED BY "` + role + `"`)
		exec(`DROP ROLE "` + role + `"`)
	})
	for _, g := range grants {
		exec(g + ` TO "` + role + `"`)
	}
	u.User = url.UserPassword(role, "pass-word")
	return u.String()
}

func checkError(t *testing.T, url, table string) error {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Table: table, Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	return b.Check(t.Context())
}

// TestCheck_Missing: the error names everything that is missing, and the command that fixes it.
func TestCheck_Missing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		table  string
		damage string
		says   []string
	}{
		"no tables": {
			damage: "DROP TABLE outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers",
			says: []string{
				"table outbox_events does not exist", "table outbox_batches does not exist",
				"table outbox_dead_letters does not exist", "relay migrate -c relay.yaml",
			},
		},
		"another table":  {table: "public.others", says: []string{`table public."others" does not exist`, "relay migrate"}},
		"another schema": {table: "shop.events", says: []string{`schema "shop" does not exist: CREATE SCHEMA "shop"`}},
		"two columns": {
			damage: "ALTER TABLE outbox_events DROP COLUMN headers; ALTER TABLE outbox_batches DROP COLUMN origins",
			says:   []string{"table public.outbox_events has no column headers: ALTER TABLE public.outbox_events ADD COLUMN IF NOT EXISTS headers json", "table public.outbox_batches has no column origins, which relay migrate adds: ALTER TABLE"},
		},
		"ledger unlogged": {
			damage: "ALTER TABLE outbox_batches SET UNLOGGED",
			says:   []string{"UNLOGGED", "ALTER TABLE public.outbox_batches SET LOGGED"},
		},
		"no sequence": {
			damage: "ALTER TABLE outbox_events ALTER id DROP IDENTITY",
			says:   []string{"column id of table public.outbox_events has no sequence"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			f := p.fixture(t, "outbox_events", "orders")
			if c.damage != "" {
				f.Exec(t, c.damage)
			}
			err := checkError(t, p.url, c.table)
			if !errors.Is(err, buffer.ErrNotReady) {
				t.Fatalf("got %v", err)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("no %q in %v", says, err)
				}
			}
		})
	}
}

// TestCheck_Privileges: the documented privileges are enough; the error names missing ones.
func TestCheck_Privileges(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")

	err := checkError(t, p.asRole(t, "poor_", "GRANT SELECT, INSERT, UPDATE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers"), "")
	if !errors.Is(err, buffer.ErrNotReady) {
		t.Fatalf("got %v", err)
	}
	for _, says := range []string{"may not DELETE on table public.outbox_events: GRANT DELETE ON public.outbox_events TO", "GRANT DELETE ON public.outbox_batches TO", "GRANT USAGE ON SEQUENCE public.outbox_events_id_seq TO"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("no %q in %v", says, err)
		}
	}

	relay := p.asRole(t, "relay_",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers, outbox_relays",
		"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public")
	application := newTestDB(t, p.asRole(t, "app_", "GRANT INSERT ON outbox_events"), p.opt)
	_, err = application.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}'), ('t', '{}'), ('t', '{}')")
	check(t, err)

	b, err := postgres.Open(postgres.Config{URL: relay, Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	backlog, err := b.CountBacklog(t.Context(), 10)
	check(t, err)
	if backlog.Unclaimed != 3 {
		t.Fatalf("%d events were counted", backlog.Unclaimed)
	}
	batch, err := b.Claim(t.Context(), 10, lease)
	check(t, err)
	ids := batch.IDs()
	check(t, b.Renew(t.Context(), batch, lease))
	check(t, b.Settle(t.Context(), batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]},
		{Verdict: buffer.Dead, IDs: ids[1:2], Error: "no"},
		{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID()},
	}))
	batch, err = testkit.TakeOver(t.Context(), b, lease)
	check(t, err)
	check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	_, err = b.Status(t.Context())
	check(t, err)
	if rows := f.Rows(t); len(rows) != 0 {
		t.Fatalf("%d rows are left", len(rows))
	}
}

// TestCheck_Unreachable: a wrong password, database, host or URL is named in the error,
// which never contains the password.
func TestCheck_Unreachable(t *testing.T) {
	t.Parallel()
	good, err := url.Parse(testserver.Postgres(t))
	check(t, err)
	with := func(change func(*url.URL)) string {
		u := *good
		change(&u)
		return u.String()
	}
	for name, c := range map[string]struct{ url, says string }{
		"password": {with(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "wrong-secret") }), "user and password in source.url"},
		"database": {with(func(u *url.URL) { u.Path = "/nowhere" }), "the database does not exist"},
		"port":     {with(func(u *url.URL) { u.Host = "127.0.0.1:1" }), "cannot reach PostgreSQL at 127.0.0.1:1"},
	} {
		err := checkError(t, c.url, "")
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: it does not say %q: %v", name, c.says, err)
		}
		if password, _ := good.User.Password(); strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "wrong-secret") {
			t.Errorf("%s: the password is shown: %v", name, err)
		}
	}
	_, err = postgres.Open(postgres.Config{URL: "postgres://user:pass-word@host:port/db", Pipeline: "orders"})
	if err == nil || strings.Contains(err.Error(), "pass-word") {
		t.Errorf("a URL of garbage: %v", err)
	}
}

// TestMigrate_Schema: the printed DDL run twice, a migration after it, and two
// concurrent migrations make the same tables and drop nothing.
func TestMigrate_Schema(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	ddl, err := postgres.Schema(postgres.SchemaConfig{})
	check(t, err)
	for range 2 {
		_, err := p.pool.Exec(t.Context(), ddl)
		check(t, err)
	}
	_, err = p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
	check(t, err)

	done := make(chan error, 4)
	for range cap(done) {
		go func() {
			_, err := postgres.Migrate(context.Background(), p.url, postgres.SchemaConfig{})
			done <- err
		}()
	}
	for range cap(done) {
		check(t, <-done)
	}
	applied, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	if len(applied) != 0 {
		t.Errorf("applied again: %v", applied)
	}
	check(t, checkError(t, p.url, ""))

	// A dropped table is made again, although its migration is recorded as applied.
	_, err = p.pool.Exec(t.Context(), "DROP TABLE outbox_dead_letters")
	check(t, err)
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	check(t, checkError(t, p.url, ""))
	var n int
	check(t, p.pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox_events").Scan(&n))
	if n != 1 {
		t.Errorf("%d events after migrating, want 1", n)
	}
}

// TestCheck_OtherNames: schemas and tables with names that have to be quoted.
func TestCheck_OtherNames(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), `CREATE SCHEMA "Shop"; CREATE SCHEMA "order"`)
	check(t, err)
	c := postgres.SchemaConfig{Table: "Shop.user's events", Schema: "order"}
	_, err = postgres.Migrate(t.Context(), p.url, c)
	check(t, err)
	_, err = postgres.Migrate(t.Context(), p.url, c)
	check(t, err)
	_, err = p.pool.Exec(t.Context(), `INSERT INTO "Shop"."user's events" (topic, payload) VALUES ('t', '{}')`)
	check(t, err)
	b, err := postgres.Open(postgres.Config{URL: p.url, Table: c.Table, Schema: c.Schema, Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	_, err = b.CountBacklog(t.Context(), 10)
	check(t, err)
	batch, err := b.Claim(t.Context(), 10, lease)
	check(t, err)
	_, err = b.Status(t.Context())
	check(t, err)
	check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

// TestCheck_NoSchema: a schema that is missing is named, by the check and by migrate, with the statement that makes it.
func TestCheck_NoSchema(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	c := postgres.SchemaConfig{Table: "Shop.events", Archive: "kept.archive"}
	b, err := postgres.Open(postgres.Config{URL: p.url, Table: c.Table, Archive: c.Archive, Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	const shop, kept = `schema "Shop" does not exist: CREATE SCHEMA "Shop"`, `schema "kept" does not exist: CREATE SCHEMA "kept"`
	expect := func(b *postgres.Buffer, says, makes string) {
		t.Helper()
		err := b.Check(t.Context())
		var missing interface{ Migrates() (string, bool) }
		if !errors.Is(err, buffer.ErrNotReady) || !strings.HasSuffix(err.Error(), "not ready: "+says) || !errors.As(err, &missing) {
			t.Fatalf("the check says %v", err)
		}
		if command, tables := missing.Migrates(); command != makes || !tables {
			t.Errorf("%s makes what is missing, with tables: %v", command, tables)
		}
	}
	expect(b, shop+"; "+kept, `CREATE SCHEMA "Shop"; CREATE SCHEMA "kept"`)
	_, err = postgres.Migrate(t.Context(), p.url, c)
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), shop+"; "+kept) {
		t.Errorf("migrate says %v", err)
	}
	_, err = p.pool.Exec(t.Context(), `CREATE SCHEMA "Shop"`)
	check(t, err)
	expect(b, kept, `CREATE SCHEMA "kept"`)
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	ledger, err := postgres.Open(postgres.Config{URL: p.url, Schema: "r_orders", Pipeline: "orders"})
	check(t, err)
	defer func() { check(t, ledger.Close()) }()
	expect(ledger, `schema "r_orders" does not exist: CREATE SCHEMA "r_orders"`, `CREATE SCHEMA "r_orders"`)
	_, err = p.pool.Exec(t.Context(), `CREATE SCHEMA kept`)
	check(t, err)
	if err = b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), `table "Shop"."events" does not exist: relay migrate`) {
		t.Errorf("the check says %v", err)
	}
	_, err = postgres.Migrate(t.Context(), p.url, c)
	check(t, err)
	check(t, b.Check(t.Context()))
}
