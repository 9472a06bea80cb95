package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const windowSQL = `
SELECT id FROM outbox_events WHERE id > ?1 AND group_id IS NULL
ORDER BY id LIMIT ?2`

const stampFreeSQL = `
UPDATE outbox_events SET group_id = ?1
WHERE id IN (SELECT value FROM json_each(?2)) AND group_id IS NULL`

const (
	// windowOf is how many batches' worth a claim chooses among.
	windowOf = 8
	// tries is how often a claim chooses anew when others were quicker.
	tries = 3
)

// claimOptimistic makes a batch without having locked anything while it chose: it reads
// a window of events, chooses one batch's worth at random, and stamps what is still
// unclaimed of that. Processes that read the same window mostly choose differently.
func (b *Buffer) claimOptimistic(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	for range tries {
		from := b.cursor.from()
		window, err := b.window(ctx, from, limit)
		if err != nil {
			return nil, err
		}
		if len(window) == 0 {
			b.cursor.nothingBeyond(from)
			return nil, nil
		}
		chosen, left := choose(window, limit, b.choose)
		batch, err := b.claimChosen(ctx, from, chosen, left, lease)
		if errors.Is(err, errNotOptimistic) {
			return b.claimNext(ctx, limit, lease)
		}
		if batch != nil || err != nil {
			return batch, err
		}
	}
	return nil, nil
}

func (b *Buffer) window(ctx context.Context, from int64, limit int) ([]int64, error) {
	ids, err := column[int64](b.db.QueryContext(ctx, b.names.Replace(windowSQL), from, windowOf*limit))
	return ids, b.explain(ctx, "looking for events to claim", err)
}

// choose takes one of the full batches of the window, or what there is when it has none;
// left is the first id of the window that was not taken, 0 when all were. What
// stays behind is whole batches again.
func choose(window []int64, limit int, among func(n int) int) (chosen []int64, left int64) {
	first := among(max(1, len(window)/limit)) * limit
	end := min(len(window), first+limit)
	switch {
	case first > 0:
		left = window[0]
	case end < len(window):
		left = window[end]
	}
	return window[first:end], left
}

// claimChosen makes a batch of those that are still unclaimed; nil: none is.
func (b *Buffer) claimChosen(ctx context.Context, from int64, chosen []int64, left int64, lease time.Duration) (*buffer.Lease, error) {
	ids, err := idsText(chosen)
	if err != nil {
		return nil, err
	}
	batch := b.batch(lease)
	committing := false
	err = b.write(ctx, "claiming a batch", func(tx transaction) error {
		mode, err := b.mode(ctx, tx)
		if err != nil {
			return err
		}
		if mode != claimOptimistic {
			return errNotOptimistic
		}
		stamped, err := tx.exec(ctx, stampFreeSQL, batch.GroupID.String(), ids)
		if err != nil {
			return err
		}
		if stamped == 0 {
			return errNothing
		}
		which := extent{stamp: batch.GroupID.String(), first: chosen[0], last: chosen[len(chosen)-1]}
		rows, err := tx.rows(ctx, eventsOfSQL, which.args()...)
		if err != nil {
			return err
		}
		if batch.Events, err = scanEvents(rows, len(chosen)); err != nil {
			return err
		}
		if err := b.open(ctx, tx, batch, lease, nil); err != nil {
			return err
		}
		b.cursor.claimed(from, chosen[len(chosen)-1], left)
		committing = true
		return nil
	})
	return b.claimed(batch, err, committing)
}
