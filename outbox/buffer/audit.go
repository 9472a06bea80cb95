package buffer

// Audit is where every event of a buffer is, in one snapshot of the database.
type Audit struct {
	// Unclaimed events are in no batch. Delayed ones are not available yet, and are not Unclaimed.
	Unclaimed, Delayed int64
	// Leased, Waiting and Delivered batches, with their events. Delivered batches were
	// delivered, in whole or in part, and wait for their delete.
	Leased, Waiting, Delivered Count
	// DeliveredEvents are the events of Delivered batches that are still to be deleted.
	DeliveredEvents int64
	// Dead are the pipeline's dead letters.
	Dead DeadCount

	// Orphaned events carry a group_id that has no ledger row.
	Orphaned Count
	// EmptyBatches are ledger rows without events; those of kept events are in KeptDeleted.
	EmptyBatches int64
	// Miscounted are ledger rows with another number of events than they say.
	Miscounted int64

	// The rest is of a buffer with several sinks.

	// Split events are in batches of different claims, whose settles do not see each other: one deletes what the other has not sent. Doubled events are in
	// two batches of one sink, which gets them twice.
	Split, Doubled int64
	// Unserved batches are for sinks that the registry does not have, so no relay sends them. Kept ones wait until a sink takes their
	// topics. Unrouted ones are claimed, and a relay routes them next.
	Unserved, Kept, Unrouted Count
	// KeptDeleted are the ledger rows of kept events that count events which the application has deleted, as it may. They are corrected when
	// the sinks change, and by a repair.
	KeptDeleted int64
}

// Agrees reports whether ledger and buffer agree.
func (a *Audit) Agrees() bool {
	return a.Orphaned.Batches == 0 && a.EmptyBatches == 0 && a.Miscounted == 0 && a.Split == 0 && a.Doubled == 0
}

// Count counts batches and their events.
type Count struct{ Batches, Events int64 }

// Repair is what Auditor.Repair fixed.
type Repair struct {
	// Adopted orphans have a new group_id, without origins, and a ledger row. They are due.
	Adopted Count
	// Cleared counts the events whose group_id was not a uuid, as SQLite allows. They are unclaimed.
	Cleared int64
	// Removed counts the empty ledger rows, Corrected the miscounted ones. Rows with a lease are left alone.
	Removed, Corrected int64
	// Joined counts the batches that hold events of another claim, and have its claim_id now. Those of a claim with a lease are left alone.
	Joined int64
}

// Finding is one result of `relay doctor`.
type Finding struct {
	Level Level
	// Subject is a word or two: "claim plan".
	Subject string
	// Text is what was found.
	Text string
	// Fix is a statement or command; "" if Level is LevelOK.
	Fix string
	// About names something of the server that several pipelines find, although their texts differ, as by an age; "" for everything else.
	About string
}

// RowLocks is the Subject of a transaction that holds locks in the event table.
const RowLocks = "row locks"

// TableLock is the Subject of a transaction that has locked a table of the relay as a whole; see [LockedError].
const TableLock = "table lock"

// Level is how bad a [Finding] is.
type Level uint8

// The levels.
const (
	LevelOK      Level = iota // no problem
	LevelWarning              // it works, but not as well as promised
	LevelError                // it does not work
)

func (l Level) String() string {
	switch l {
	case LevelOK:
		return "ok"
	case LevelWarning:
		return "warning"
	case LevelError:
		return "error"
	}
	return "unknown"
}
