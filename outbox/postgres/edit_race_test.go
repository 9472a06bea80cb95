package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// editRace is an edit and a replay of one dead letter, in two sessions.
type editRace struct {
	*testDB
	editing, replaying *postgres.Buffer
	queue              buffer.Queue // of the sink where the event is dead
	edit               buffer.DeadEdit
}

// forEditRaces runs a test for the relay's own table and custom ones, with one sink and with several.
func forEditRaces(t *testing.T, run func(t *testing.T, r *editRace)) {
	t.Helper()
	t.Parallel()
	for table, shape := range map[string]*customShape{"Own": nil, "Integer": integerKeys, "UUID": uuidKeys} {
		for name, sinks := range map[string][]buffer.Route{"OneSink": nil, "Sinks": {{Sink: "bus", BatchSize: 10}, {Sink: "crm", BatchSize: 10}}} {
			t.Run(table+"/"+name, func(t *testing.T) {
				t.Parallel()
				run(t, newEditRace(t, shape, sinks))
			})
		}
	}
}

// newEditRace buries an event, of several sinks at one.
func newEditRace(t *testing.T, shape *customShape, sinks []buffer.Route) *editRace {
	t.Helper()
	r := &editRace{}
	if shape == nil {
		r.testDB = newMigratedDB(t, buffertest.Options{})
	} else {
		r.testDB = newTestDB(t, testserver.Postgres(t), buffertest.Options{})
		r.custom = shape
		r.exec(t, shape.ddl("outbox_events", false))
		_, err := postgres.Migrate(t.Context(), r.url, postgres.SchemaConfig{Table: "outbox_events", Custom: true})
		check(t, err)
	}
	config := r.ofCustom(postgres.Config{URL: r.url, Pipeline: "orders", Owner: "editing", Connections: 4, Sinks: sinks})
	open := func() *postgres.Buffer {
		b, err := postgres.Open(config)
		check(t, err)
		t.Cleanup(func() { check(t, b.Close()) })
		return b
	}
	r.editing = open()
	r.queue = r.editing
	r.exec(t, `INSERT INTO outbox_events (topic, payload) VALUES ('t', '"old"')`)
	var (
		batch *buffer.Lease
		err   error
	)
	if sinks == nil {
		batch, err = r.editing.Claim(t.Context(), 10, lease)
		check(t, err)
	} else {
		routeAll(t, r.editing, "[bus crm]")
		deliverAll(t, r.editing.Sink("bus"), takeOverOf(t, r.editing.Sink("bus"), "t"))
		r.queue = r.editing.Sink("crm")
		batch = takeOverOf(t, r.queue, "t")
	}
	check(t, r.queue.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}}))
	letters, err := r.editing.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
	check(t, err)
	if len(letters) != 1 {
		t.Fatalf("dead letters: %+v", letters)
	}
	old := letters[0].Payload
	if shape != nil {
		old = letters[0].Row
	}
	r.edit = buffer.DeadEdit{ID: letters[0].ID, UUID: letters[0].UUID, Row: shape != nil, Old: old, New: bytes.Replace(old, []byte("old"), []byte("new"), 1)}
	config.URL, config.Owner = r.asRole(t, "replaying", "GRANT ALL ON ALL TABLES IN SCHEMA public", "GRANT ALL ON ALL SEQUENCES IN SCHEMA public"), "replaying"
	r.replaying = open()
	return r
}

func (r *editRace) exec(t *testing.T, statement string) {
	t.Helper()
	_, err := r.pool.Exec(t.Context(), statement)
	check(t, err)
}

// hold runs a statement in a transaction, whose locks release ends.
func (r *editRace) hold(t *testing.T, statement string) (release func()) {
	t.Helper()
	tx, err := r.pool.Begin(t.Context())
	check(t, err)
	t.Cleanup(func() {
		if err := tx.Rollback(context.Background()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
	})
	_, err = tx.Exec(t.Context(), statement)
	check(t, err)
	return func() {
		t.Helper()
		check(t, tx.Rollback(t.Context()))
	}
}

// awaitWaiting waits until so many sessions of the relay wait for a lock, or done has ended.
func (r *editRace) awaitWaiting(t *testing.T, want int, done <-chan error) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if len(done) > 0 {
			return nil
		}
		var waiting int
		err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(&waiting)
		if err == nil && waiting < want {
			err = fmt.Errorf("%d sessions wait, want %d", waiting, want)
		}
		return err
	})
}

// startEdit edits in the background.
func (r *editRace) startEdit(t *testing.T) <-chan error {
	done := make(chan error, 1)
	go func() { done <- r.editing.EditDead(t.Context(), r.edit) }()
	return done
}

// startReplay replays in the background, and expects one dead letter.
func (r *editRace) startReplay(t *testing.T) <-chan error {
	done := make(chan error, 1)
	go func() {
		n, err := r.replaying.Replay(t.Context(), buffer.DeadFilter{}, 10)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d dead letters were replayed, want 1", n)
		}
		done <- err
	}()
	return done
}

// expectSent expects that the event is sent once, with this payload.
func (r *editRace) expectSent(t *testing.T, payload string) {
	t.Helper()
	batch := takeOverOf(t, r.queue, "t")
	if got := string(batch.Events[0].Payload); got != payload {
		t.Errorf("payload %s, want %s", got, payload)
	}
	deliverAll(t, r.queue, batch)
	takeOverOf(t, r.queue)
	left := query(t, r.pool, `SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)
		+ (SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL)`, pgx.RowTo[int64])[0]
	if left != 0 {
		t.Errorf("%d events, batches and open dead letters are left", left)
	}
}

// stalledSQL stalls the statement that puts dead letters back, between its snapshot and its row locks, for as long as somebody has the lock 4711.
const stalledSQL = `
CREATE FUNCTION public.stalled() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN
	IF current_query() LIKE '%INSERT INTO%' THEN PERFORM pg_advisory_xact_lock_shared(4711); END IF;
	RETURN true;
END $$;
CREATE POLICY stalled ON outbox_dead_letters USING (public.stalled());
ALTER TABLE outbox_dead_letters ENABLE ROW LEVEL SECURITY`

// TestEditDead_DuringReplay: an edit that begins while a replay reads the dead letter waits for it, and reports that it changed nothing. The replay
// would send what it has read.
func TestEditDead_DuringReplay(t *testing.T) {
	forEditRaces(t, func(t *testing.T, r *editRace) {
		r.exec(t, stalledSQL)
		release := r.hold(t, "SELECT pg_advisory_xact_lock(4711)")
		replayed := r.startReplay(t)
		r.awaitWaiting(t, 1, replayed)
		edited := r.startEdit(t)
		r.awaitWaiting(t, 2, edited)
		release()
		check(t, <-replayed)
		if err := <-edited; !errors.Is(err, buffer.ErrDeadChanged) {
			t.Errorf("the edit: %v", err)
		}
		r.expectSent(t, `"old"`)
	})
}

// TestReplay_DuringEdit: a replay that begins while a dead letter is edited waits for that, and sends the new payload.
func TestReplay_DuringEdit(t *testing.T) {
	forEditRaces(t, func(t *testing.T, r *editRace) {
		release := r.hold(t, "SELECT FROM outbox_dead_letters FOR UPDATE")
		edited := r.startEdit(t)
		r.awaitWaiting(t, 1, edited)
		replayed := r.startReplay(t)
		r.awaitWaiting(t, 2, replayed)
		release()
		check(t, <-edited)
		check(t, <-replayed)
		r.expectSent(t, `"new"`)
	})
}
