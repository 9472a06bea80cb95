// Package inbox is a consumer of the table that a PostgreSQL sink fills (sink: postgres://.../db?table=inbox): each event has its effect once,
// because the effect and the mark that it was processed are one transaction.
package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Event is a row of the inbox.
type Event struct {
	ID, Topic string
	Key       *string
	Payload   json.RawMessage
}

// next locks the oldest event that no other consumer is at. An event of a topic may overtake one that another consumer has locked.
const next = `
SELECT id, topic, key, payload FROM inbox
WHERE processed_at IS NULL
ORDER BY seq
LIMIT 1
FOR UPDATE SKIP LOCKED`

// Consume runs handle for the next event, in a transaction that handle may use and that also marks the event. It reports whether there
// was one. If handle fails, nothing of it happened, and the event is still there.
func Consume(ctx context.Context, db *pgxpool.Pool, handle func(context.Context, pgx.Tx, Event) error) (found bool, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		if wrong := tx.Rollback(context.WithoutCancel(ctx)); wrong != nil && !errors.Is(wrong, pgx.ErrTxClosed) {
			err = errors.Join(err, wrong)
		}
	}()
	var e Event
	switch err := tx.QueryRow(ctx, next).Scan(&e.ID, &e.Topic, &e.Key, &e.Payload); {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := handle(ctx, tx, e); err != nil {
		return true, fmt.Errorf("event %s: %w", e.ID, err)
	}
	if _, err := tx.Exec(ctx, "UPDATE inbox SET processed_at = now() WHERE id = $1", e.ID); err != nil {
		return true, err
	}
	return true, tx.Commit(ctx)
}

// Purge deletes events that were processed longer ago than keep, and returns their number. Until then an event that is sent again adds
// nothing, so keep must be longer than an event may be on its way: a day is plenty with the relay's defaults.
func Purge(ctx context.Context, db *pgxpool.Pool, keep time.Duration) (int64, error) {
	tag, err := db.Exec(ctx, "DELETE FROM inbox WHERE processed_at < now() - $1::interval", keep)
	return tag.RowsAffected(), err
}
