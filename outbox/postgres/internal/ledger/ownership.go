package ledger

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The first pipeline that claims owns the buffer.
const (
	ownSQL = `
UPDATE outbox_buffers SET pipeline = $2, owned_since = clock_timestamp() WHERE buffer = $1 AND pipeline IS NULL`

	ownerSQL = `
SELECT coalesce(pipeline, ''), coalesce(owned_since, 'epoch') FROM outbox_buffers WHERE buffer = $1`
)

// Own makes the pipeline the buffer's owner if it has none. The error is an *ownership.Error if another pipeline owns it; counts look
// again whether that is still so.
func (b *Base) Own(ctx context.Context, t *Tables) error {
	mine, err := b.Ownership.Known()
	if mine || err != nil {
		return err
	}
	var (
		owner string
		since time.Time
	)
	err = b.DB.Transact(ctx, b.DB.WriteTx(b.DB.StatementTimeout, "synchronous_commit", "on"),
		pg.Step{SQL: t.SQL(ownSQL), Args: []string{t.Buffer, b.Pipeline}},
		pg.Step{SQL: t.SQL(ownerSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
			owner, since = string(v[0]), pg.ReadTime(v[1])
			return nil
		}})
	if err != nil {
		return b.Explain(ctx, "reading the buffer's owner", err)
	}
	b.Ownership.Saw(t.Buffer, owner, b.Pipeline, since)
	_, conflict := b.Ownership.Known()
	return conflict
}
