package deadletter

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// suffix distinguishes the queue's ledger rows from the buffer's.
const suffix = " dead letters"

// Queue is the queue of the dead-letter hook. It implements buffer.Queue; its methods are safe for
// concurrent use.
type Queue struct {
	*ledger.Ledger
	base            *ledger.Base
	check           func(context.Context) error
	releaseInterval time.Duration

	mu        sync.Mutex
	releaseAt time.Time
}

// NewQueue returns the queue of a pipeline's dead letters, which check checks. It looks for orphaned dead
// letters at the first count and once an interval.
func NewQueue(base *ledger.Base, check func(context.Context) error, releaseInterval time.Duration) *Queue {
	return &Queue{
		Ledger: ledger.New(base, suffix, func() time.Time { return time.Time{} }),
		base:   base, check: check, releaseInterval: releaseInterval,
	}
}

// Check implements buffer.Inspector.
func (q *Queue) Check(ctx context.Context) error { return q.check(ctx) }

// Claimed dead letters have a ledger row and are counted there.
const backlogSQL = `
SELECT (SELECT count(*) FROM (
          SELECT FROM outbox_dead_letters
          WHERE pipeline = $2 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL
          LIMIT $3::bigint) unnotified),
       count(*) FILTER (WHERE due_at <= clock.now),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN outbox_batches ON buffer = $1`

// CountBacklog implements buffer.Inspector.
func (q *Queue) CountBacklog(ctx context.Context, limit int) (backlog buffer.Backlog, err error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return backlog, err
	}
	if err := q.releaseOrphaned(ctx, t, limit); err != nil {
		return backlog, q.base.Explain(ctx, "releasing dead letters without a batch", err)
	}
	err = q.base.DB.Transact(ctx, pg.ReadTx(q.base.DB.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: t.SQL(backlogSQL), Args: []string{t.Buffer + suffix, q.base.Pipeline, pg.Int(int64(limit))},
		Row: func(v [][]byte) error {
			backlog = buffer.Backlog{
				Unclaimed: int(pg.ReadInt8(v[0])), Due: int(pg.ReadInt8(v[1])), Waiting: int(pg.ReadInt8(v[2])), Delivered: int(pg.ReadInt8(v[3])),
			}
			return nil
		},
	})
	return backlog, q.base.Explain(ctx, "counting unnotified dead letters", err)
}

const releaseOrphanedSQL = `
UPDATE outbox_dead_letters d SET hook_group_id = NULL
WHERE pipeline = $1 AND notified_at IS NULL AND hook_group_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = d.hook_group_id)`

// releaseOrphaned releases, when that is due, claimed dead letters whose ledger row is gone (a
// restore, a manual change).
func (q *Queue) releaseOrphaned(ctx context.Context, t *ledger.Tables, limit int) error {
	q.mu.Lock()
	due := limit > 0 && !time.Now().Before(q.releaseAt)
	if due {
		q.releaseAt = time.Now().Add(q.releaseInterval)
	}
	q.mu.Unlock()
	if !due {
		return nil
	}
	err := q.base.DB.Transact(ctx, q.base.DB.WriteTx(q.base.DB.StatementTimeout, append([]string{"lock_timeout", pg.Milliseconds(t.LockTimeout)}, pg.PlanByKey...)...),
		pg.Step{SQL: t.SQL(releaseOrphanedSQL), Args: []string{q.base.Pipeline}})
	if err != nil {
		q.mu.Lock()
		q.releaseAt = time.Time{} // the next count tries again
		q.mu.Unlock()
	}
	return err
}

// The age of a dead letter is measured from when it died.
const statusSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint AS claimed,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at
  FROM outbox_batches WHERE buffer = $1
), unclaimed AS (
  SELECT count(*) AS n, min(died_at) FILTER (WHERE isfinite(died_at)) AS oldest_at
  FROM outbox_dead_letters
  WHERE pipeline = $2 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL
)
SELECT leased, waiting, delivered, claimed + unclaimed.n,
       coalesce(extract(epoch FROM clock_timestamp() - least(ledger.oldest_at, unclaimed.oldest_at)) * 1000000, 0)::bigint
FROM ledger, unclaimed`

// Status implements buffer.Inspector. It leaves out what the buffer's status has: dead letters and
// transactions.
func (q *Queue) Status(ctx context.Context) (s buffer.Status, err error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return s, err
	}
	err = q.base.DB.Transact(ctx, pg.ReadTx(q.base.DB.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: t.SQL(statusSQL), Args: []string{t.Buffer + suffix, q.base.Pipeline},
		Row: func(v [][]byte) error {
			s = buffer.Status{
				Leased: pg.ReadInt8(v[0]), Waiting: pg.ReadInt8(v[1]), Delivered: pg.ReadInt8(v[2]), Pending: pg.ReadInt8(v[3]),
				OldestPending: pg.ReadAge(v[4]),
			}
			return nil
		},
	})
	return s, q.base.Explain(ctx, "reading the status of the dead letters", err)
}
