// Package sinktest is the conformance suite that every sink passes on its real server.
//
// A driver's test describes its destination with a [Harness] and calls [Run]. The suite
// sends, reads what arrived through a client that is not the driver's, and compares by id:
// no event is missing or duplicated. What it asks for is written at [sink.Sink].
package sinktest

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TopicPrefix is the prefix of all topics of the suite. Words with dots between them follow,
// not always ASCII; see Keeps.ASCIITopics.
const TopicPrefix = "sinktest."

// Pipeline is the name of the pipeline of all batches.
const Pipeline = "sinktest"

// Harness describes a sink to [Run].
type Harness struct {
	// Open opens a new, empty destination, which is removed when t ends. It takes every
	// topic with TopicPrefix. Concurrent cases have destinations of their own.
	Open func(t testing.TB) Destination
	// OpenBroken opens a sink with a valid configuration whose destination does not exist:
	// nothing listens, the directory is missing. The suite closes it.
	OpenBroken func(t testing.TB) sink.Sink
	// Keeps says which parts of an event the format carries.
	Keeps Keeps
	// OnceOnly: resending a batch under its group_id, or a part of it under a new one with
	// origins, adds no event twice.
	OnceOnly bool
}

// Keeps says which parts of an event the format carries, besides id and payload.
type Keeps struct {
	Topic, Key, Headers, GroupID, CreatedAt bool
	// HeadersText: the headers arrive as the database's text. Otherwise they are compared as
	// a map, and {} may arrive as NULL.
	HeadersText bool
	// AnyText: keys and header values may contain line breaks, and begin or end with a
	// blank.
	AnyText bool
	// Bytes: payloads that are not JSON are carried.
	Bytes bool
	// LineBreaks: line breaks between the tokens of a JSON payload or headers text arrive.
	// Otherwise such a text arrives compacted.
	LineBreaks bool
	// Reencoded: a JSON payload is decoded and encoded on its way. Its value arrives, with
	// all digits of its numbers, but not its text.
	Reencoded bool
	// ASCIITopics: the destination takes topics of letters, digits, dots, dashes and underscores only, as Kafka does. The sink
	// then rejects an event with another topic for good, and delivers the others of its batch.
	ASCIITopics bool
}

// Destination is where a sink sends. One goroutine at a time calls its functions, except
// Connect.
type Destination struct {
	// Connect opens a sink for the destination, as each relay process would. The suite
	// closes it.
	Connect func(t testing.TB) sink.Sink
	// Arrivals returns all events that arrived so far, in their order at each address. It
	// is called only after Send has returned.
	Arrivals func(t testing.TB) []Arrival
	// Address is the address of events with that topic; nil if Arrivals have no Address.
	Address func(topic string) string
	// BreakAddress makes the address of events with that topic unavailable, for the rest
	// of the test, and no other. nil if addresses cannot fail independently.
	BreakAddress func(t testing.TB, topic string)
	// Stop makes the destination unreachable; Start restarts it with its events. Both are
	// nil if it cannot be stopped (a file).
	Stop, Start func(t testing.TB)
}

// Arrival is one event as a client of the destination reads it. Fields that the format does
// not carry are zero.
type Arrival struct {
	ID        string
	Topic     string
	Key       *string
	Payload   []byte
	Headers   outbox.Headers
	CreatedAt time.Time
	GroupID   string
	// Address is the stream, list, subject or path.
	Address string
	// DeadLetter is the JSON object that describes a dead letter; "" if there is none.
	DeadLetter string
}

// Run checks a sink against the contract of [sink.Sink]. It counts goroutines first, so the
// caller must not be a parallel test; its cases run in parallel.
func Run(t *testing.T, h Harness) {
	t.Run("Close ends all goroutines", func(t *testing.T) { closeEndsGoroutines(t, h) })
	for _, c := range cases {
		if c.onceOnly && !h.OnceOnly || c.bytes && !h.Keeps.Bytes {
			continue // the format does not promise it
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := h.Open(t)
			if c.stops && d.Stop == nil {
				return
			}
			c.run(t, h, d)
		})
	}
}

// testCase is one clause of a sink's contract.
type testCase struct {
	name     string
	onceOnly bool // needs Harness.OnceOnly
	bytes    bool // needs Keeps.Bytes
	stops    bool // needs Destination.Stop
	run      func(t *testing.T, h Harness, d Destination)
}

var cases = []testCase{
	{name: "one event", run: oneEvent},
	{name: "a thousand events", run: thousandEvents},
	{name: "fields", run: fields},
	{name: "other topics", run: otherTopics},
	{name: "JSON payloads", run: jsonPayloads},
	{name: "opaque payloads", bytes: true, run: opaquePayloads},
	{name: "many topics", run: manyTopics},
	{name: "dead letters", run: deadLetters},
	{name: "AddressOf", run: addressOf},
	{name: "address unavailable", run: addressUnavailable},
	{name: "order by id within an address", run: orderWithinAddress},
	{name: "concurrent sends", run: concurrentSends},
	{name: "context is done", run: contextDone},
	{name: "Check", run: check},
	{name: "destination restarts", stops: true, run: destinationRestarts},
	{name: "restart during Sends", stops: true, run: restartDuringSends},
	{name: "resent under its group_id", onceOnly: true, run: resent},
	{name: "split after Send", onceOnly: true, run: splitAfterSend},
	{name: "split before Send", onceOnly: true, run: splitBeforeSend},
}
