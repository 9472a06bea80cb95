package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// hookSuffix distinguishes the hook's ledger rows from the buffer's.
const hookSuffix = " dead letters"

// Hook is a pipeline's dead letters as the buffer of its dead-letter hook. Its
// methods are described by buffertest.Hook; all are safe for concurrent use.
type Hook struct {
	*ledger.Ledger
	b *Buffer

	mu       sync.Mutex
	freeNext time.Time
}

// DeadLetterQueue returns the dead letters of b's pipeline as the buffer of its hook; see
// buffertest.Hook. It shares b's connections.
func (b *Buffer) DeadLetterQueue() buffer.Queue {
	return &Hook{b: b, Ledger: ledger.New(b.base, hookSuffix, func() time.Time { return time.Time{} })}
}

// Check is described by buffertest.Buffer.
func (h *Hook) Check(ctx context.Context) error { return h.b.Check(ctx) }

// Those that are being told have a ledger row, and are counted there.
const lookForHookSQL = `
SELECT (SELECT count(*) FROM (
          SELECT FROM outbox_dead_letters
          WHERE pipeline = $2 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL
          LIMIT $3::bigint) untold),
       count(*) FILTER (WHERE due_at <= clock.now),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN outbox_batches ON buffer = $1`

// CountBacklog is described by buffertest.Hook.
func (h *Hook) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	t, err := h.b.ready(ctx)
	if err != nil {
		return buffer.Backlog{}, err
	}
	if err := h.free(ctx, t, limit); err != nil {
		return buffer.Backlog{}, h.b.explain(ctx, "looking for dead letters without a batch", err)
	}
	var backlog buffer.Backlog
	err = h.b.db.Transact(ctx, pg.ReadTx(h.b.db.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: t.SQL(lookForHookSQL), Args: []string{t.Buffer + hookSuffix, h.b.config.Pipeline, pg.Int(int64(limit))},
		Row: func(v [][]byte) error {
			backlog = buffer.Backlog{
				Unclaimed: int(pg.ReadInt8(v[0])), Due: int(pg.ReadInt8(v[1])), Waiting: int(pg.ReadInt8(v[2])), Delivered: int(pg.ReadInt8(v[3])),
			}
			return nil
		},
	})
	return backlog, h.b.explain(ctx, "counting dead letters to be told", err)
}

const freeSQL = `
UPDATE outbox_dead_letters d SET hook_group_id = NULL
WHERE pipeline = $1 AND notified_at IS NULL AND hook_group_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = d.hook_group_id)`

// free lets go of letters whose ledger row is gone (a restore, a hand), at the first
// look and as often as the buffer looks everywhere.
func (h *Hook) free(ctx context.Context, t *table, limit int) error {
	h.mu.Lock()
	due := limit > 0 && !time.Now().Before(h.freeNext)
	if due {
		h.freeNext = time.Now().Add(watermark.FullSweepInterval)
	}
	h.mu.Unlock()
	if !due {
		return nil
	}
	err := h.b.db.Transact(ctx, h.b.db.WriteTx(h.b.db.StatementTimeout, append([]string{"lock_timeout", pg.Milliseconds(t.LockTimeout)}, pg.PlanByKey...)...),
		pg.Step{SQL: t.SQL(freeSQL), Args: []string{h.b.config.Pipeline}})
	if err != nil {
		h.mu.Lock()
		h.freeNext = time.Time{} // the next look tries again
		h.mu.Unlock()
	}
	return err
}

// A letter's age is how long it has been one.
const hookStatusSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint AS claimed,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at
  FROM outbox_batches WHERE buffer = $1
), fresh AS (
  SELECT count(*) AS letters, min(died_at) FILTER (WHERE isfinite(died_at)) AS oldest_at
  FROM outbox_dead_letters
  WHERE pipeline = $2 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL
)
SELECT leased, waiting, delivered, claimed + fresh.letters,
       coalesce(extract(epoch FROM clock_timestamp() - least(ledger.oldest_at, fresh.oldest_at)) * 1000000, 0)::bigint
FROM ledger, fresh`

// Status is described by buffertest.Hook. It knows of no transactions but its own.
func (h *Hook) Status(ctx context.Context) (buffer.Status, error) {
	t, err := h.b.ready(ctx)
	if err != nil {
		return buffer.Status{}, err
	}
	var s buffer.Status
	err = h.b.db.Transact(ctx, pg.ReadTx(h.b.db.StatementTimeout, pg.PlanByPrimaryKey...), pg.Step{
		SQL: t.SQL(hookStatusSQL), Args: []string{t.Buffer + hookSuffix, h.b.config.Pipeline},
		Row: func(v [][]byte) error {
			s = buffer.Status{
				Leased: pg.ReadInt8(v[0]), Waiting: pg.ReadInt8(v[1]), Delivered: pg.ReadInt8(v[2]), Pending: pg.ReadInt8(v[3]),
				OldestPending: max(0, time.Duration(pg.ReadInt8(v[4]))*time.Microsecond),
			}
			return nil
		},
	})
	return s, h.b.explain(ctx, "reading the status of the dead letters", err)
}
