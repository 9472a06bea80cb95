package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// buried claims all events and buries them.
func buried(t *testing.T, f *buffertest.Fixture, why string) *buffer.Lease {
	t.Helper()
	b, err := f.Buffer.Claim(t.Context(), 1000, lease)
	check(t, err)
	check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: why}}))
	return b
}

func expectIDs(t *testing.T, what string, got, want []int64) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestIDsBeyond32Bits: through every statement that has ids.
func TestIDsBeyond32Bits(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Archive: true})
	f := p.fixture(t, "outbox_events", "orders")
	hook, ctx := f.Queue(t), t.Context()
	const first = 1<<40 + 1
	f.Exec(t, fmt.Sprintf("SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), %d)", first-1))
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event, event)
	expectIDs(t, "ids", ids, []int64{first, first + 1, first + 2, first + 3})
	if backlog, err := f.Buffer.CountBacklog(ctx, 10); err != nil || backlog.Unclaimed != 4 {
		t.Fatalf("backlog: %+v, %v", backlog, err)
	}

	expectIDs(t, "buried", buried(t, f, "no").IDs(), ids)
	b, err := hook.Claim(ctx, 10, lease)
	check(t, err)
	expectIDs(t, "claimed by the hook", b.IDs(), ids)
	part := buffer.NewGroupID()
	check(t, hook.Settle(ctx, b, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:2]}, {Verdict: buffer.Retry, IDs: ids[2:], GroupID: part},
	}))
	b, err = testkit.TakeOver(ctx, hook, lease)
	check(t, err)
	expectIDs(t, "taken over by the hook", b.IDs(), ids[2:])
	check(t, hook.MarkDelivered(ctx, b, ids[2:]))
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(ctx, hook, lease)
	check(t, err)
	expectIDs(t, "marked by the hook", b.Delivered, ids[2:])
	check(t, hook.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))

	events, err := f.Buffer.ListDead(ctx, buffer.DeadFilter{Notified: true}, &buffer.DeadKey{EventID: ids[0], GroupID: b.DeadLetter(0).GroupID}, 10)
	check(t, err)
	if len(events) != 3 || events[0].ID != ids[1] {
		t.Fatalf("the second page begins with %v", events)
	}
	n, err := f.Buffer.Discard(ctx, buffer.DeadFilter{IDs: ids[:1]}, 10)
	check(t, err)
	m, err := f.Buffer.Replay(ctx, buffer.DeadFilter{}, 10)
	check(t, err)
	if n != 1 || m != 3 {
		t.Fatalf("%d discarded and %d replayed, want 1 and 3", n, m)
	}
	b, err = testkit.TakeOver(ctx, f.Buffer, lease)
	check(t, err)
	expectIDs(t, "replayed", b.IDs(), ids[1:])
	part = buffer.NewGroupID()
	check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[1:2]}, {Verdict: buffer.Retry, IDs: ids[2:], GroupID: part},
	}))
	b, err = testkit.TakeOver(ctx, f.Buffer, lease)
	check(t, err)
	expectIDs(t, "a part", b.IDs(), ids[2:])
	check(t, f.Buffer.MarkDelivered(ctx, b, ids[2:]))
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(ctx, f.Buffer, lease)
	check(t, err)
	check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	var archived []int64
	for _, a := range f.Archived(t) {
		archived = append(archived, a.ID)
	}
	expectIDs(t, "archived", archived, ids[1:])
}

// TestReplay_GeneratedAlways: such a column refuses explicit ids.
func TestReplay_GeneratedAlways(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"ALTER TABLE outbox_events ALTER id SET GENERATED ALWAYS",
		`ALTER TABLE outbox_events ALTER id DROP IDENTITY;
		 CREATE SEQUENCE serial OWNED BY outbox_events.id; ALTER TABLE outbox_events ALTER id SET DEFAULT nextval('serial')`,
	} {
		p := newMigratedDB(t, buffertest.Options{})
		f := p.fixture(t, "outbox_events", "orders")
		f.Exec(t, id)
		event := outbox.Event{Topic: "t", Payload: []byte("1")}
		ids := f.Insert(t, event, event)
		buried(t, f, "no")
		if n, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 2 || err != nil {
			t.Fatalf("%s: %d replayed, %v", id, n, err)
		}
		b, err := testkit.TakeOver(t.Context(), f.Buffer, lease)
		check(t, err)
		expectIDs(t, "replayed", b.IDs(), ids)
	}
}

// TestReplay_IDReturnsMeanwhile: another session restores the event, and has
// not committed when the replay reads. The dead letter stays open.
func TestReplay_IDReturnsMeanwhile(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event)
	buried(t, f, "no")
	tx := f.Begin(t)
	tx.Exec(t, fmt.Sprintf("INSERT INTO outbox_events (id, topic, payload) VALUES (%d, 'restored', '1')", ids[0]))

	replayed := make(chan error, 1)
	var n int
	go func() {
		var err error
		n, err = f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10)
		replayed <- err
	}()
	testserver.Eventually(t, func() error {
		var waits int
		err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(&waits)
		if err == nil && waits == 0 {
			err = errors.New("the replay does not wait")
		}
		return err
	})
	// The first replay has the other dead letter too. A second replay of it could have it delivered
	// and deleted before the first one inserts it again.
	if n, err := f.Second(t).Replay(t.Context(), buffer.DeadFilter{}, 10); n != 0 || err != nil {
		t.Errorf("%d were replayed by another one at the same time, %v", n, err)
	}
	tx.Commit(t)
	check(t, <-replayed)
	if n != 1 {
		t.Errorf("%d replayed, want 1", n)
	}
	open, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	check(t, err)
	if len(open) != 1 || open[0].ID != ids[0] {
		t.Errorf("open: %v, want event %d", open, ids[0])
	}
	b, err := testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	expectIDs(t, "replayed", b.IDs(), ids[1:])
}

// TestEditDead_Meanwhile: an edit waits for a replay of the dead letter, or for a settlement that buries the event at another sink, and then changes nothing:
// a part of its dead letters would have the old text.
func TestEditDead_Meanwhile(t *testing.T) {
	t.Parallel()
	const lock = "SELECT FROM outbox_dead_letters FOR UPDATE"
	for name, statements := range map[string][]string{
		"Replayed": {"UPDATE outbox_dead_letters SET closed_at = now(), closed_as = 'replayed'"},
		"Buried": {lock, `INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, sink)
			SELECT pipeline, event_id, topic, payload, created_at, gen_random_uuid(), 1, 'refused', 'other' FROM outbox_dead_letters`},
		"Edited": {"UPDATE outbox_dead_letters SET payload = '3'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			f := p.fixture(t, "outbox_events", "orders")
			ids := f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("1")})
			buried(t, f, "no")
			tx := f.Begin(t)
			for _, statement := range statements {
				tx.Exec(t, statement)
			}
			edited := make(chan error, 1)
			go func() {
				edited <- f.Buffer.EditDead(t.Context(), buffer.DeadEdit{ID: ids[0], Old: []byte("1"), New: []byte("2")})
			}()
			testserver.Eventually(t, func() error {
				var waits int
				err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
					WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(&waits)
				if err == nil && waits == 0 {
					err = errors.New("the edit does not wait")
				}
				return err
			})
			tx.Commit(t)
			if err := <-edited; !errors.Is(err, buffer.ErrDeadChanged) {
				t.Errorf("got %v", err)
			}
			for _, d := range f.Dead(t) {
				if string(d.Payload) == "2" {
					t.Error("a payload was changed")
				}
			}
		})
	}
}
