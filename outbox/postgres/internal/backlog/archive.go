package backlog

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	rememberArchiveSQL = `
UPDATE outbox_buffers SET archive = nullif($2, '') WHERE buffer = $1 AND archive IS DISTINCT FROM nullif($2, '')`

	rememberedArchiveSQL = `
SELECT coalesce((SELECT archive FROM outbox_buffers WHERE buffer = $1), '')`
)

// SetArchive writes down the archive to which events are copied, "" for none.
func (b *Backlog) SetArchive(ctx context.Context, table string) error {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return err
	}
	err = b.base.DB.Transact(ctx, b.base.DB.WriteTx(b.base.DB.StatementTimeout, "synchronous_commit", "off"),
		pg.Step{SQL: t.SQL(rememberArchiveSQL), Args: []string{t.Buffer, b.base.DB.Text(table)}})
	return b.base.Explain(ctx, "writing down the archive", err)
}

// Archive returns the archive that was written down last; "" for none.
func (b *Backlog) Archive(ctx context.Context) (table string, err error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return "", err
	}
	err = b.base.DB.Transact(ctx, pg.ReadTx(b.base.DB.StatementTimeout), pg.Step{SQL: t.SQL(rememberedArchiveSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		table = string(v[0])
		return nil
	}})
	return table, b.base.Explain(ctx, "reading which archive the events were copied to", err)
}
