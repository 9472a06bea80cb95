package claim

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const peekSQL = `
WITH` + ledger.HeldSQL + `
SELECT id, topic, key, payload, headers, created_at, clock_timestamp() FROM outbox_events
WHERE id > $2::bigint AND group_id IS NULL AND NOT id <@ (SELECT members FROM held) AND ` + ledger.AvailableSQL + `
ORDER BY id LIMIT $4::bigint`

// Peek returns the events of the relay's own table that a claim would take first.
func (c *Claimer) Peek(ctx context.Context, t *ledger.Tables, limit int) (*buffer.Lease, error) {
	var clock time.Time
	floor, lastValue := c.watermarks.Span()
	rows := pg.EventDecoder{PayloadOID: t.PayloadOID}
	begin := pg.ReadTx(c.base.DB.StatementTimeout, pg.PlanByPrimaryKey...)
	begin.Row = rows.Reset
	err := c.base.DB.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(peekSQL), Args: []string{t.Buffer, pg.Int(floor), pg.Int(lastValue), pg.Int(int64(limit))},
		Columns: rows.Columns,
		Row: func(v [][]byte) error {
			clock = pg.ReadTime(v[6])
			return rows.Append(v)
		},
	})
	if errors.Is(err, buffer.ErrTooLarge) {
		err = nil // as many as a batch may have
	}
	if err != nil || len(rows.Events) == 0 {
		return nil, c.base.Explain(ctx, "peeking", err)
	}
	return c.base.Complete(&rows, buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, ClaimedAt: clock, ClaimedLocal: time.Now()}), nil
}
