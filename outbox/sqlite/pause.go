package sqlite

import (
	"context"
	"database/sql"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const (
	pausePipelineSQL = `
UPDATE outbox_buffers SET paused_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), paused_by = ?2, paused_reason = ?3
WHERE buffer = ?1 AND paused_at IS NULL`

	resumePipelineSQL = `
UPDATE outbox_buffers SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
WHERE buffer = ?1 AND paused_at IS NOT NULL`

	pauseSinkSQL = `
UPDATE outbox_sinks SET paused_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), paused_by = ?2, paused_reason = ?3
WHERE buffer = ?1 AND sink = ?4 AND paused_at IS NULL AND dropped_at IS NULL`

	resumeSinkSQL = `
UPDATE outbox_sinks SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
WHERE buffer = ?1 AND sink = ?2 AND paused_at IS NOT NULL AND dropped_at IS NULL`

	pausableSQL = `
SELECT sink FROM outbox_sinks WHERE buffer = ?1 AND dropped_at IS NULL ORDER BY sink`

	pausesSQL = `
SELECT sink, (julianday('now') - julianday(paused_at)) * 86400, coalesce(paused_by, ''), coalesce(paused_reason, '') FROM (
  SELECT '' AS sink, paused_at, paused_by, paused_reason FROM outbox_buffers WHERE buffer = ?1
  UNION ALL SELECT sink, paused_at, paused_by, paused_reason FROM outbox_sinks WHERE buffer = ?1 AND dropped_at IS NULL
) WHERE paused_at IS NOT NULL ORDER BY sink`

	// pausedSQL reports whether a pipeline is paused, or its sink ?2, which another relay may have renamed.
	pausedSQL = `
SELECT EXISTS (SELECT 1 FROM outbox_buffers WHERE buffer = ?1 AND paused_at IS NOT NULL)
    OR EXISTS (SELECT 1 FROM outbox_sinks WHERE buffer = ?1 AND (sink = ?2 OR ?2 IN (SELECT value FROM json_each(formerly))) AND paused_at IS NOT NULL)`
)

var (
	_ buffer.Pauser   = (*Buffer)(nil)
	_ buffer.Pausable = (*Buffer)(nil)
	_ buffer.Pausable = (*sinkQueue)(nil)
)

// Pause implements buffer.Pauser.
func (b *Buffer) Pause(ctx context.Context, sink, by, reason string) (changed bool, err error) {
	if sink == "" {
		return b.setPause(ctx, "", pausePipelineSQL, by, reason)
	}
	return b.setPause(ctx, sink, pauseSinkSQL, by, reason, sink)
}

// Resume implements buffer.Pauser.
func (b *Buffer) Resume(ctx context.Context, sink string) (changed bool, err error) {
	if sink == "" {
		return b.setPause(ctx, "", resumePipelineSQL)
	}
	return b.setPause(ctx, sink, resumeSinkSQL, sink)
}

func (b *Buffer) setPause(ctx context.Context, sink, statement string, args ...any) (changed bool, err error) {
	var known []string
	err = b.write(ctx, "pausing or resuming", func(tx transaction) error {
		rows, err := tx.rows(ctx, pausableSQL, b.config.Table)
		if known, err = db.Column[string](rows, err); err != nil {
			return err
		}
		n, err := tx.exec(ctx, statement, append([]any{b.config.Table}, args...)...)
		changed = n > 0
		return err
	})
	if err == nil && sink != "" && !slices.Contains(known, sink) {
		return false, &buffer.NoSinkError{Table: b.config.Table, Name: sink, Known: known}
	}
	return changed, err
}

// Paused implements buffer.Pausable.
func (b *Buffer) Paused(ctx context.Context) (bool, error) { return b.pausedFor(ctx, "") }

// Paused implements buffer.Pausable.
func (q *sinkQueue) Paused(ctx context.Context) (bool, error) { return q.b.pausedFor(ctx, q.sink) }

func (b *Buffer) pausedFor(ctx context.Context, sink string) (paused bool, err error) {
	err = b.read(ctx, "reading what is paused", func(tx transaction) (err error) {
		paused, err = b.isPaused(ctx, tx, sink)
		return err
	})
	return paused, err
}

func (b *Buffer) isPaused(ctx context.Context, tx transaction, sink string) (paused bool, err error) {
	err = tx.row(ctx, pausedSQL, b.config.Table, sink).Scan(&paused)
	return paused, err
}

// pauses returns what is paused.
func (b *Buffer) pauses(ctx context.Context, tx transaction) ([]buffer.Pause, error) {
	rows, err := tx.rows(ctx, pausesSQL, b.config.Table)
	return db.All(rows, err, func(rows *sql.Rows, p *buffer.Pause) error {
		var since float64
		err := rows.Scan(&p.Sink, &since, &p.By, &p.Reason)
		p.For = seconds(since)
		return err
	})
}
