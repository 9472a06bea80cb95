package buffer

import "time"

// Backlog is what a distributor needs to know.
type Backlog struct {
	// Unclaimed events, up to the limit of the count.
	Unclaimed int
	// Due batches: a retry is due, or a recorded delivery is to be deleted.
	Due int
	// Unsent are the Due batches of a sink's queue that no worker has leased since a router put them there; see [Router]. 0 in other queues.
	Unsent int
	// Suspects are the due batches that several owners in a row did not finish; see [DueSuspect].
	Suspects int
	// Waiting batches wait for a retry, due or not; Delivered ones for their delete.
	Waiting, Delivered int
	// NextDelayed is how long until the next delayed event is available, by the database's clock, as last counted with events; 0: none is delayed.
	NextDelayed time.Duration
	// Paused reports whether the pipeline, or the sink, is paused; see [Pauser].
	Paused bool
}

// Status is the operator's view of one buffer.
type Status struct {
	// Pending events: committed, neither delivered nor dead. Exact up to [PendingExact], an estimate beyond.
	Pending int64
	// Delayed are the events whose available_at has not come: they are not Pending. Exact up to [PendingExact], an estimate beyond.
	Delayed int64
	// NextDelayed is how long until the next of them is available; 0 if there is none.
	NextDelayed time.Duration
	// OldestPending is the age of the oldest pending event, or the time since it became available, by the database's clock; 0 if there is none, or AgeUnknown.
	OldestPending time.Duration
	// AgeUnknown reports that nothing says when pending events were inserted: a custom table has no column for it, or NULL in it.
	AgeUnknown bool
	// Leased, Waiting and Delivered count the batches by state.
	Leased, Waiting, Delivered int64
	// Waits are why batches wait, the most frequent reasons first; at most [MaxWaits].
	Waits []Wait
	// HookWaits are why batches of the dead-letter hook wait; their Events are dead letters.
	HookWaits []Wait
	// Suspects are the batches that are sent one at a time, or will be, because several owners in a row did not
	// finish them, those of its dead-letter hook included; see [DueSuspect]. OldestSuspect is how long ago the first of them was claimed, by the database's clock.
	Suspects      int64
	OldestSuspect time.Duration
	// Dead counts the pipeline's open dead letters, Unnotified those of them that no
	// dead-letter hook was notified of.
	Dead, Unnotified int64
	// OldestTransaction is the age of the oldest open transaction on the server that is not
	// the relay's; 0 if there is none, the database has no such thing, or TransactionsHidden.
	OldestTransaction time.Duration
	// TransactionsHidden reports that the role does not see since when transactions of other roles are open.
	TransactionsHidden bool
	// Pauses are what is paused of the pipeline and its sinks, the pipeline first.
	Pauses []Pause
	// SinkFindings are what is wrong with the sinks that the events are routed to; see [RegisteredSink.Finding].
	SinkFindings []Finding
	// Sinks are those that the events are routed to, in the order of the configuration, then those that have batches or dead letters
	// without being configured, and [Unrouted]; nil for a single one.
	Sinks []SinkStatus
	// Relays are the processes that work on the buffer, and those of the last day, at most [MaxRelays]; one row a process and sink.
	Relays []Relay
}

// Unrouted is the name of the sink of events that are not routed yet, and of dead letters that no sink takes.
const Unrouted = "*"

// SinkStatus is what waits for one of several sinks.
type SinkStatus struct {
	Name string
	// Pending events are for this sink, and it has not got them: an event counts once at each of its sinks. Of [Unrouted] they are those
	// that are not routed yet.
	Pending int64
	// OldestPending is the age of the oldest of them; 0 if there is none, or AgeUnknown; see [Status].
	OldestPending time.Duration
	AgeUnknown    bool
	// Leased, Waiting and Delivered count the sink's batches by state, Due those that are due.
	Leased, Waiting, Delivered, Due int64
	// Next is how long until the first waiting batch is due; 0 if one is due, or none waits.
	Next time.Duration
	// Waits are why batches wait, the most frequent reasons first; at most [MaxWaits].
	Waits []Wait
	// Suspects are those of its batches that are sent one at a time, and OldestSuspect since when; see [Status].
	Suspects      int64
	OldestSuspect time.Duration
	// Dropped reports whether the sink is dropped: see [SinkRegistry].
	Dropped bool
	// Dead counts the open dead letters of the sink, those of its former names too, Unnotified those of them that no dead-letter hook was notified of.
	Dead, Unnotified int64
}

// Wait is a reason why batches wait.
type Wait struct {
	// Error is what the sink said, or why the batches were not sent.
	Error string
	// Batches wait for this reason; Events are in them.
	Batches, Events int64
	// First and Last are how long until the first and the last of them are due, by the database's clock; negative
	// if they are due.
	First, Last time.Duration
	// Early reports whether they wait for the sink or an address of it to accept events. A relay that runs tries that every few seconds, and
	// then sends all of them.
	Early bool
}

// MaxWaits is how many reasons [Status] has.
const MaxWaits = 30

// PendingExact is up to how many pending events [Status] counts one by one.
const PendingExact = 100_000
