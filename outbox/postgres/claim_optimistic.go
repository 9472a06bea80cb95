package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// An optimistic claim locks nothing while it chooses. It reads a window of unclaimed
// ids, takes one batch's worth of them at random, and stamps what is still unclaimed of
// that. Processes that read the same window mostly choose differently; those that do not
// wait for each other, and the second one finds nothing left.

// windowSQL locks no row. Its transaction begins with claimBeginSQL, which keeps the
// planner to the primary key's order.
const windowSQL = `
SELECT id FROM outbox_events
WHERE id > $1::bigint AND id <= $2::bigint AND group_id IS NULL
ORDER BY id LIMIT $3::bigint`

// The rows are found, and locked, in id order: with the settings of claimBeginSQL it is
// the primary key that the array is looked up in. So two claims do not deadlock. After a
// lock was waited for PostgreSQL looks at group_id again. The ledger counts what was
// stamped, not what was chosen.
const claimChosenSQL = `
WITH stamped AS (
  UPDATE outbox_events SET group_id = $2::uuid
  WHERE id = ANY ($3::bigint[]) AND group_id IS NULL
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'optimistic')
  RETURNING id, topic, key, payload, headers, created_at
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $4::interval, $5, 1,
         0, 0, count(*), min(id), max(id), min(created_at)
  FROM stamped HAVING count(*) > 0
)
SELECT id, topic, key, payload, headers, created_at FROM stamped`

const (
	claimOptimistic = string(buffer.ClaimOptimistic)

	// windowOf is how many batches' worth a claim chooses among.
	windowOf = 8
	// choices is how often a claim chooses, when others were quicker or have locked
	// what it chose.
	choices = 5
	// lockedFor is how long a claim waits for a row that is locked, at most. Another
	// claim has given it back sooner.
	lockedFor = 100 * time.Millisecond
)

// claimFromWindow claims in one stretch after the other, as claimAcross does.
func (b *Buffer) claimFromWindow(ctx context.Context, t *table, limit int, lease time.Duration) (*buffer.Lease, error) {
	for _, where := range b.marks.stretches() {
		batch, err := b.claimAmong(ctx, t, limit, lease, where)
		if batch != nil || err != nil {
			return batch, err
		}
	}
	return nil, nil
}

// claimAmong chooses until it has something, or has chosen often enough. Where a row of
// its choice is locked it chooses half as many the next time, so that one that the
// application has does not hold up those around it.
func (b *Buffer) claimAmong(
	ctx context.Context, t *table, limit int, lease time.Duration, where stretch,
) (*buffer.Lease, error) {
	atOnce := limit
	for range choices {
		window, lastValue, err := b.window(ctx, t, windowOf*limit, where)
		if err != nil {
			return nil, err
		}
		if len(window) == 0 {
			b.marks.claimed(where, nil, lastValue)
			return nil, nil
		}
		chosen, left := choose(window, atOnce, b.choose)
		batch, err := b.claimChosen(ctx, t, chosen, lease)
		switch {
		case pg.Code(err) == pg.CodeLockTimeout:
			atOnce = max(1, min(atOnce, len(chosen))/2)
		case err != nil:
			return nil, err
		case batch != nil:
			b.marks.claimed(where, upTo(left, batch), lastValue)
			return batch, nil
		}
	}
	return nil, nil
}

// upTo is the batch as the marks are told of it: the cursor passes no event that was
// left behind.
func upTo(left int64, batch *buffer.Lease) *buffer.Lease {
	if left == 0 || left > batch.LastID {
		return batch
	}
	return &buffer.Lease{Batch: buffer.Batch{Events: batch.Events}, LastID: left - 1}
}

// window reads the first unclaimed ids of a stretch. lastValue is the sequence's, read
// before.
func (b *Buffer) window(ctx context.Context, t *table, size int, where stretch) (ids []int64, lastValue int64, err error) {
	var mode string
	err = b.db.Transact(
		ctx,
		pg.Step{SQL: t.sql(claimBeginSQL), Args: []string{
			t.sequence, t.buffer, pg.Milliseconds(b.db.StatementTimeout), b.db.UserTimeout(),
		}, Row: func(v [][]byte) error {
			lastValue, mode, ids = pg.ReadInt8(v[0]), string(v[2]), ids[:0]
			return nil
		}},
		pg.Step{
			SQL:  t.sql(windowSQL),
			Args: []string{pg.Int(where.after), pg.Int(where.upTo), pg.Int(int64(size))},
			Row: func(v [][]byte) error {
				ids = append(ids, pg.ReadInt8(v[0]))
				return nil
			},
		},
	)
	if err == nil && mode != claimOptimistic {
		err = storedMode(mode)
	}
	return ids, lastValue, err
}

// choose takes one of the full batches of the window, or what there is when it has none;
// left is the first id of the window that was not taken, 0 when all were. What stays
// behind is whole batches again.
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

// claimChosen makes a batch of those that are still unclaimed; nil: none is. The error
// is a lock's timeout when the application has one of them.
func (b *Buffer) claimChosen(ctx context.Context, t *table, chosen []int64, lease time.Duration) (*buffer.Lease, error) {
	var (
		groupID  = buffer.NewGroupID()
		rows     = pg.EventDecoder{PayloadOID: t.payloadOID}
		clock    time.Time
		mode     string
		leaseEnd = time.Now().Add(lease)
	)
	rows.Reserve(len(chosen))
	err := b.db.Transact(
		ctx,
		pg.Step{SQL: t.sql(claimBeginSQL), Args: []string{
			t.sequence, t.buffer, pg.Milliseconds(b.db.StatementTimeout), b.db.UserTimeout(),
		}, Row: func(v [][]byte) error {
			clock, mode = pg.ReadTime(v[1]), string(v[2])
			return rows.Reset(nil)
		}},
		pg.SetLocal("lock_timeout", pg.Milliseconds(min(lockedFor, t.lockTimeout))),
		pg.Step{
			SQL:  t.sql(claimChosenSQL),
			Args: []string{t.buffer, groupID.String(), pg.IDArray(chosen), pg.Interval(lease), b.config.Owner},
			Row:  rows.Append,
		},
	)
	switch {
	case err != nil:
		return nil, err
	case mode != claimOptimistic:
		return nil, storedMode(mode)
	case len(rows.Events) == 0:
		return nil, nil
	}
	return b.leased(&rows, buffer.Lease{
		Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: leaseEnd, UnfinishedLeases: 1,
		ClaimedAt: clock, ClaimedLocal: time.Now(),
	}), nil
}
