package buffer

// Audit says where every event of a buffer is, by one snapshot of the database,
// and whether ledger and buffer agree.
type Audit struct {
	// Unclaimed events; no batch has them.
	Unclaimed int64
	// Leased, Waiting and Marked batches, and the events there are of them. Marked
	// ones were delivered, in whole or in part, and wait for their delete.
	Leased, Waiting, Marked Tally
	// Delivered events of marked batches are still to be deleted.
	Delivered int64
	// Dead counts the pipeline's dead letters.
	Dead DeadCount

	// Orphans carry a group_id that has no ledger row.
	Orphans Tally
	// Hollow ledger rows have no events.
	Hollow int64
	// Uneven ledger rows have some, but not as many as they say.
	Uneven int64
}

// Agrees tells whether ledger and buffer agree.
func (a *Audit) Agrees() bool { return a.Orphans.Batches == 0 && a.Hollow == 0 && a.Uneven == 0 }

// Tally counts batches and their events.
type Tally struct{ Batches, Events int64 }

// Repair is what was mended.
type Repair struct {
	// Adopted orphans have a ledger row again and are due.
	Adopted Tally
	// Removed hollow ledger rows, Corrected uneven ones. Those that somebody
	// holds a lease on are left alone.
	Removed, Corrected int64
}

// Finding is one thing that `relay doctor` looked at.
type Finding struct {
	Level Level
	// About is what was looked at, in a word or two: "claim plan".
	About string
	// Text is what was seen.
	Text string
	// Mend is the statement or command that mends it, "" where Level is Fine.
	Mend string
}

// Level is how bad a [Finding] is.
type Level uint8

// The levels.
const (
	Fine    Level = iota // as it should be
	Warning              // it works, but not as well as promised
	Problem              // it does not work
)

func (l Level) String() string {
	switch l {
	case Fine:
		return "fine"
	case Warning:
		return "warning"
	case Problem:
		return "problem"
	}
	return "unknown"
}
