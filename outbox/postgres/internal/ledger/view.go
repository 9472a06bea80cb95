package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	viewNothingSQL  = ViewSQL + NothingSQL
	viewedEventsSQL = readSQL + `
ORDER BY e.id LIMIT $2::bigint`
)

// View reads a batch that nobody needs to lease: nil if there is none. sql begins with [ViewSQL]; add reads the columns after those of the ledger, into rows.
func (b *Base) View(ctx context.Context, t *Tables, groupID uuid.UUID, rows *pg.EventDecoder, add func([][]byte) error, sql string) (*buffer.Lease, error) {
	var batch *buffer.Lease
	begin := pg.ReadTx(b.DB.StatementTimeout, pg.PlanByKey...)
	begin.Row = func([][]byte) error {
		batch = nil
		return rows.Reset(nil)
	}
	err := b.DB.Transact(ctx, begin, pg.Step{SQL: t.SQL(sql), Args: []string{t.Buffer, groupID.String()}, Row: func(v [][]byte) error {
		if batch == nil {
			read := readTaken(v, time.Now())
			read.Delivered = nil // they are shown, as the others are
			batch = &read
		}
		if v[12] == nil { // no row
			return nil
		}
		return add(v[12:])
	}})
	return batch, b.Explain(ctx, "reading a batch", err)
}

// ViewEvents reads up to limit events of a batch of the relay's own table; nil if there is none.
func ViewEvents(ctx context.Context, l *Ledger, t *Tables, groupID uuid.UUID, limit int) (*buffer.Lease, error) {
	b := l.base
	batch, err := b.View(ctx, t, groupID, &pg.EventDecoder{}, nil, viewNothingSQL)
	if err != nil || batch == nil {
		return nil, err
	}
	rows := pg.EventDecoder{PayloadOID: t.PayloadOID}
	begin := pg.ReadTx(b.DB.StatementTimeout, "enable_seqscan", "off")
	begin.Row = rows.Reset
	err = b.DB.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(viewedEventsSQL), Args: []string{groupID.String(), pg.Int(int64(limit))}, Columns: rows.Columns, Row: rows.Append,
	})
	if errors.Is(err, buffer.ErrTooLarge) && len(rows.Events) > 0 { // as many as a batch may have
		err = nil
	}
	if err != nil {
		return nil, b.Explain(ctx, "reading a batch", err)
	}
	return b.Complete(&rows, *batch), nil
}
