package buffer

import (
	"time"

	"github.com/google/uuid"
)

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
