package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/archive"
)

var (
	_ buffer.Archiver      = (*Buffer)(nil)
	_ buffer.ArchiveMemory = (*Buffer)(nil)
)

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

var _ buffer.Retention = (*Buffer)(nil)

// DeleteArchived implements buffer.Retention.
func (b *Buffer) DeleteArchived(ctx context.Context, keep time.Duration, from time.Time, limit int) (buffer.DeletedArchived, error) {
	return onTable(ctx, b, func(t *table) (d buffer.DeletedArchived, err error) {
		if !t.Archive {
			return d, buffer.ErrNoArchive
		}
		return archive.Delete(ctx, b.base, &t.Tables, keep, from, limit)
	})
}

// ArchiveSize implements buffer.Retention.
func (b *Buffer) ArchiveSize(ctx context.Context) (buffer.ArchiveSize, error) {
	return onTable(ctx, b, func(t *table) (s buffer.ArchiveSize, err error) {
		if !t.Archive {
			return s, buffer.ErrNoArchive
		}
		return archive.Size(ctx, b.base, &t.Tables)
	})
}

// RememberArchive implements buffer.ArchiveMemory.
func (b *Buffer) RememberArchive(ctx context.Context) error {
	if b.config.Archive == "" && !b.config.ArchiveOff {
		return nil
	}
	return b.SetArchive(ctx, b.config.Archive)
}

// ForgottenArchive implements buffer.ArchiveMemory.
func (b *Buffer) ForgottenArchive(ctx context.Context) (string, error) {
	if b.config.Archive != "" || b.config.ArchiveOff {
		return "", nil
	}
	return b.Archive(ctx)
}
