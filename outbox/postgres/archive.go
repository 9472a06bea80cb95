package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/archive"
)

var _ buffer.Archiver = (*Buffer)(nil)

// ReplayArchived implements buffer.Archiver.
func (b *Buffer) ReplayArchived(ctx context.Context, f buffer.ArchiveFilter, dry bool, progress func(buffer.Replayed)) (buffer.Replayed, error) {
	return onTable(ctx, b, func(t *table) (r buffer.Replayed, err error) {
		switch {
		case !t.Archive:
			return r, buffer.ErrNoArchive
		case b.config.Custom.Is():
			return r, buffer.ErrArchiveRows
		}
		var takes buffer.Patterns
		if f.Sink != "" {
			if takes, err = b.routes.Takes(ctx, &t.Tables, f.Sink); err != nil {
				return r, err
			}
		}
		return archive.Replay(ctx, b.base, &t.Tables, f, takes, dry, progress)
	})
}
