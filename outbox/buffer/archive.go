package buffer

import (
	"context"
	"errors"
	"time"
)

// Archiver is a buffer with an archive: delivered events, as they were deleted.
type Archiver interface {
	// ReplayArchived puts archived events back into the buffer: under their old ids, in batches with new group_ids, so that the sinks get them once more. With
	// dry it changes nothing and counts what it would put back. progress, which may be nil, is called with the sum so far after each transaction. It may
	// wait, which slows the replay down.
	//
	// Each event is put back once, as it was archived last. It is left out if it waits in the buffer, or was delivered and archived again after f.Until. So a replay
	// that failed, or was killed, is continued by the same call with the same Until, which is in the result. It works beside relays, and one replay of a
	// buffer waits for the other.
	//
	// The error is [ErrNoArchive], [ErrArchiveRows], or a [*NoSinkError] if events are routed to no sink f.Sink.
	ReplayArchived(ctx context.Context, f ArchiveFilter, dry bool, progress func(Replayed)) (Replayed, error)
}

var (
	// ErrNoArchive is the error of a buffer without an archive.
	ErrNoArchive = errors.New("the pipeline has no archive")
	// ErrArchiveRows is the error of the archive of a custom table: it has what was sent, not the rows. It wraps errors.ErrUnsupported.
	ErrArchiveRows = &unsupportedError{"the archive of a custom table has what was sent, not the rows"}
)

type unsupportedError struct{ text string }

func (e *unsupportedError) Error() string { return e.text }
func (e *unsupportedError) Unwrap() error { return errors.ErrUnsupported }

// ArchiveFilter says which events of the archive go back.
type ArchiveFilter struct {
	// Since and Until bound the time at which they were archived: from Since on, before Until. The zero Until is the time of the database when the
	// replay begins.
	Since, Until time.Time
	// Topics are those of the events; none are all topics.
	Topics Patterns
	// Sink gets those of the events that it takes; "" is all sinks.
	Sink string
	// BatchSize is how many events a batch has; see MaxBytes, too.
	BatchSize int
	// PageSize is how many events one transaction puts back at most; 0 is up to the buffer.
	PageSize int
}

// Replayed counts the events of an archive that match a filter.
type Replayed struct {
	// Until is the end of the filter.
	Until time.Time
	// Events were put back.
	Events int64
	// Waiting were left out: they are in the buffer. Repeated were left out, too: they were delivered again after Until.
	Waiting, Repeated int64
	// Ahead were left out as well: the sequence of the ids has not come to theirs, and may assign them.
	Ahead int64
	// Dead were left out because of a dead letter: one that is open, and is sent by a replay of dead letters, or the discarded one of an event that no sink took.
	Dead int64
}

// ArchiveMemory is a buffer that remembers to which archive its events were copied. A relay without an archive, after a rollback of the configuration for example,
// deletes events of which no copy is left.
type ArchiveMemory interface {
	// RememberArchive writes down the archive that the buffer was opened with, or that there is none any more if that is on purpose. Otherwise it does
	// nothing.
	RememberArchive(ctx context.Context) error
	// ForgottenArchive returns the archive that is remembered if the buffer was opened without one, not on purpose; "" otherwise.
	ForgottenArchive(ctx context.Context) (table string, err error)
}

// ForgottenArchiveText says that a table of delivered events is missing from a configuration.
func ForgottenArchiveText(table string) (text, fix string) {
	return "the configuration has no archive, and relays of this table copied delivered events to " + table + ": what is delivered now is deleted without a copy",
		"archive: {table: " + table + "}, or, if it is on purpose, archive: {enabled: false}"
}
