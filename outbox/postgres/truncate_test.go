package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// The application truncates its table, with a role that has no privilege on the ledger, and the ids begin again: the
// batches are deleted, so that no new event belongs to an old batch.
func TestTruncate_DeletesBatches(t *testing.T) {
	t.Parallel()
	for _, c := range []postgres.SchemaConfig{{}, {Table: "Order Events"}, {Table: "shop.events", Schema: "ledgers"}} {
		t.Run(c.Schema+"."+c.Table, func(t *testing.T) {
			t.Parallel()
			truncated(t, c)
		})
	}
}

func truncated(t *testing.T, c postgres.SchemaConfig) {
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	ctx := t.Context()
	exec := func(statement string) {
		t.Helper()
		_, err := p.pool.Exec(ctx, statement)
		check(t, err)
	}
	exec("CREATE SCHEMA shop")
	exec("CREATE SCHEMA ledgers")
	_, err := postgres.Migrate(ctx, p.url, c)
	check(t, err)
	table, ledger, quoted := "outbox_events", "outbox_batches", c.Table
	switch {
	case c.Schema != "":
		table, ledger = "shop.events", "ledgers.outbox_batches"
	case c.Table != "":
		table = `"Order Events"`
	default:
		quoted = table
	}
	open := func(owner string) *postgres.Buffer {
		b, err := postgres.Open(postgres.Config{
			URL: p.url, Table: quoted, Schema: c.Schema, Pipeline: "orders", Owner: owner, Claim: buffer.ClaimRange,
		})
		check(t, err)
		t.Cleanup(func() { check(t, b.Close()) })
		return b
	}
	buf, second := open("first"), open("second")
	insert := func() {
		exec("INSERT INTO " + table + " (topic, payload) SELECT 't', '{}' FROM generate_series(1, 10)")
	}
	claim := func(limit int) *buffer.Lease {
		t.Helper()
		b, err := buf.Claim(ctx, limit, lease)
		check(t, err)
		return b
	}
	insert()
	leased, waiting := claim(3), claim(3)
	check(t, buf.Settle(ctx, waiting, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: waiting.GroupID}}))
	// Of other buffers that share the ledger.
	exec("INSERT INTO " + ledger + ` (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at)
		SELECT gen_random_uuid(), buffer, 'stamp', 'leased', 1, now() + interval '1h', 'other', 1, 0, 0, 1, 1, 1, now()
		FROM (SELECT DISTINCT buffer || suffix AS buffer FROM ` + ledger + `, (VALUES (' dead letters'), ('_too')) s (suffix)) others`)
	if c.Table != "" { // RESTART IDENTITY is for the owner
		shop, err := pgx.Connect(ctx, p.asRole(t, "shop_", "GRANT USAGE ON SCHEMA public, shop", "GRANT TRUNCATE ON "+table))
		check(t, err)
		_, err = shop.Exec(ctx, "TRUNCATE "+table)
		check(t, err)
		check(t, shop.Close(ctx))
		exec("ALTER SEQUENCE " + strings.TrimSuffix(table, `"`) + "_id_seq" + strings.Repeat(`"`, strings.Count(table, `"`)/2) + " RESTART")
	} else {
		exec("TRUNCATE " + table + " RESTART IDENTITY")
	}

	var left int
	check(t, p.pool.QueryRow(ctx, "SELECT count(*) FROM "+ledger).Scan(&left))
	if left != 2 {
		t.Errorf("%d batches are left; expected the two of other buffers", left)
	}
	insert()
	if err := buf.Settle(ctx, leased, []buffer.Outcome{{Verdict: buffer.Delivered}}); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Errorf("settling a truncated batch: %v", err)
	}
	if b, err := testkit.TakeOver(ctx, buf, lease); b != nil || err != nil {
		t.Errorf("taken over: %v, %v", b, err)
	}
	seen := map[int64]bool{}
	testserver.Eventually(t, func() error {
		for _, b := range []*postgres.Buffer{buf, second} {
			if _, err := b.CountBacklog(ctx, 100); err != nil {
				return err
			}
			batch, err := b.Claim(ctx, 4, lease)
			if err != nil {
				return err
			}
			if batch != nil {
				for _, id := range batch.IDs() {
					if seen[id] {
						t.Errorf("event %d was claimed twice", id)
					}
					seen[id] = true
				}
			}
		}
		if len(seen) < 10 {
			return fmt.Errorf("%d events were claimed", len(seen))
		}
		return nil
	})
}

// TRUNCATE ... RESTART IDENTITY locks the table and then its sequence. A claim and a count that wait for the table must
// not lock the sequence meanwhile.
func TestTruncate_NoDeadlock(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	if _, err := f.Buffer.CountBacklog(t.Context(), 100); err != nil { // sees the database once
		t.Fatal(err)
	}
	tx, err := p.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
	check(t, err)

	var relay errgroup.Group
	relay.Go(func() error {
		_, err := f.Buffer.CountBacklog(t.Context(), 100)
		return err
	})
	relay.Go(func() error {
		_, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
		return err
	})
	testserver.Eventually(t, func() error {
		var n int
		err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(&n)
		if err == nil && n < 2 {
			err = fmt.Errorf("%d wait for a lock; expected count and claim", n)
		}
		return err
	})
	if _, err := tx.Exec(t.Context(), "TRUNCATE outbox_events RESTART IDENTITY"); err != nil {
		t.Errorf("the application was the victim: %v", err)
	}
	check(t, tx.Commit(t.Context()))
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay was the victim: %v", err)
	}
}

// A transaction whose snapshot is older than the batch cannot see it, and must not reuse its ids.
func TestTruncate_RefusesOldSnapshot(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	check(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing of it is to stay
	_, err = tx.Exec(ctx, "SELECT 1")
	check(t, err)
	b, err := f.Buffer.Claim(ctx, 10, lease)
	check(t, err)
	if _, err = tx.Exec(ctx, "TRUNCATE outbox_events RESTART IDENTITY"); err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
		t.Errorf("TRUNCATE under REPEATABLE READ: %v", err)
	}
	check(t, tx.Rollback(ctx))
	check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

// If the buffer table is dropped and made again, its batches are gone, so that no new event belongs to an old batch.
func TestMigrate_RecreatedTable(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")}, outbox.Event{Topic: "t", Payload: []byte("{}")})
	b, err := f.Buffer.Claim(ctx, 10, lease)
	check(t, err)
	f.Exec(t, "DROP TABLE outbox_events")
	_, err = postgres.Migrate(ctx, p.url, postgres.SchemaConfig{})
	check(t, err)
	ids := f.Insert(t, outbox.Event{Topic: "new", Payload: []byte("{}")}, outbox.Event{Topic: "new", Payload: []byte("{}")})
	if err := f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Errorf("settling a dropped batch: %v", err)
	}
	if rows := f.Rows(t); len(rows) != len(ids) {
		t.Errorf("of %d new events %d are left, although none was sent", len(ids), len(rows))
	}
}
