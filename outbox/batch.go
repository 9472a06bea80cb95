package outbox

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Batch is the events that share a group_id, leased to one owner. What belongs
// to a group_id never changes, so GroupID is an idempotency key at every sink.
//
// A Batch belongs to whoever claimed it or took it over; it is not safe for
// concurrent writes. Sinks read it only.
type Batch struct {
	// GroupID is a version 7 UUID.
	GroupID uuid.UUID
	// Pipeline is the name of the pipeline that owns the buffer.
	Pipeline string
	// Events are in id order. Their bytes live as long as the batch.
	Events []Event
	// PayloadIsJSON: the payload's column vouches that every payload is JSON,
	// so a sink need not look.
	PayloadIsJSON bool
	// Origins are the group_ids these events were sent under before, oldest
	// first. A sink that remembers group_ids must honour them too.
	Origins []uuid.UUID

	// LeaseNo rises with every lease of this batch; it is the fence.
	LeaseNo int64
	// LeaseEnd is when the lease is over by the local monotonic clock, counted
	// from before the claim was sent, so it never lies later than the
	// database's own end of the lease.
	LeaseEnd time.Time
	// FirstID and LastID bound the ids of the events.
	FirstID, LastID int64
	// Starts counts leases in a row that ended without a word, this one
	// included: 1 for a fresh claim or a retry that is due.
	Starts int
	// Attempts counts refusals, Outages counts sends in a row that failed
	// because the sink was away. Only Attempts kills.
	Attempts, Outages int

	// Delivered names the ids that reached the sink although they could not be
	// deleted yet. Not empty only for a batch that was marked and taken over:
	// it is settled, not sent.
	Delivered []int64

	// ProjectErr is why the batch of a table of the user's own could not be projected:
	// there is nothing to send. errors.Is finds ErrEventData where it is some event's
	// doing, and ErrDatabase where it is the database's; else it may be anybody's. What is
	// wrong with one event is in Event.ProjectErr.
	ProjectErr error
	// Projected: what is sent of the events, and where, was projected, and may be other
	// than it was when they were sent before.
	Projected bool

	// ClaimedAt is the database's clock when this lease was taken, and
	// ClaimedLocal the local one just after; together they tell how old an
	// event is without trusting two clocks to agree.
	ClaimedAt, ClaimedLocal time.Time
}

// Marked tells whether the batch, or a part of it, was delivered before and
// only waits for its delete.
func (b *Batch) Marked() bool { return len(b.Delivered) > 0 }

// Age is how long ago, by the database's clock, the event was inserted.
func (b *Batch) Age(e *Event) time.Duration {
	return b.ClaimedAt.Sub(e.CreatedAt) + time.Since(b.ClaimedLocal)
}

// IDs returns the ids of all events, in order; a new slice.
func (b *Batch) IDs() []int64 {
	ids := make([]int64, len(b.Events))
	for i := range b.Events {
		ids[i] = b.Events[i].ID
	}
	return ids
}

// NewGroupID draws a new group_id: a version 7 UUID, which sorts by time.
func NewGroupID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// Verdict is the kind of an [Outcome].
type Verdict uint8

// The verdicts.
const (
	Delivered Verdict = iota // durably accepted by the sink: delete
	Retry                    // to be sent again: put back with a time
	Dead                     // refused for good: bury
)

func (v Verdict) String() string {
	switch v {
	case Delivered:
		return "delivered"
	case Retry:
		return "retry"
	case Dead:
		return "dead"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Outcome is what became of some events of a batch in one attempt. The outcomes
// handed to Settle name every event of the batch exactly once.
type Outcome struct {
	Verdict Verdict
	// IDs are the events meant, in ascending order; nil means all of the batch.
	IDs []int64
	// GroupID, for Retry: the batch's own when IDs is nil, a new one when the
	// batch is divided (what belongs to a group_id never changes).
	GroupID uuid.UUID
	// After, for Retry: how long to wait, by the database's clock.
	After time.Duration
	// Attempts and Outages, for Retry and Dead, are the new counts.
	Attempts, Outages int
	// Address, for Retry: the address of the sink whose outage the events wait
	// for, "" for the sink as a whole. When it is there again they may be sent
	// before After is over (see Wake); Outages is not 0 then. nil: they may not.
	Address *string
	// Error, for Retry and Dead, is why; no secret in it.
	Error string
}
