package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/examples/inbox"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/pgsink"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// Each event has its effect once, although batches arrive again, handlers fail and several consumers run.
func TestConsume(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	db, err := pgxpool.New(t.Context(), url)
	testkit.NoError(t, err)
	t.Cleanup(db.Close)
	_, err = db.Exec(t.Context(), pgsink.Schema("inbox")+"CREATE TABLE stock (item text PRIMARY KEY, n int NOT NULL); INSERT INTO stock VALUES ('book', 0)")
	testkit.NoError(t, err)
	s, err := pgsink.New(pgsink.Config{URL: withTable(url)})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })

	const events = 200
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "orders", PayloadIsJSON: true}
	for id := range int64(events) {
		b.Events = append(b.Events, outbox.Event{ID: id + 1, Topic: "orders.created", Payload: fmt.Appendf(nil, `{"order": %d}`, id+1), CreatedAt: time.Now()})
	}
	var failures atomic.Int64
	handle := func(ctx context.Context, tx pgx.Tx, _ inbox.Event) error {
		if _, err := tx.Exec(ctx, "UPDATE stock SET n = n + 1 WHERE item = 'book'"); err != nil {
			return err
		}
		if failures.Add(1)%7 == 0 {
			return errors.New("after the effect, before its commit")
		}
		return nil
	}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				found, err := inbox.Consume(t.Context(), db, handle)
				if !found && (err != nil || consumed(t, db) == events) {
					if err != nil {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	for range 3 { // as after a crash of the relay
		testkit.NoError(t, s.Send(t.Context(), b))
	}
	all.Wait()
	var n int
	testkit.NoError(t, db.QueryRow(t.Context(), "SELECT n FROM stock").Scan(&n))
	testkit.Equal(t, "effects", n, events)
	deleted, err := inbox.Purge(t.Context(), db, time.Hour)
	testkit.NoError(t, err)
	testkit.Equal(t, "deleted within the hour", deleted, int64(0))
	deleted, err = inbox.Purge(t.Context(), db, 0)
	testkit.NoError(t, err)
	testkit.Equal(t, "deleted", deleted, int64(events))
}

func withTable(url string) string {
	if strings.Contains(url, "?") {
		return url + "&table=inbox"
	}
	return url + "?table=inbox"
}

func consumed(t *testing.T, db *pgxpool.Pool) (n int) {
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM inbox WHERE processed_at IS NOT NULL").Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}
