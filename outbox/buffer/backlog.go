package buffer

import "time"

// Backlog is what a distributor needs to know, from one look.
type Backlog struct {
	// Unclaimed events, counted no further than the limit of the look.
	Unclaimed int
	// Due batches: retry due, owner silent beyond its lease, or marked
	// delivered and to be deleted.
	Due int
	// Waiting batches, due or not, that are put back for a retry, and DeliveredEvents
	// ones whose delete is outstanding.
	Waiting, Delivered int
}

// Status is what an operator wants to know of one buffer.
type Status struct {
	// Pending events: committed, neither delivered nor dead. Exact to
	// [PendingExact], an estimate beyond.
	Pending int64
	// OldestPending is the age of the oldest of them by the database's clock; 0
	// when there is none.
	OldestPending time.Duration
	// Leased, Waiting and DeliveredEvents count the live batches by state.
	Leased, Waiting, Delivered int64
	// ListDead counts this pipeline's open dead letters: neither replayed nor
	// discarded.
	Dead int64
	// Unnotified counts those of ListDead that no dead-letter hook has heard of.
	Unnotified int64
	// OldestTransaction is the age of the oldest transaction open on the
	// database server, other than the relay's; 0 when there is none or the
	// database has no such thing.
	OldestTransaction time.Duration
}

// PendingExact is how far [Status] counts pending events one by one.
const PendingExact = 100_000
