package buffer

import (
	"context"
	"slices"
	"time"
)

// Route is a sink of a buffer that has several, and the events that it takes.
type Route struct {
	// Sink is its name, unique within the buffer.
	Sink string
	// Was is its former name, whose batches and dead letters it takes over; "default": that of the single sink that the buffer had; "": none.
	Was string
	// Match are patterns of topics, as [Patterns] has them; a sink without any takes every event.
	Match []string
	// BatchSize is the events that a batch of this sink may hold.
	BatchSize int
	// Hook reports whether the sink has a dead-letter hook of its own.
	Hook bool
	// Ordered keeps order by key in this sink (`order: key`). All relays of the buffer must agree on it.
	Ordered bool
}

// Unmatched says what becomes of an event that no sink takes.
type Unmatched string

// The event becomes a dead letter of sink [Unrouted], which a replay routes again; it is deleted; or it waits until the sinks change.
const (
	UnmatchedError  Unmatched = "error"
	UnmatchedDelete Unmatched = "delete"
	UnmatchedKeep   Unmatched = "keep"
)

// Router claims the events of a buffer for several sinks. Each sink has a [Queue] of its own, in which
// the router puts its batches. An event is deleted when its last batch is settled.
//
// Its methods are safe for concurrent use.
type Router interface {
	Inspector
	// Route claims up to limit unclaimed events and puts each into a batch of every sink that takes it. take is called once for
	// each of those batches and must be quick; if it returns true, the batch is leased, and in Routed.Leases. The others are
	// due at once. nil, nil: there is nothing to claim.
	Route(ctx context.Context, limit int, lease time.Duration, take func(sink string) bool) (*Routed, error)
	// RouteDue routes events that a process claimed and did not route before it ended. nil, nil: there are none.
	RouteDue(ctx context.Context, lease time.Duration) (*Routed, error)
	// Sink returns the queue of a sink. It claims nothing: Claim returns nil, nil.
	Sink(name string) Queue
}

// SinkHooks is a buffer whose sinks may have dead-letter hooks of their own.
type SinkHooks interface {
	// SinkDeadLetterQueue returns the dead letters of one of several sinks as [Buffer].DeadLetterQueue does, while the registry says that the sink
	// has a hook of its own and is not dropped. DeadLetterQueue then has the others. Neither waits for the other's batches.
	SinkDeadLetterQueue(sink string) Queue
}

// Routed is what a router put into batches.
type Routed struct {
	// Events were claimed; Bytes is how many they have, as MaxBytes counts them.
	Events, Bytes int
	// Sinks got a batch that is due.
	Sinks []string
	// PutBack is why the batch waits, if it fails for its own data; then nothing of it was routed.
	PutBack error
	// Leases are the batches that this process sends at once. They share the bytes of their events.
	Leases []SinkLease
}

// SinkLease is a leased batch of a sink.
type SinkLease struct {
	Sink string
	*Lease
}

// Add adds a sink, once.
func (r *Routed) Add(sink string) {
	if !slices.Contains(r.Sinks, sink) {
		r.Sinks = append(r.Sinks, sink)
	}
}
