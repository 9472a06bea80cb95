package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestNumbering_RestartIdentity: the ids begin again while the relay is idle, and have passed its cursor when it looks
// again: the next claim, and the next count, find them.
func TestNumbering_RestartIdentity(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opt    buffertest.Options
		custom *customShape
	}{
		"Range":   {opt: buffertest.Options{Claim: buffer.ClaimRange}},
		"Stamp":   {opt: buffertest.Options{Claim: buffer.ClaimStamp}},
		"Ordered": {opt: buffertest.Options{Ordered: true}},
		"Custom":  {custom: integerKeys},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, table := newMigratedDB(t, c.opt), "outbox_events"
			if c.custom != nil {
				p, table = newTestDB(t, p.url, c.opt), "events"
				p.custom = c.custom
			}
			f := p.fixture(t, table, "orders")
			for _, look := range []string{"claim", "count"} {
				insertMany(t, f, 100)
				idle(t, f)
				f.Exec(t, "TRUNCATE "+table+" RESTART IDENTITY")
				ids := insertMany(t, f, 150)
				if look == "count" {
					backlog, err := f.Buffer.CountBacklog(t.Context(), 1000)
					check(t, err)
					if backlog.Unclaimed != len(ids) {
						t.Errorf("%d events counted, want %d", backlog.Unclaimed, len(ids))
					}
				}
				expectClaimed(t, f.Buffer, ids)
			}
		})
	}
}

// TestNumbering_NextProcess: the ids begin again while no relay runs. The floor that the last one stored is about other ids.
func TestNumbering_NextProcess(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	insertMany(t, f, 100)
	idle(t, f)
	storeFloor(t, f)
	f.Exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
	expectClaimed(t, f.Second(t), insertMany(t, f, 150))
}

// TestNumbering_Status: so do the commands that only look, which neither claim nor count.
func TestNumbering_Status(t *testing.T) {
	t.Parallel()
	for name, reuse := range map[string]string{
		"RestartIdentity": "TRUNCATE outbox_events RESTART IDENTITY",
		"SetBack":         "SELECT setval('outbox_events_id_seq', 1)",
		"Replaced":        replaceTable("outbox_events"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
			f := p.fixture(t, "outbox_events", "orders")
			insertMany(t, f, 100)
			idle(t, f)
			storeFloor(t, f)
			status := func(want int64) {
				t.Helper()
				b := f.Second(t)
				s, err := b.Status(t.Context())
				check(t, err)
				peeked, err := b.(*postgres.Buffer).Peek(t.Context(), 100)
				check(t, err)
				if n := int64(peeked.Len()); s.Pending != want || n != want {
					t.Errorf("%d pending and %d peeked, want %d", s.Pending, n, want)
				}
			}
			f.Exec(t, "INSERT INTO outbox_events (id, topic, payload) OVERRIDING SYSTEM VALUE VALUES (0, 't', '{}')") // below the floor
			insertMany(t, f, 2)
			status(2)
			f.Exec(t, "DELETE FROM outbox_events")
			f.Exec(t, reuse)
			insertMany(t, f, 50)
			status(50)
		})
	}
}

// storeFloor stores the floor 100, as a process does.
func storeFloor(t *testing.T, f *buffertest.Fixture) {
	t.Helper()
	f.Exec(t, `UPDATE outbox_buffers SET floor = 100, numbering = 'outbox_events'::regclass::oid || '/' ||
		pg_relation_filenode('outbox_events_id_seq') || '@' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint`)
}

// replaceTable is how a table is changed without a long lock.
func replaceTable(table string) string {
	return strings.ReplaceAll(`
BEGIN;
CREATE TABLE outbox_new (LIKE outbox_events INCLUDING ALL);
ALTER TABLE outbox_events RENAME TO outbox_old;
ALTER TABLE outbox_new RENAME TO outbox_events;
COMMIT`, "outbox_events", table)
}

// TestNumbering_ReplacedTable: another table gets the buffer's name while the relay runs. It has a sequence of its own.
func TestNumbering_ReplacedTable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opt    buffertest.Options
		custom *customShape
	}{
		"Range":   {opt: buffertest.Options{Claim: buffer.ClaimRange}},
		"Stamp":   {opt: buffertest.Options{Claim: buffer.ClaimStamp}},
		"Ordered": {opt: buffertest.Options{Ordered: true}},
		"Custom":  {custom: integerKeys},
	} {
		for _, old := range []string{"", "DROP TABLE outbox_old"} {
			for _, look := range []string{"Claim", "Count"} {
				t.Run(name+"/"+look+"/"+old, func(t *testing.T) {
					t.Parallel()
					p, table := newMigratedDB(t, c.opt), "outbox_events"
					if c.custom != nil {
						p, table = newTestDB(t, p.url, c.opt), "events"
						p.custom = c.custom
					}
					f := p.fixture(t, table, "orders")
					insertMany(t, f, 300)
					idle(t, f)
					f.Exec(t, replaceTable(table))
					f.Exec(t, old)
					ids := insertMany(t, f, 150)
					if look == "Count" {
						backlog, err := f.Buffer.CountBacklog(t.Context(), 1000)
						check(t, err)
						if backlog.Unclaimed != len(ids) {
							t.Errorf("%d events counted, want %d", backlog.Unclaimed, len(ids))
						}
					}
					expectClaimed(t, f.Buffer, ids)
					idle(t, f) // the cursor follows the sequence
					more := insertMany(t, f, 10)
					backlog, err := f.Buffer.CountBacklog(t.Context(), 1000)
					check(t, err)
					if backlog.Unclaimed != len(more) {
						t.Errorf("%d events counted later, want %d", backlog.Unclaimed, len(more))
					}
					expectClaimed(t, f.Buffer, more)
				})
			}
		}
	}
}

// TestNumbering_ReplacedMeanwhile: a claim waits for the lock of the table that is being replaced.
func TestNumbering_ReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, opt := range []buffertest.Options{{Claim: buffer.ClaimRange}, {Claim: buffer.ClaimStamp}, {Ordered: true}} {
		t.Run(fmt.Sprint(opt.Claim, opt.Ordered), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, opt)
			f := p.fixture(t, "outbox_events", "orders")
			insertMany(t, f, 100)
			idle(t, f)
			tx, err := p.pool.Begin(t.Context())
			check(t, err)
			for statement := range strings.SplitSeq(replaceTable("outbox_events"), ";") {
				if statement = strings.TrimSpace(statement); statement != "BEGIN" && statement != "COMMIT" {
					_, err = tx.Exec(t.Context(), statement)
					check(t, err)
				}
			}
			_, err = tx.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, 150)")
			check(t, err)
			var (
				claiming errgroup.Group
				first    *buffer.Lease
			)
			claiming.Go(func() (err error) {
				first, err = f.Buffer.Claim(t.Context(), 1000, lease)
				return err
			})
			testserver.Eventually(t, func() error {
				return p.pool.QueryRow(t.Context(), `SELECT 1 FROM pg_stat_activity
					WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(new(int))
			})
			check(t, tx.Commit(t.Context()))
			check(t, claiming.Wait())
			var left []int64
			for id := int64(1); id <= 150; id++ {
				if first == nil || !slices.Contains(first.IDs(), id) {
					left = append(left, id)
				}
			}
			expectClaimed(t, f.Buffer, left)
		})
	}
}

// TestNumbering_AsynchronousFailover: a standby that lacks the last 500 events becomes the primary, and hands their ids out again.
func TestNumbering_AsynchronousFailover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := testserver.OwnPostgres(t, testserver.PostgresOptions{Durable: true})
	standby := testserver.Standby(t, primary)
	_, err := postgres.Migrate(ctx, primary.URL, postgres.SchemaConfig{})
	check(t, err)
	f := newTestDB(t, primary.URL, buffertest.Options{}).fixture(t, "outbox_events", "orders")
	insertMany(t, f, 100)
	idle(t, f)
	b, err := postgres.Open(postgres.Config{URL: bothServers(t, primary, standby), Pipeline: "orders", Claim: buffer.ClaimRange})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.Check(ctx))

	f.Exec(t, "ALTER SYSTEM RESET synchronous_standby_names")
	f.Exec(t, "SELECT pg_reload_conf()")
	follower, err := pgx.Connect(ctx, standby.URL)
	check(t, err)
	defer follower.Close(context.WithoutCancel(ctx))
	_, err = follower.Exec(ctx, "ALTER SYSTEM SET primary_conninfo = ''")
	check(t, err)
	_, err = follower.Exec(ctx, "SELECT pg_reload_conf()")
	check(t, err)
	testserver.Eventually(t, func() error {
		return follower.QueryRow(ctx, "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_wal_receiver)").Scan(new(int))
	})

	expectClaimed(t, b, insertMany(t, f, 500)) // the relay's cursor is at 600
	check(t, primary.Kill())
	check(t, standby.Promote(ctx))
	now := newTestDB(t, standby.URL, buffertest.Options{}).fixture(t, "outbox_events", "orders")
	ids := insertMany(t, now, 900)
	if ids[0] >= 600 || ids[899] <= 600 {
		t.Fatalf("ids %d to %d; expected some of the lost ones, and new ones", ids[0], ids[899])
	}
	testserver.Eventually(t, func() error {
		_, err := b.CountBacklog(ctx, 10)
		return err
	})
	expectClaimed(t, b, ids)
}

// TestBlocks: sessions draw ids in blocks, from a cache or because an ORM divides the increment. An event with an id of an
// old block leaves within seconds, not with the next full sweep.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alter  string
		custom *customShape
		claim  buffer.ClaimMode
		byHand bool // the application hands out the ids of its block
	}{
		"Cache/range":  {alter: "CACHE 50", claim: buffer.ClaimRange},
		"Cache/stamp":  {alter: "CACHE 50", claim: buffer.ClaimStamp},
		"Cache/custom": {alter: "CACHE 50", custom: integerKeys},
		"ORM/custom":   {alter: "INCREMENT BY 50", custom: integerKeys, byHand: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, table := newMigratedDB(t, buffertest.Options{Claim: c.claim}), "outbox_events"
			if c.custom != nil {
				p, table = newTestDB(t, p.url, buffertest.Options{}), "events"
				p.custom = c.custom
			}
			f := p.fixture(t, table, "orders")
			f.Exec(t, "ALTER SEQUENCE "+table+"_id_seq "+c.alter)
			sessions := make([]*inserter, 3)
			for i := range sessions {
				sessions[i] = newInserter(t, p.url, table, c.byHand)
			}
			for range 3 {
				for _, s := range sessions { // each has drawn a block; the relay passes the ids of the last
					s.insert(t)
				}
				idle(t, f)
			}
			for range 40 {
				sessions[2].insert(t)
			}
			idle(t, f)
			testserver.Eventually(t, func() error { // the floor passes them too
				_, err := f.Buffer.CountBacklog(t.Context(), 1000)
				check(t, err)
				return p.pool.QueryRow(t.Context(), "SELECT 1 FROM outbox_buffers WHERE floor > 50").Scan(new(int))
			})
			late := sessions[0].insert(t)
			testserver.Eventually(t, func() error {
				_, err := f.Buffer.CountBacklog(t.Context(), 1000)
				check(t, err)
				batch, err := f.Buffer.Claim(t.Context(), 1000, lease)
				check(t, err)
				if batch == nil {
					return errNotClaimed
				}
				if !slices.Equal(batch.IDs(), []int64{late}) {
					t.Errorf("claimed %v, want %d", batch.IDs(), late)
				}
				return nil
			})
			warned := false
			for _, finding := range f.Buffer.Diagnose(t.Context()) {
				warned = warned || finding.Subject == "sequence" && finding.Level == buffer.LevelWarning
			}
			if !warned {
				t.Error("doctor does not warn")
			}
		})
	}
}

var errNotClaimed = errors.New("the event was not claimed")

// bothServers is a URL of two servers, of which the one that takes writes is meant.
func bothServers(t *testing.T, first, second *testserver.PostgresServer) string {
	u, err := url.Parse(first.URL)
	check(t, err)
	other, err := url.Parse(second.URL)
	check(t, err)
	u.Host += "," + other.Host
	u.RawQuery = "target_session_attrs=read-write"
	return u.String()
}

// inserter inserts events on a connection of its own.
type inserter struct {
	conn   *pgx.Conn
	table  string
	byHand bool
	next   int64 // of the block, by hand
	left   int
}

func newInserter(t *testing.T, url, table string, byHand bool) *inserter {
	conn, err := pgx.Connect(t.Context(), url)
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close(context.Background())) })
	return &inserter{conn: conn, table: table, byHand: byHand}
}

func (s *inserter) insert(t *testing.T) (id int64) {
	t.Helper()
	if !s.byHand {
		check(t, s.conn.QueryRow(t.Context(), "INSERT INTO "+s.table+" (topic, payload) VALUES ('t', '{}') RETURNING id").Scan(&id))
		return id
	}
	if s.left == 0 { // the ids up to the next value of the sequence
		check(t, s.conn.QueryRow(t.Context(), "SELECT nextval('"+s.table+"_id_seq')").Scan(&s.next))
		s.left = 50
	}
	_, err := s.conn.Exec(t.Context(), "INSERT INTO "+s.table+" (id, topic, payload) VALUES ($1, 't', '{}')", s.next)
	check(t, err)
	s.next, s.left = s.next+1, s.left-1
	return s.next - 1
}

func insertMany(t *testing.T, f *buffertest.Fixture, n int) []int64 {
	t.Helper()
	events := make([]outbox.Event, n)
	for i := range events {
		events[i] = outbox.Event{Topic: "t", Payload: []byte("{}")}
	}
	return f.Insert(t, events...)
}

// idle delivers everything, and counts until the watermarks have passed it.
func idle(t *testing.T, f *buffertest.Fixture) {
	t.Helper()
	for {
		batch, err := f.Buffer.Claim(t.Context(), 1000, lease)
		check(t, err)
		if batch == nil {
			break
		}
		check(t, f.Buffer.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	for range 3 {
		_, err := f.Buffer.CountBacklog(t.Context(), 1000)
		check(t, err)
	}
}

// expectClaimed claims and delivers exactly these events, and none twice.
func expectClaimed(t *testing.T, b buffer.Buffer, ids []int64) {
	t.Helper()
	var got []int64
	for {
		batch, err := b.Claim(t.Context(), 1000, lease)
		check(t, err)
		if batch == nil {
			break
		}
		got = append(got, batch.IDs()...)
		check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("%d events claimed, want the %d from %d to %d: %v", len(got), len(ids), ids[0], ids[len(ids)-1], got)
	}
}
