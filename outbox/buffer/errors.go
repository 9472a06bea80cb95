package buffer

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// The states of a buffer; compare with errors.Is.
var (
	// ErrLeaseLost: the batch has another owner, or is gone. Nothing was changed; the caller drops the batch.
	ErrLeaseLost = errors.New("lease lost")
	// ErrLocked: another transaction has locked delivered events. The batch stays delivered,
	// and its delete is retried.
	ErrLocked = errors.New("events are locked by another transaction")
	// ErrTooLarge: the events of a batch have more than [MaxBytes] bytes.
	ErrTooLarge = errors.New("the events of the batch are larger than 4 MiB")
	// ErrSlowRead: the events of a batch could not be read in time.
	ErrSlowRead = errors.New("the events of the batch could not be read in time")
	// ErrUnreadable: the database cannot send an event of the batch, such as a text that has no equivalent in UTF-8.
	ErrUnreadable = errors.New("the database cannot send the event")
	// ErrKillsReader: the batch was not read, because reading it probably ended its owners.
	// An event that is alone has topic and key, unless they come from a projection. See [Lease.KillsReader].
	ErrKillsReader = errors.New("the batch was not read, because its owners did not survive that")
	// ErrNotReady: a table, a column or a privilege is missing. The message names it and the fix.
	ErrNotReady = errors.New("buffer is not ready")
	// ErrProjection: an ErrNotReady whose only reason is the projection of a custom table. Nothing is claimed or read; everything else works.
	ErrProjection = errors.New("the projection cannot be run")
	// ErrNoWrites: the database can be read, and takes no writes: its disk is full, or it is read-only.
	ErrNoWrites = errors.New("the database takes no writes")
	// ErrDeadChanged: a dead letter was replayed, discarded or edited meanwhile. Nothing was changed.
	ErrDeadChanged = errors.New("the dead letter was closed or changed meanwhile")
	// ErrEventWaits: the event of a dead letter is in the buffer, where it waits for another sink. Nothing was changed.
	ErrEventWaits = errors.New("the event is still in the buffer")
	// ErrNotWaiting: the batch of an operator's request does not wait: a relay has it, it was finished, or it never existed. Nothing was changed.
	ErrNotWaiting = errors.New("the batch does not wait any more: a relay has it, or it was finished")
	// ErrMaybeSent: the batch is not divided, because the sink may have accepted it. Nothing was changed.
	ErrMaybeSent = errors.New("the sink may have accepted the batch, and would accept its halves once more, because they have other group_ids")
)

// KeptError is the error of a Settle that is written down, but whose DELETE left events without an error. The batch is
// recorded as delivered, so that they are not sent again; their delete is tried again.
type KeptError struct {
	// Table is the buffer. Kept of the Of events that were to be deleted are still there.
	Table    string
	Kept, Of int
	// Marked reports whether the events were to be marked and not deleted.
	Marked bool
	// RetryIn is when the delete is due again.
	RetryIn time.Duration
}

func (e *KeptError) Error() string {
	if e.Marked {
		return fmt.Sprintf("%d of %d delivered events of table %s were not marked: a trigger, a rule or a row-level policy on UPDATE keeps them; "+
			"let the relay update the columns of source.mark (relay doctor names the cause); they are not sent again", e.Kept, e.Of, e.Table)
	}
	return fmt.Sprintf("%d of %d delivered events of table %s were not deleted: a trigger, a rule or a row-level policy on DELETE keeps them; "+
		"let the relay delete them (relay doctor names the cause); they are not sent again", e.Kept, e.Of, e.Table)
}

// SettleError is the error of a Settle that the database refuses whenever it is tried: a foreign key, a trigger that
// raises, a missing privilege, no space left. Nothing was changed, except that a batch whose delivery is recorded waits. The database is
// not away, so other batches are settled meanwhile.
type SettleError struct {
	// Table is the buffer.
	Table string
	// RetryIn is when a batch whose delivery is recorded is due again; another should wait as long.
	RetryIn time.Duration
	// Err is the database's error.
	Err error
}

func (e *SettleError) Error() string {
	if errors.Is(e.Err, ErrNoWrites) {
		return fmt.Sprintf("a batch of table %s cannot be settled, delivered events of it are not sent again: %v", e.Table, e.Err)
	}
	return fmt.Sprintf("the database refuses to settle a batch of table %s (relay doctor names foreign keys and triggers that can be the cause); "+
		"delivered events of it are not sent again: %v", e.Table, e.Err)
}

func (e *SettleError) Unwrap() error { return e.Err }

// UnstampedError is the error of a claim or a settle whose UPDATE left events without the new group_id, and without an error.
// Nothing was changed.
type UnstampedError struct {
	// Table is the buffer.
	Table string
}

func (e *UnstampedError) Error() string {
	return "events of table " + e.Table + " were not stamped with a group_id: a trigger or a rule on UPDATE keeps the old one; " +
		"let the relay update group_id (relay doctor names the cause); until then they are not sent"
}

// UnburiedError is the error of a settle whose INSERT left events without a dead letter, and without an error. Nothing was
// changed.
type UnburiedError struct {
	// Events is how many.
	Events int
}

func (e *UnburiedError) Error() string {
	return strconv.Itoa(e.Events) + " refused events have no dead letter: a trigger on INSERT of outbox_dead_letters drops or deletes the row; they stay in the buffer"
}

// MarkedError is the error of a settle that marks a row that is an event in spite of its mark. Nothing was changed.
type MarkedError struct {
	// ID is the event's.
	ID int64
	// Table is the buffer.
	Table string
}

func (e *MarkedError) Error() string {
	return fmt.Sprintf("event %d of table %s is still an event after source.mark was set; source.where must be false then, or it would be sent for ever", e.ID, e.Table)
}

// LockedError is the error of a statement that took too long because a transaction has locked a table as a whole. The database works.
type LockedError struct {
	// Table is the table, as "schema.table".
	Table string
	// Holder is the transaction.
	Holder *VacuumBlocker
	// Text says that it has locked the table, and Fix is how to end it.
	Text, Fix string
	// Err is what became of the statement.
	Err error
}

func (e *LockedError) Error() string { return e.Text + ". > " + e.Fix }
func (e *LockedError) Unwrap() error { return e.Err }

// KeptRetry is how long a batch waits whose delete left events or was refused, by its lease_no: 2 s, doubled each time, up to a minute.
func KeptRetry(leaseNo int64) time.Duration {
	return min(time.Second<<min(max(leaseNo, 1), 6), time.Minute)
}

// FullRetry is how long a batch waits at the most whose settle a full disk refuses: somebody frees space, and watches whether that helps.
const FullRetry = 10 * time.Second
