package buffer

import "errors"

// The states a buffer answers with. Compare with errors.Is.
var (
	// ErrLeaseLost: the batch has another owner by now (or is gone). Whoever
	// gets this has changed nothing and drops the batch.
	ErrLeaseLost = errors.New("lease lost")
	// ErrLocked: events that were delivered are locked by another transaction
	// just now; the batch stays marked and its delete is tried again.
	ErrLocked = errors.New("events are locked by another transaction")
	// ErrNotReady: a table, a column or a privilege is missing. The message
	// names it and the command that mends it.
	ErrNotReady = errors.New("buffer is not ready")
)
