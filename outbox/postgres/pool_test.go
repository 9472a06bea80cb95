package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// sharing returns buffers with a pool of that many connections; each buffer has two at most.
func sharing(t *testing.T, url string, connections, buffers int) (all []*Buffer) {
	t.Helper()
	pool, err := NewPool(url, connections)
	testkit.NoError(t, err)
	for i := range buffers {
		c := Config{URL: url, Table: fmt.Sprint("events_", i), Pipeline: fmt.Sprint("p", i), Pool: pool, Connections: 2}
		_, err := Migrate(t.Context(), url, SchemaConfig{Table: c.Table})
		testkit.NoError(t, err)
		b, err := Open(c)
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		all = append(all, b)
	}
	return all
}

func backends(t *testing.T, url string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer conn.Close(context.Background())
	testkit.NoError(t, conn.QueryRow(t.Context(),
		"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'relay'").Scan(&n))
	return n
}

func TestPool_OneBufferLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	all := sharing(t, url, 3, 2)
	for range 2 { // all that the first may have
		_, release, err := all[0].db.Acquire(t.Context())
		testkit.NoError(t, err)
		defer release()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := all[0].db.Acquire(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a third connection of one buffer: %v; want it to wait", err)
	}
	testkit.NoError(t, all[1].Check(t.Context()))
	testkit.Equal(t, "backends", backends(t, url), 3)
}

func TestPool_ClosedWithItsLastBuffer(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	all := sharing(t, url, 3, 2)
	for _, b := range all {
		testkit.NoError(t, b.Check(t.Context()))
	}
	testkit.NoError(t, all[0].Close())
	testkit.NoError(t, all[0].Close())
	_, err := all[1].CountBacklog(t.Context(), 10)
	testkit.NoError(t, err)
	testkit.NoError(t, all[1].Close())
	if _, err := all[1].CountBacklog(t.Context(), 10); err == nil {
		t.Error("a count succeeds after the last buffer was closed")
	}
	testserver.Eventually(t, func() error {
		if n := backends(t, url); n != 0 {
			return fmt.Errorf("%d backends are left", n)
		}
		return nil
	})
}

// The statements of a connection are bounded, and those in use stay.
func TestPrepared_Bounded(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	b := sharing(t, url, 1, 1)[0]
	inUse := pg.Step{Prepare: true, SQL: "SELECT 'in use'"}
	for i := range 500 {
		testkit.NoError(t, b.db.RoundTrip(t.Context(), []pg.Step{inUse, {Prepare: true, SQL: fmt.Sprintf("SELECT %d", i)}}))
	}
	var statements, kept int64
	testkit.NoError(t, b.db.RoundTrip(t.Context(), []pg.Step{{
		SQL: "SELECT count(*), count(*) FILTER (WHERE name = 'relay_0') FROM pg_prepared_statements",
		Row: func(v [][]byte) error {
			statements, kept = pg.ReadInt8(v[0]), pg.ReadInt8(v[1])
			return nil
		},
	}}))
	testkit.Equal(t, "statements", statements, 200)
	testkit.Equal(t, "statements in use", kept, 1)
}

// Listeners of a pool share a connection. Each counts the commits of its own table, whatever becomes of the others.
func TestPool_ListenersShareAConnection(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	conn, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer conn.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	all := sharing(t, url, 3, 3)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	listeners, stops := make([]*Listener, len(all)), make([]func(), len(all))
	for i, b := range all {
		_, err := Migrate(t.Context(), url, SchemaConfig{Table: b.config.Table, Notify: true})
		testkit.NoError(t, err)
		listeners[i] = b.Listener(nil)
		one, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		stops[i] = func() { stop(); <-ended }
		running.Go(func() { defer close(ended); listeners[i].Run(one) })
	}
	defer running.Wait()
	defer cancel()
	expect := func(i, commits int, listening bool) {
		t.Helper()
		n, is := 0, !listening
		testserver.Eventually(t, func() error {
			select {
			case <-listeners[i].Notifications():
				var more int
				more, is = listeners[i].Drain()
				n += more
			default:
			}
			if n != commits || is != listening {
				return fmt.Errorf("listener %d: %d commits, listening %t; want %d and %t", i, n, is, commits, listening)
			}
			return nil
		})
	}
	insert := func(i int) { exec(fmt.Sprintf("INSERT INTO events_%d (topic, payload) VALUES ('t', '{}')", i)) }
	for i := range all {
		expect(i, 0, true)
	}
	insert(1)
	expect(1, 1, true)
	var sessions int
	testkit.NoError(t, conn.QueryRow(t.Context(), "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND classid = 1919711607").Scan(&sessions))
	testkit.Equal(t, "sessions with locks", sessions, 1)

	listeners[1].Pause(true)
	expect(1, 0, false)
	insert(0)
	expect(0, 1, true)
	listeners[1].Pause(false)
	expect(1, 0, true)
	stops[1]()
	testserver.Eventually(t, func() error {
		var locks int
		testkit.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 'events_1'::regclass").Scan(&locks))
		if locks > 0 {
			return errors.New("the lock of a listener that has stopped is held")
		}
		return nil
	})
	insert(2)
	expect(2, 1, true)
	for i, l := range listeners {
		if n, _ := l.Drain(); n > 0 {
			t.Errorf("listener %d: %d commits more", i, n)
		}
	}
}
