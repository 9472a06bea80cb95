package buffer

import "errors"

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
)
