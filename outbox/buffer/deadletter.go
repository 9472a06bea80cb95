package buffer

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// DeadLetter is why an event was buried.
type DeadLetter struct {
	// Pipeline that buried it, and the group_id it had then.
	Pipeline string
	GroupID  uuid.UUID
	// Sink is the one of several sinks that refused it, "*" if none takes its topic; "" if the pipeline has a single one.
	Sink string
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
	// ClosedAs is "replayed" or "discarded", ClosedBy who did that and ClosedReason why, as [DeadFilter] said; "" while the dead letter is open.
	ClosedAs, ClosedBy, ClosedReason string
	// Row is the row of a custom table that a replay puts back, a JSON object; nil for an
	// event of the relay's own table.
	Row []byte
	// History is what was tried; nil: a relay of before wrote none, or ListNewestDead listed it.
	History History
}

// Renamed is what a pipeline got from its former name.
type Renamed struct {
	// Owner reports whether it got the buffer, and Owns whether it has it now: it may have owned it before.
	Owner, Owns bool
	// Letters is how many dead letters it got, the closed ones too.
	Letters int64
}

// DeadFilter selects the dead letters of a pipeline that match all of its fields. The zero value
// selects every open one.
type DeadFilter struct {
	// IDs and UUIDs are the events' integer or uuid primary keys, either of them; both nil: any.
	IDs   []int64
	UUIDs []uuid.UUID
	// Topic is the whole topic, Sink the name of one of several sinks, which finds those of its former names too, or [Unrouted]; "": any.
	Topic, Sink string
	// Error is a part of the error, case-insensitive; "": any.
	Error string
	// OlderThan and NewerThan compare the time since DiedAt, by the database's clock; 0: any.
	OlderThan, NewerThan time.Duration
	// From and Before are times: DiedAt is not before From, and before Before; zero: any.
	From, Before time.Time
	// Closed includes those that were replayed or discarded.
	Closed bool
	// Notified excludes those that the dead-letter hook was not notified of.
	Notified bool
	// SinkNotified excludes those of sinks with a hook of their own that this hook was not notified of.
	SinkNotified bool
	// ClosedBy and ClosedReason are for Replay and Discard: who closes them and why, which is written down; "": nobody says so. They select nothing.
	ClosedBy, ClosedReason string
	// OnRefused is for Replay: it is called, before Replay returns, for an event whose row the table refuses, and whose dead letter therefore stays open; nil: nobody
	// asks. It may be called again for the same event, and must not use the buffer. It selects nothing.
	OnRefused func(Refusal)
}

// Refusal is why a table refuses the row of a dead letter.
type Refusal struct {
	// ID and UUID are the event's, as in [DeadEdit].
	ID   int64
	UUID uuid.UUID
	// Reason is the first line of what the database says of a constraint, a type or a trigger. The row is not in it; a value of the wrong type may be.
	Reason string
}

// maxRefusal is how many bytes of a reason are kept: some quote a value.
const maxRefusal = 300

// Refuse calls OnRefused with the first line of the database's message.
func (f *DeadFilter) Refuse(r Refusal, message string) {
	if f.OnRefused == nil {
		return
	}
	message, _, _ = strings.Cut(strings.TrimSpace(message), "\n")
	if message = strings.ToValidUTF8(message, "\uFFFD"); len(message) > maxRefusal {
		message = strings.ToValidUTF8(message[:maxRefusal], "") + "..."
	}
	r.Reason = message
	f.OnRefused(r)
}

// DeadEdit replaces what a replay of an event sends.
type DeadEdit struct {
	// ID is the event's; UUID as well in a custom table whose events only have a uuid.
	ID   int64
	UUID uuid.UUID
	// Row: the texts are the row of a custom table, a JSON object, as [DeadEvent.Row] has it. Otherwise they are the payload.
	Row bool
	// Old is the text that the caller has read, and New takes its place. In a buffer whose payloads are JSON, New must be JSON.
	Old, New []byte
	// Headers: the headers are replaced too, OldHeaders by NewHeaders, a JSON object of strings; nil is NULL. Not with Row, which has all columns.
	Headers                bool
	OldHeaders, NewHeaders outbox.Headers
}

// DroppedLetters are open dead letters of a dropped sink.
type DroppedLetters struct {
	Sink string `json:"sink"`
	// Registered is false if the sink is not in the registry, so that it cannot be restored by name.
	Registered bool `json:"registered"`
	// Letters is how many there are.
	Letters int64 `json:"dead_letters"`
}

// DeadKey is the dead letter behind which a list continues.
type DeadKey struct {
	EventID int64
	GroupID uuid.UUID
}

// DeadPeriod are the dead letters that died in one period.
type DeadPeriod struct {
	// Begin is when the period began, in UTC.
	Begin time.Time
	// Count is how many died, the First and the Last one at these times.
	Count       int64
	First, Last time.Time
}

// DeadCount counts dead letters: the Open ones, those of them that the dead-letter hook was not
// notified of (Unnotified), and the Closed ones.
type DeadCount struct{ Open, Unnotified, Closed int64 }
