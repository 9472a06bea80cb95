package buffer

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// DeadLetter is why an event was buried.
type DeadLetter struct {
	// Pipeline that buried it, and the group_id it had then.
	Pipeline string
	GroupID  uuid.UUID
	// Attempts counts the refusals; 0 for an event that was never sent.
	Attempts int
	// Error is the last error of the sink, or why the event was not sent.
	Error string
	// DiedAt is when it was buried, by the database's clock.
	DiedAt time.Time
}

// DeadEvent is a dead letter as [DeadLetters] lists it.
type DeadEvent struct {
	outbox.Event
	DeadLetter
	// NotifiedAt is when the dead-letter hook was notified, ClosedAt when the dead letter was
	// replayed or discarded; zero if not yet.
	NotifiedAt, ClosedAt time.Time
	// ClosedAs is "replayed" or "discarded"; "" while the dead letter is open.
	ClosedAs string
	// Row is the row of a custom table that a replay puts back, a JSON object; nil for an
	// event of the relay's own table.
	Row []byte
}

// DeadFilter says which dead letters of a pipeline are meant: those that match
// all of it. The zero value means every open one.
type DeadFilter struct {
	// IDs and UUIDs name the events that are meant, by their integer or uuid primary
	// keys, either of them; both nil means any.
	IDs   []int64
	UUIDs []uuid.UUID
	// Topic is compared as a whole, "" means any.
	Topic string
	// Error is a part of the error's text, upper and lower case alike; "" means
	// any.
	Error string
	// OlderThan and NewerThan compare the time since DiedAt, by the database's
	// clock; 0 means any.
	OlderThan, NewerThan time.Duration
	// Closed takes in those that were replayed or discarded.
	Closed bool
	// Notified leaves out those that the dead-letter hook has not heard of.
	Notified bool
}

// DeadKey is where a list of dead letters goes on: behind this one.
type DeadKey struct {
	EventID int64
	GroupID uuid.UUID
}

// DeadCount counts dead letters: the Open ones, how many of them the dead-letter
// hook has not heard of (Unnotified), and the Closed ones.
type DeadCount struct{ Open, Unnotified, Closed int64 }
