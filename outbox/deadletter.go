package outbox

import (
	"time"

	"github.com/google/uuid"
)

// DeadLetter is what is known of a buried event beside the event itself.
type DeadLetter struct {
	// Pipeline that buried it, and the group_id it had then.
	Pipeline string
	GroupID  uuid.UUID
	// Attempts counts the refusals; 0 for an event that was never sent.
	Attempts int
	// Error is the sink's last word, or why it was not sent.
	Error string
	// DiedAt is the database's clock when it was buried; NotifiedAt when the
	// dead-letter hook had heard of it, ClosedAt when it was replayed or
	// discarded, zero when not yet.
	DiedAt, NotifiedAt, ClosedAt time.Time
	// ClosedAs is "replayed" or "discarded"; "" while the dead letter is open.
	ClosedAs string
	// Row is the row of a table of the user's own that a replay puts back, a JSON
	// object; nil for an event of the relay's own table.
	Row []byte
}
