package sqlite

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	rememberArchiveSQL = `
UPDATE outbox_buffers SET archive = nullif(?2, '') WHERE buffer = ?1 AND archive IS NOT nullif(?2, '')`

	rememberedArchiveSQL = `
SELECT coalesce((SELECT archive FROM outbox_buffers WHERE buffer = ?1), '')`
)

var _ buffer.ArchiveMemory = (*Buffer)(nil)

// RememberArchive implements buffer.ArchiveMemory.
func (b *Buffer) RememberArchive(ctx context.Context) error {
	if b.config.Archive == "" && !b.config.ArchiveOff {
		return nil
	}
	return b.write(ctx, "writing down the archive", func(tx transaction) error {
		_, err := tx.exec(ctx, rememberArchiveSQL, b.config.Table, b.config.Archive)
		return err
	})
}

// ForgottenArchive implements buffer.ArchiveMemory.
func (b *Buffer) ForgottenArchive(ctx context.Context) (table string, err error) {
	if b.config.Archive != "" || b.config.ArchiveOff {
		return "", nil
	}
	err = b.read(ctx, "reading which archive the events were copied to", func(tx transaction) error {
		return tx.row(ctx, rememberedArchiveSQL, b.config.Table).Scan(&table)
	})
	return table, err
}
