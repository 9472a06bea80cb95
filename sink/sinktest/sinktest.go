// Package sinktest is the one suite every sink passes, on its real server.
package sinktest

import (
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Arrival is one event as a client of the destination finds it.
type Arrival struct {
	ID      string
	Topic   string
	Key     *string
	Payload []byte
	Headers outbox.Headers
	GroupID string
	// Address is the stream, list, subject or path it arrived at.
	Address string
}

// Destination is a sink and a look, by a client that is not ours, at what
// arrived there. Each call of Harness.Open makes an empty one.
type Destination struct {
	Sink sink.Sink
	// Arrivals returns all that arrived so far, in the order of arrival within
	// each address.
	Arrivals func(t *testing.T) []Arrival
	// Stop makes the destination unreachable, Start brings it back with what it
	// held. nil where it cannot be stopped (a file).
	Stop, Start func(t *testing.T)
}

// Harness is what a driver's test hands to Run.
type Harness struct {
	Open func(t *testing.T) Destination
	// Keeps tells which of an event's fields the format carries.
	Keeps struct{ Topic, Key, Headers, GroupID bool }
	// OnceOnly: sending a batch again under its group_id, or a part of it under
	// a new one with origins, adds nothing twice.
	OnceOnly bool
}
