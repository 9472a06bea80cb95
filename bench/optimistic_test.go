package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
)

// The optimistic contender claims without SKIP LOCKED: it reads a window of unclaimed ids without
// a lock, chooses one batch of them at random, and stamps what is still unclaimed of it. Like the
// loop it has no retry and no dead letter.
const (
	optimisticWorkers = 2
	optimisticWindow  = 8 // batches

	optimisticWindowSQL = `
SELECT id FROM outbox_events WHERE id > $1 AND group_id IS NULL ORDER BY id LIMIT $2`

	optimisticClaimSQL = `
UPDATE outbox_events SET group_id = $1 WHERE id = ANY ($2) AND group_id IS NULL
RETURNING id, topic, key, payload, headers, created_at`

	optimisticDeleteSQL = `
DELETE FROM outbox_events WHERE id = ANY ($2) AND group_id = $1`
)

// optimistic returns the contender if -only selects it.
func (db *database) optimistic() []contender {
	if !wanted("optimistic") {
		return nil
	}
	return []contender{{name: "optimistic", table: eventsTable, shape: stampShape, start: func(b *testing.B, to broker, _ int) drain {
		ctx, cancel := bounded(b, 2*time.Minute)
		conns, pushes := make([]*pgx.Conn, optimisticWorkers), make([]push, optimisticWorkers)
		for i := range conns {
			var err error
			conns[i], err = pgx.Connect(ctx, db.url)
			testkit.NoError(b, err)
			pushes[i], err = to.loop()
			testkit.NoError(b, err)
		}
		var group errgroup.Group
		for i, conn := range conns {
			group.Go(func() error { return drainOptimistically(ctx, conn, pushes[i]) })
		}
		return drain{done: func() { testkit.NoError(b, group.Wait()) }, stop: func() {
			var err error
			for _, conn := range conns {
				err = errors.Join(err, conn.Close(ctx))
			}
			cancel()
			testkit.NoError(b, err)
		}}
	}}}
}

func drainOptimistically(ctx context.Context, conn *pgx.Conn, push push) error {
	after := int64(0) // no unclaimed event is at or below
	for {
		window, err := query(ctx, conn, pgx.RowTo[int64], optimisticWindowSQL, after, optimisticWindow*batchSize)
		if err != nil || len(window) == 0 {
			return err
		}
		after = window[0] - 1
		first := rand.IntN(max(1, len(window)/batchSize)) * batchSize
		chosen := window[first:min(len(window), first+batchSize)]
		group := uuid.New()
		events, err := query(ctx, conn, scanLoopEvent, optimisticClaimSQL, group, chosen)
		if err != nil {
			return err
		}
		if len(events) == 0 { // another worker chose the same
			continue
		}
		if err := push(ctx, events); err != nil {
			return err
		}
		deleted, err := conn.Exec(ctx, optimisticDeleteSQL, group, chosen)
		if err != nil {
			return err
		}
		if deleted.RowsAffected() != int64(len(events)) {
			return fmt.Errorf("%d of %d events were deleted", deleted.RowsAffected(), len(events))
		}
	}
}

func query[T any](ctx context.Context, conn *pgx.Conn, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func scanLoopEvent(row pgx.CollectableRow) (e loopEvent, err error) {
	err = row.Scan(&e.id, &e.topic, &e.key, &e.payload, &e.headers, &e.createdAt)
	return e, err
}
