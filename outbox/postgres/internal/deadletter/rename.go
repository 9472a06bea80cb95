package deadletter

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	renameOwnerSQL = `
UPDATE outbox_buffers SET pipeline = $2, owned_since = clock_timestamp() WHERE buffer = $1 AND pipeline = $3`

	ownsSQL = `
SELECT EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND pipeline = $2)`

	// Closed ones too. The letters of a pipeline that owns another buffer stay its own, and so does one whose event died
	// under both names.
	renameLettersSQL = `
UPDATE outbox_dead_letters d SET pipeline = $1
WHERE pipeline = $2 AND NOT EXISTS (SELECT FROM outbox_buffers WHERE pipeline = $2)
  AND NOT EXISTS (SELECT FROM outbox_dead_letters o WHERE o.pipeline = $1 AND o.event_id = d.event_id AND o.group_id = d.group_id)`
)

// Rename implements buffer.DeadLetters.
func (l *DeadLetters) Rename(ctx context.Context, from string) (r buffer.Renamed, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return r, err
	}
	var owned int64
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(pg.ScanTimeout, "synchronous_commit", "on"),
		pg.Step{SQL: t.SQL(renameOwnerSQL), Args: []string{t.Buffer, l.base.Pipeline, from}, Affected: &owned},
		pg.Step{SQL: t.SQL(ownsSQL), Args: []string{t.Buffer, l.base.Pipeline}, Row: func(v [][]byte) error {
			r.Owns = pg.ReadBool(v[0])
			return nil
		}},
		pg.Step{SQL: t.SQL(renameLettersSQL), Args: []string{l.base.Pipeline, from}, Affected: &r.Letters})
	r.Owner = owned > 0
	return r, l.base.Explain(ctx, "renaming the pipeline", err)
}

// No pipeline has a name that owns no buffer of this ledger.
const orphanedSQL = `
SELECT pipeline, count(*) FROM outbox_dead_letters d
WHERE closed_at IS NULL AND pipeline <> $1 AND NOT EXISTS (SELECT FROM outbox_buffers b WHERE b.pipeline = d.pipeline)
GROUP BY pipeline ORDER BY pipeline`

// Orphaned returns a finding for each name that open dead letters have and no pipeline.
func (l *DeadLetters) Orphaned(ctx context.Context) (found []buffer.Finding, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	begin := pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off")
	begin.Row = func([][]byte) error {
		found = nil
		return nil
	}
	err = l.base.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(orphanedSQL), Args: []string{l.base.Pipeline}, Row: func(v [][]byte) error {
		found = append(found, ownership.OrphanedLetters(string(v[0]), pg.ReadInt8(v[1])))
		return nil
	}})
	return found, l.base.Explain(ctx, "looking for dead letters of other names", err)
}
