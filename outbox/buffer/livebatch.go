package buffer

import (
	"errors"
	"time"

	"github.com/google/uuid"
)

// LiveBatch is a batch as the ledger has it, for an operator.
type LiveBatch struct {
	GroupID uuid.UUID
	// Sink is the sink's present name; "default": the only one; [Unrouted]: the batch was claimed for several sinks and not given to them yet.
	Sink string
	// Hook: the events are dead letters, and the batch is of a dead-letter hook.
	Hook bool
	// State is leased, waiting, or delivered: only the delete is left.
	State string
	// LeaseNo is 0 for a batch that nobody has leased yet.
	LeaseNo int64
	// Due is how long until the lease ends, or the next retry or delete is due, by the database's clock; negative: since when;
	// math.MaxInt64: never, or not within centuries.
	Due time.Duration
	// Owner is the process that has the lease, or had the last one, or a request to retry (see [RetryRequestPrefix]).
	Owner string
	// Attempts, Outages and UnfinishedLeases are as in [Lease].
	Attempts, Outages, UnfinishedLeases int
	// Suspect: the batch is, or will be, sent alone; see [DueSuspect].
	Suspect bool
	// Parted: the events were in another batch before.
	Parted bool
	// Events are in the batch; Delivered of them only have to be deleted.
	Events, Delivered int64
	// FirstID is the id of its first event, or FirstUUID if the events of a custom table have no number.
	FirstID   int64
	FirstUUID uuid.UUID
	// Age is how long ago it was claimed, by the database's clock.
	Age time.Duration
	// Error is why it waits.
	Error string
	// Address is the address whose outage it waits for; see [Outcome].
	Address *string
}

// MaybeSent reports whether the sink may have accepted a waiting batch whose answer never came. Its group_id is then the only thing by which the
// sink can recognise it.
func (b *LiveBatch) MaybeSent() bool { return b.Outages > 0 || b.UnfinishedLeases > 0 }

// Indivisible returns why an operator cannot have the batch divided; nil: it can be.
func (b *LiveBatch) Indivisible() error {
	switch {
	case b.State != "waiting":
		return ErrNotWaiting
	case b.Hook, b.Sink == Unrouted:
		return errors.New("only batches of events that go to a sink are divided")
	case b.Events < 2:
		return errors.New("the batch has a single event")
	case b.LeaseNo == 0 && !b.Parted:
		return errors.New("the batch was not sent yet, so nothing speaks for dividing it")
	}
	return nil
}
