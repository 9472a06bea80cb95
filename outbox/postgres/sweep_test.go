package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestSweep_Orphans: events that carry a group_id without a ledger row, as after a
// restore of the buffer alone, or rows put back from an archive, are sent again under a new one: a sink may know the old
// one from a delivery. Live batches do not change.
func TestSweep_Orphans(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("{}")}
	ids := f.Insert(t, event, event, event)
	live, err := f.Second(t).Claim(t.Context(), 1, lease)
	check(t, err)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_events SET group_id = '01890000-0000-7000-8000-000000000001' WHERE id > %d", ids[0]))

	backlog, err := f.Buffer.CountBacklog(t.Context(), 10)
	check(t, err)
	if backlog.Due != 1 || backlog.Unclaimed != 0 {
		t.Fatalf("backlog %+v, want one batch due", backlog)
	}
	b, err := testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	if b.GroupID == uuid.MustParse("01890000-0000-7000-8000-000000000001") || len(b.Origins) > 0 || len(b.Events) != 2 || b.Events[0].ID != ids[1] {
		t.Fatalf("taken over: %v of %v with %v", b.GroupID, b.Origins, b.IDs())
	}
	if b.GroupID.Version() != 7 || b.GroupID.Variant() != uuid.RFC4122 {
		t.Errorf("group_id %v is not a version 7 uuid", b.GroupID)
	}
	check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	check(t, f.Buffer.Settle(t.Context(), live, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if rows, ledger := f.Rows(t), f.Ledger(t); len(rows)+len(ledger) != 0 {
		t.Fatalf("left: %v %v", rows, ledger)
	}
}

// TestSweep_TruncatedTables: a cleaner of test databases empties all tables of a running
// relay.
func TestSweep_TruncatedTables(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("{}")}
	f.Insert(t, event)
	_, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	f.Exec(t, "TRUNCATE outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers RESTART IDENTITY")
	f.Insert(t, event)
	testserver.Eventually(t, func() error {
		_, err := f.Buffer.CountBacklog(t.Context(), 10)
		check(t, err)
		b, err := f.Buffer.Claim(t.Context(), 10, lease)
		check(t, err)
		if b == nil {
			return errors.New("the event was not claimed")
		}
		return nil
	})
}

// TestSweep_OddTimes: a created_at that is no time does not blind the operator.
func TestSweep_OddTimes(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "INSERT INTO outbox_events (topic, payload, created_at) VALUES ('t', '{}', 'infinity'), ('t', '{}', '-infinity'), ('t', '{}', clock_timestamp() - interval '1 hour')")
	for range 2 { // unclaimed, and claimed
		s, err := f.Buffer.Status(t.Context())
		check(t, err)
		if s.Pending != 3 {
			t.Errorf("%d pending, want 3", s.Pending)
		}
		_, err = f.Buffer.Claim(t.Context(), 10, lease)
		check(t, err)
	}
}

// TestClose_StoresFloor: the next process begins behind what this one has delivered, however short it ran.
func TestClose_StoresFloor(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("{}")}
	f.Insert(t, event)
	b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Claim: buffer.ClaimRange})
	check(t, err)
	var last int64
	for range 2 { // the second time less than the interval of the writes has passed
		last = f.Insert(t, event)[0]
		l, err := b.Claim(t.Context(), 10, lease)
		check(t, err)
		check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		_, err = b.CountBacklog(t.Context(), 10)
		check(t, err)
	}
	check(t, b.Close())
	var floor int64
	check(t, p.pool.QueryRow(t.Context(), "SELECT floor FROM outbox_buffers WHERE buffer = 'public.outbox_events'").Scan(&floor))
	testkit.Equal(t, "floor", floor, last)
}

// TestFloor_ClaimThatWaited: a claim that waited for a lock also returns events that were inserted meanwhile. The process knows that
// it has them: otherwise late commits behind them would wait for a sweep, and a busy table's floor would stay behind for good.
func TestFloor_ClaimThatWaited(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			f := p.fixture(t, "outbox_events", "orders")
			event := outbox.Event{Topic: "t", Payload: []byte("{}")}
			f.Insert(t, event)
			b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Claim: mode})
			check(t, err)
			l, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			tx, err := p.pool.Begin(t.Context())
			check(t, err)
			_, err = tx.Exec(t.Context(), "LOCK TABLE outbox_batches")
			check(t, err)
			claimed := make(chan *buffer.Lease, 1)
			go func() {
				l, err := b.Claim(t.Context(), 10, lease)
				if err != nil {
					t.Error(err)
				}
				claimed <- l
			}()
			testserver.Eventually(t, func() error {
				var waits bool
				check(t, p.pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox_batches'::regclass)").Scan(&waits))
				if !waits {
					return errors.New("the claim does not wait")
				}
				return nil
			})
			last := f.Insert(t, event)[0]
			check(t, tx.Commit(t.Context()))
			if l = <-claimed; l == nil || l.Len() != 1 {
				t.Fatalf("claimed %+v; want one event", l)
			}
			check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			check(t, b.Close())
			var floor int64
			check(t, p.pool.QueryRow(t.Context(), "SELECT floor FROM outbox_buffers WHERE buffer = 'public.outbox_events'").Scan(&floor))
			testkit.Equal(t, "floor", floor, last)
		})
	}
}

// TestSweep_OncePerBuffer: a process that starts does not scan everything again soon after another one did.
func TestSweep_OncePerBuffer(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
	count := func(want int) {
		t.Helper()
		b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Claim: buffer.ClaimRange})
		check(t, err)
		defer b.Close()
		backlog, err := b.CountBacklog(t.Context(), 10)
		check(t, err)
		testkit.Equal(t, "due", backlog.Due, want)
	}
	count(0) // this one scans
	f.Exec(t, "UPDATE outbox_events SET group_id = '01890000-0000-7000-8000-000000000001'")
	count(0)
	f.Exec(t, "UPDATE outbox_buffers SET swept_at = now() - interval '4 minutes 50 seconds'")
	count(0)
	f.Exec(t, "UPDATE outbox_buffers SET swept_at = now() - interval '5 minutes 1 second'")
	count(1)
}

// TestSweep_Windows: behind many events that wait for a sink, a sweep finds an orphan and an id that was given by hand. It goes on
// in windows, because it has little time.
func TestSweep_Windows(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	_, err := f.Buffer.CountBacklog(t.Context(), 10)
	check(t, err)
	const held = 450_000
	f.Exec(t, fmt.Sprintf("INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, %d)", held))
	f.Exec(t, fmt.Sprintf(`INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages,
		events, first_id, last_id, oldest_at, newest_at, members)
		VALUES (gen_random_uuid(), 'public.outbox_events', 'range', 'waiting', 0, now() + interval '1 hour', '', 0, 0, 0, %[1]d, 1, %[1]d,
		now(), now() + interval '1 hour', int8multirange(int8range(1, %[2]d, '[)'), int8range(%[2]d, %[1]d, '(]')))`, held, held-5))
	f.Exec(t, fmt.Sprintf("UPDATE outbox_events SET group_id = gen_random_uuid() WHERE id = %d", held-2))
	storeFloor(t, f)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_buffers SET floor = %d, swept_at = NULL", held))
	b := f.Second(t)
	testkit.Eventually(t, func() error {
		backlog, err := b.CountBacklog(t.Context(), 10)
		if err == nil && (backlog.Due != 1 || backlog.Unclaimed != 1) {
			err = fmt.Errorf("backlog %+v, want one batch due and one event unclaimed", backlog)
		}
		return err
	})
	l, err := b.Claim(t.Context(), 10, lease)
	check(t, err)
	if l == nil || len(l.Events) != 1 || l.Events[0].ID != held-5 {
		t.Fatalf("claimed %+v", l)
	}
}
