package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestDelayed_OrderBelow: a claim of delayed events that are due takes no other event with `order: key`: an earlier one of its key may be
// waiting.
func TestDelayed_OrderBelow(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Ordered: true})
	b := p.fixture(t, "outbox_events", "orders").Buffer
	run := func(sql string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	claim := func() (payloads string, l *buffer.Lease) {
		t.Helper()
		l, err := b.Claim(t.Context(), 100, time.Hour)
		testkit.NoError(t, err)
		if l != nil {
			for _, e := range l.Events {
				payloads += string(e.Payload)
			}
		}
		return payloads, l
	}
	// Key k: one is in a live batch, and two wait for it. The delayed events are between those.
	run("INSERT INTO outbox_events (topic, key, payload) VALUES ('t', 'k', '1')")
	_, first := claim()
	run(`INSERT INTO outbox_events (topic, key, payload, available_at) VALUES ('t', 'k', '2', NULL), ('t', 'other', '3', clock_timestamp() + interval '4 s'),
		('t', 'k', '4', NULL), ('t', 'other', '5', clock_timestamp() + interval '4 s'), ('t', 'free', '6', NULL)`)
	free, _ := claim()
	testkit.Equal(t, "claimed while the key is held", free, "6")
	testkit.NoError(t, b.Settle(t.Context(), first, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	run("SELECT pg_sleep(4.1)")
	_, err := b.CountBacklog(t.Context(), 100)
	testkit.NoError(t, err)
	due, _ := claim()
	testkit.Equal(t, "claimed when it is due", due, "35")
	rest, _ := claim()
	testkit.Equal(t, "claimed next", rest, "24")
}

// TestDelayed_Sinks: delayed events are routed when they are due, in every mode.
func TestDelayed_Sinks(t *testing.T) {
	t.Parallel()
	for _, c := range []postgres.Config{{Claim: buffer.ClaimRange}, {Claim: buffer.ClaimStamp}, {Ordered: true}} {
		t.Run(string(c.Claim), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			c.URL, c.Pipeline, c.Owner = p.url, "orders", "suite"
			c.Sinks = []buffer.Route{{Sink: "all", BatchSize: 10, Ordered: c.Ordered}, {Sink: "crm", Match: []string{"contact.*"}, BatchSize: 10}}
			b, err := postgres.Open(c)
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			testkit.NoError(t, b.RegisterSinks(t.Context()))
			_, err = p.pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, key, payload, available_at)
				VALUES ('contact.new', 'k', '1', clock_timestamp() + interval '5 s'), ('contact.new', 'k', '2', 'infinity')`)
			testkit.NoError(t, err)
			route := func() *buffer.Routed {
				t.Helper()
				routed, err := b.Route(t.Context(), 100, time.Hour, func(string) bool { return false })
				testkit.NoError(t, err)
				return routed
			}
			testkit.Eventually(t, func() error {
				backlog, err := b.CountBacklog(t.Context(), 100)
				if err == nil && backlog.Unclaimed == 0 {
					err = fmt.Errorf("nothing is counted; the next is due in %v", backlog.NextDelayed)
				}
				return err
			})
			status, err := b.Status(t.Context()) // the floor has passed the event
			testkit.NoError(t, err)
			testkit.Equal(t, "pending", status.Pending, 1)
			unrouted := status.Sinks[len(status.Sinks)-1]
			testkit.Equal(t, "pending and not routed", unrouted.Pending, 1)
			if unrouted.OldestPending <= 0 || unrouted.OldestPending > 4*time.Second {
				t.Errorf("the oldest is pending for %v", unrouted.OldestPending)
			}
			routed := route()
			if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" || routed.Events != 1 {
				t.Fatalf("routed %+v, want one event to all and crm", routed)
			}
			if again := route(); again != nil {
				t.Errorf("routed %+v again", again)
			}
		})
	}
}

// TestDelayed_BlockedKey: what waits for a blocked key is not claimed, however often it is looked for beside a pinned snapshot, and is found when the key is free.
func TestDelayed_BlockedKey(t *testing.T) {
	t.Parallel()
	const events, rounds = 3000, 50
	p := newMigratedDB(t, buffertest.Options{Ordered: true})
	f := p.fixture(t, "outbox_events", "orders")
	run := func(sql string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	insert := func(key string, n int) {
		t.Helper()
		run(fmt.Sprintf(`INSERT INTO outbox_events (topic, key, payload, available_at) SELECT 't', '%s', '1', clock_timestamp() - interval '1 hour' + i * interval '1 ms'
			FROM generate_series(1, %d) i`, key, n))
	}
	run("ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
	run("INSERT INTO outbox_events (topic, key, payload) VALUES ('t', 'blocked', '1')")
	head, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
	if err != nil || head == nil || head.Len() != 1 {
		t.Fatalf("claimed %v, %v", head, err)
	}
	insert("blocked", events)
	run("UPDATE outbox_events SET available_at = available_at + interval '1 day' WHERE group_id IS NULL")
	testkit.Eventually(t, func() error { // the floor passes them while they are delayed
		if _, err := f.Buffer.CountBacklog(t.Context(), 100); err != nil {
			return err
		}
		var passed bool
		err := p.pool.QueryRow(t.Context(), "SELECT floor >= (SELECT max(id) FROM outbox_events) FROM outbox_buffers").Scan(&passed)
		if err == nil && !passed {
			err = errors.New("the floor that is stored has not passed the events")
		}
		return err
	})
	run("UPDATE outbox_events SET available_at = available_at - interval '1 day' WHERE group_id IS NULL")
	b := f.Second(t) // begins at that floor
	pinned, err := p.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	testkit.NoError(t, err)
	_, err = pinned.Exec(t.Context(), "SELECT FROM outbox_batches")
	testkit.NoError(t, err)
	insert("gone", events)
	run("DELETE FROM outbox_events WHERE key = 'gone'")
	for range rounds {
		_, err := b.CountBacklog(t.Context(), 100)
		testkit.NoError(t, err)
		l, err := b.Claim(t.Context(), 10, time.Hour)
		testkit.NoError(t, err)
		if l != nil {
			t.Fatalf("claimed %v, whose key is blocked", l.IDs())
		}
	}
	testkit.NoError(t, pinned.Rollback(t.Context()))
	testkit.NoError(t, f.Buffer.Settle(t.Context(), head, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	_, err = b.CountBacklog(t.Context(), 100)
	testkit.NoError(t, err)
	if l, err := b.Claim(t.Context(), 10, time.Hour); err != nil || l == nil || l.Len() != 10 {
		t.Fatalf("claimed %v, %v when the key is free, want 10 events", l, err)
	}
	testkit.NoError(t, b.Close())
}

// TestDelayed_PendingEstimate: more events are due below the floor than a status counts one by one.
func TestDelayed_PendingEstimate(t *testing.T) {
	t.Parallel()
	const due, delayed = 120_000, 10
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	_, err := p.pool.Exec(t.Context(), `INSERT INTO outbox_events (topic, payload, available_at)
		SELECT 't', '1', CASE WHEN i <= $1 THEN clock_timestamp() + interval '5 s' ELSE 'infinity' END FROM generate_series(1, $1::int + $2::int) i`, due, delayed)
	testkit.NoError(t, err)
	testkit.Eventually(t, func() error {
		backlog, err := f.Buffer.CountBacklog(t.Context(), 100)
		if err == nil && backlog.Unclaimed < 100 {
			err = fmt.Errorf("%d are counted", backlog.Unclaimed)
		}
		return err
	})
	f.Exec(t, "ANALYZE outbox_events")
	for name, b := range map[string]buffer.Buffer{"relay": f.Buffer, "status": f.Second(t)} {
		began := time.Now()
		testkit.Eventually(t, func() error {
			s, err := b.Status(t.Context())
			if err == nil && (s.Pending < due-due/10 || s.Pending > due+due/10 || s.Delayed != delayed) {
				err = fmt.Errorf("%s: %d are pending and %d delayed, want about %d and %d", name, s.Pending, s.Delayed, due, delayed)
			}
			return err
		})
		t.Logf("%s: %v", name, time.Since(began))
	}
}

// TestDelayed_CountedOnce: a scan of everything, which runs every two seconds where sessions draw ids in blocks, counts no event again that is due.
func TestDelayed_CountedOnce(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "ALTER SEQUENCE outbox_events_id_seq CACHE 50")
	f.Exec(t, "INSERT INTO outbox_events (topic, payload, available_at) SELECT 't', '1', clock_timestamp() + interval '2 s' FROM generate_series(1, 7)")
	var due time.Time // when all of them were counted first
	testkit.Eventually(t, func() error {
		backlog, err := f.Buffer.CountBacklog(t.Context(), 100)
		testkit.NoError(t, err)
		if backlog.Unclaimed > 7 {
			t.Fatalf("%d of 7 events are counted", backlog.Unclaimed)
		}
		if due.IsZero() && backlog.Unclaimed == 7 {
			due = time.Now()
		}
		if due.IsZero() || time.Since(due) < 7*time.Second {
			return errNotClaimed
		}
		return nil
	})
}
