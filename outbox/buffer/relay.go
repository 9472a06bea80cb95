package buffer

import (
	"context"
	"time"
)

// RelayReporter writes down which relays work on a buffer and what they deliver, so that an operator sees it from any machine that
// reaches the database. A buffer and the queue of each of several sinks are one; a queue of dead letters is not.
type RelayReporter interface {
	// ReportRelay replaces what this process, the Owner that the buffer was opened with, reported last. The commit does not
	// wait for the disk.
	ReportRelay(ctx context.Context, r RelayReport) error
}

// SpaceChecker finds out whether the disk of the database has room. It is implemented where what a relay writes may find room on a full disk, although the
// application cannot commit.
type SpaceChecker interface {
	// CheckSpace returns an ErrNoWrites if the disk is full. It asks the database once a minute, or every [ReportEvery] while it is full, and otherwise
	// returns what it found last.
	CheckSpace(ctx context.Context) error
}

// RelayReport is what a relay says of itself.
type RelayReport struct {
	// First is set in the first report of a process. It removes the rows of those that have been silent for a day.
	First bool
	// Stopped is set in the last report of a process that ends in order.
	Stopped bool
	// Version is the relay's.
	Version string
	// NotReady is why it makes no progress, as its readiness says; "" if it does. NotReadyClass is its class, with which NotReady begins, and
	// NotReadyFor how long it has been one of that class; of class sink at most since it last delivered an event.
	NotReady, NotReadyClass string
	NotReadyFor             time.Duration
	// NotReadyKind is finer than the class, one of the Kind constants; "" if nothing is.
	NotReadyKind string
	// Notice is what else operators should know of it, also while it makes progress; a line each.
	Notice string
	// Answers are answers of the sink that look wrong, and of which events count as delivered, a line each. They are read for an hour after they changed last, also
	// of a process that has ended, or that another one of the same name has replaced.
	Answers string
	// Probes reports whether it tries the sink, or each address that batches wait for, every second or so. If not, they wait until they are due.
	Probes bool
	// Delivered and Dead count the events since the process started, LastMinute those that were delivered in the last minute.
	Delivered, Dead, LastMinute int64
	// Latencies are those of the delivered ones, since the process started.
	Latencies Latencies
	// LastDelivery is how long ago the last one was delivered; negative: none was.
	LastDelivery time.Duration
}

const (
	// ReportEvery is how often a relay reports at the least.
	ReportEvery = 10 * time.Second
	// SilentAfter is when one that has not reported is taken to be gone: one report may fail.
	SilentAfter = 2 * ReportEvery
)

// The classes of reasons why a relay makes no progress.
const (
	NotReadyDatabase = "database" // it cannot be reached or used
	NotReadySink     = "sink"     // it cannot be reached, or an address of it
	NotReadyStalled  = "stalled"  // events wait, and none is delivered or buried, or none can be sent, or the sink does not take theirs
	NotReadyRefusing = "refusing" // the sink refuses all that it is sent
)

// Kinds of reasons why a relay makes no progress that are finer than their class.
const (
	KindStuck   = "stuck"   // stalled: some batches are not accepted while others are
	KindAnswer  = "answer"  // stalled: the program results does not expect what the sink answers
	KindRequest = "request" // stalled: the program request fails
	KindAsked   = "asked"   // sink: it asked for a pause
	KindSome    = "some"    // refusing: it accepted other events less than a minute ago
	KindFull    = "full"    // sink: it, or the address, has no space
	KindAccess  = "access"  // sink: it does not accept the credentials
	KindLocked  = "locked"  // database: it works, and a transaction has locked a table as a whole; see LockedError
	// KindStarting is a database or sink that the relay reaches for the first time: nobody knows yet whether it works.
	KindStarting = "starting"
)

// Relay is a process that works, or worked, on a buffer.
type Relay struct {
	RelayReport
	// Owner names the process as in the ledger: host/pid/pipeline.
	Owner string
	// Sink is one of several sinks; "" for a single one.
	Sink string
	// Seen is how long ago it reported, and Uptime how long before that it started, by the database's clock.
	Seen, Uptime time.Duration
}

// Runs reports whether the process has not stopped, as far as is known: one that was killed counts until its report is overdue.
func (r *Relay) Runs() bool { return !r.Stopped && r.Seen < SilentAfter }

// MaxRelays is how many rows of relays [Status] has, those that run first.
const MaxRelays = 1000
