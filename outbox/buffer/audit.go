package buffer

// Audit says where every event of a buffer is, by one snapshot of the database,
// and whether ledger and buffer agree.
type Audit struct {
	// Unclaimed events; no batch has them.
	Unclaimed int64
	// Leased, Waiting and Delivered batches, and the events there are of them. Delivered
	// ones were delivered, in whole or in part, and wait for their delete.
	Leased, Waiting, Delivered Count
	// DeliveredEvents events of marked batches are still to be deleted.
	DeliveredEvents int64
	// ListDead counts the pipeline's dead letters.
	Dead DeadCount

	// Orphaned carry a group_id that has no ledger row.
	Orphaned Count
	// EmptyBatches ledger rows have no events.
	EmptyBatches int64
	// Miscounted ledger rows have some, but not as many as they say.
	Miscounted int64
}

// Agrees tells whether ledger and buffer agree.
func (a *Audit) Agrees() bool {
	return a.Orphaned.Batches == 0 && a.EmptyBatches == 0 && a.Miscounted == 0
}

// Count counts batches and their events.
type Count struct{ Batches, Events int64 }

// Repair is what was mended.
type Repair struct {
	// Adopted orphans have a ledger row again and are due.
	Adopted Count
	// Removed hollow ledger rows, Corrected uneven ones. Those that somebody
	// holds a lease on are left alone.
	Removed, Corrected int64
}

// Finding is one thing that `relay doctor` looked at.
type Finding struct {
	Level Level
	// Subject is what was looked at, in a word or two: "claim plan".
	Subject string
	// Text is what was seen.
	Text string
	// Fix is the statement or command that mends it, "" where Level is LevelOK.
	Fix string
}

// Level is how bad a [Finding] is.
type Level uint8

// The levels.
const (
	LevelOK      Level = iota // as it should be
	LevelWarning              // it works, but not as well as promised
	LevelError                // it does not work
)

func (l Level) String() string {
	switch l {
	case LevelOK:
		return "fine"
	case LevelWarning:
		return "warning"
	case LevelError:
		return "problem"
	}
	return "unknown"
}
