package buffer

import (
	"context"
	"time"
)

// Retention is a buffer that deletes what it has kept long enough: delivered events in its archive, and closed dead letters. All methods are safe
// beside relays, and in several processes at once: each piece is deleted by one of them.
type Retention interface {
	// DeleteArchived deletes up to limit events that were archived longer than keep ago, the oldest first, in one short transaction. From is the
	// Next of the call before, so that rows that were deleted and are not vacuumed yet are not read again; the zero time is the oldest event.
	// The error wraps [ErrNotReady] if the archive has no index for it, or the role may not delete from it, and is [ErrNoArchive] without an archive.
	// A partitioned archive loses whole partitions instead, one a call, and gets those of the next days; limit 0 changes nothing.
	DeleteArchived(ctx context.Context, keep time.Duration, from time.Time, limit int) (DeletedArchived, error)

	// DeleteClosed looks at the next page of up to limit dead letters of the pipeline behind after, nil for the first, and deletes those that match f and
	// were replayed or discarded longer than keep ago. It ignores f.Closed. One that a dead-letter hook is being notified of stays.
	DeleteClosed(ctx context.Context, f DeadFilter, keep time.Duration, after *DeadKey, limit int) (DeletedClosed, error)

	// ArchiveSize returns how large the archive is; the error is [ErrNoArchive] without one. It does not count rows.
	ArchiveSize(ctx context.Context) (ArchiveSize, error)
}

// DeletedArchived is what a call of DeleteArchived did.
type DeletedArchived struct {
	// Events were deleted. Those of Partitions that were dropped whole, if the archive has some, are not counted.
	Events     int64
	Partitions int
	// Next is where the next call continues.
	Next time.Time
	// More reports whether there may be more to delete now. It is false, too, while another process deletes.
	More bool
}

// DeletedClosed is what a call of DeleteClosed did.
type DeletedClosed struct {
	// DeadLetters were deleted.
	DeadLetters int64
	// Next is the last dead letter of the page; nil: it was the last page, or another process deletes.
	Next *DeadKey
}

// ArchiveSize is the size of an archive.
type ArchiveSize struct {
	// Table is its name.
	Table string
	// Bytes are what it takes on the disk, with its indexes; on SQLite an estimate.
	Bytes int64
	// Events is an estimate; -1: PostgreSQL has none yet, until autovacuum analyses the table.
	Events int64
	// Oldest is when the oldest event was archived; zero if the archive is empty. Now is the time of the database.
	Oldest, Now time.Time
	// Partitions are those of a partitioned archive, without the default partition, in which DefaultBytes are: of days without a partition.
	Partitions   int
	DefaultBytes int64
}

// OldestAge is the time since the oldest event was archived; 0 if the archive is empty.
func (s *ArchiveSize) OldestAge() time.Duration {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(0, s.Now.Sub(s.Oldest))
}
