// Package sinktest is the one suite every sink passes, on its real server.
//
// A driver's test says how to get at its destination ([Harness]) and calls [Run].
// The suite sends, looks at what arrived through a client that is not the
// driver's, and keeps account by id: nothing missing, nothing twice.
package sinktest

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TopicPrefix begins all topics the suite uses; what follows are words with dots
// between them, not always ASCII.
const TopicPrefix = "sinktest."

// Pipeline is the name of the pipeline all batches come from.
const Pipeline = "sinktest"

// Harness is what a driver's test hands to [Run].
type Harness struct {
	// Open makes a new, empty destination, which goes away when t ends. It takes
	// whatever topic begins with TopicPrefix. Cases that run at the same time
	// have a destination each.
	Open func(t testing.TB) Destination
	// OpenBroken makes a sink with a good configuration whose destination is not
	// there: nothing listens, the folder does not exist. The suite closes it.
	OpenBroken func(t testing.TB) sink.Sink
	// Keeps tells what of an event the format carries.
	Keeps Keeps
	// OnceOnly: sending a batch again under its group_id, or a part of it under
	// a new one with origins, adds nothing twice.
	OnceOnly bool
}

// Keeps tells what of an event the format carries. The id and the payload always
// are.
type Keeps struct {
	Topic, Key, Headers, GroupID, CreatedAt bool
	// HeadersText: the headers arrive as the text the database wrote. Without it
	// they are compared as a map, and {} may arrive as NULL.
	HeadersText bool
	// AnyText: keys and header values may hold line breaks and begin or end with
	// a blank.
	AnyText bool
	// Bytes: payloads that are not JSON are carried.
	Bytes bool
	// LineBreaks: a JSON payload or headers text with line breaks between its
	// tokens arrives byte for byte. Without it, each is a blank on arrival.
	LineBreaks bool
	// Reencoded: a JSON payload is decoded and encoded again on its way. Its value
	// arrives, with all digits of its numbers, but not its text.
	Reencoded bool
}

// Destination is where a sink sends to. Its functions are called by one
// goroutine at a time, except Connect.
type Destination struct {
	// Connect opens a sink on the destination, as each process would that sends
	// there. The suite closes it.
	Connect func(t testing.TB) sink.Sink
	// Arrivals returns all that arrived so far, in the order of arrival within
	// each address. It is asked only after Send has returned.
	Arrivals func(t testing.TB) []Arrival
	// Address is where an event with that topic has to arrive; nil where an
	// Arrival has no Address.
	Address func(topic string) string
	// BreakAddress takes the address of events with that topic away, until the
	// destination goes, and leaves the others. nil where there is but one, or an
	// address cannot be away by itself.
	BreakAddress func(t testing.TB, topic string)
	// Stop makes the destination unreachable, Start brings it back with what it
	// held. Both nil where it cannot be stopped (a file).
	Stop, Start func(t testing.TB)
}

// Arrival is one event as a client of the destination finds it. What the format
// does not carry is zero.
type Arrival struct {
	ID        string
	Topic     string
	Key       *string
	Payload   []byte
	Headers   outbox.Headers
	CreatedAt time.Time
	GroupID   string
	// Address is the stream, list, subject or path it arrived at.
	Address string
	// DeadLetter is the JSON object that says why the event was buried; "" when
	// there was none.
	DeadLetter string
}

// Run holds a sink to what [sink.Sink] says. It must not be called by a test that
// is parallel, for it counts goroutines first; its cases then run in parallel.
func Run(t *testing.T, h Harness) {
	t.Run("close leaves no goroutine", func(t *testing.T) { closeLeavesNoGoroutine(t, h) })
	for _, c := range cases {
		if c.onceOnly && !h.OnceOnly || c.bytes && !h.Keeps.Bytes {
			continue // the format promises no such thing
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

// testCase is one sentence of the contract between the relay and a sink.
type testCase struct {
	name     string
	onceOnly bool // needs a sink that remembers
	bytes    bool // needs a format that carries opaque bytes
	stops    bool // needs a destination that can be stopped
	run      func(t *testing.T, h Harness, d Destination)
}

var cases = []testCase{
	{name: "one event", run: oneEvent},
	{name: "a thousand events", run: aThousand},
	{name: "fields arrive as they are", run: fields},
	{name: "payloads arrive byte for byte", run: jsonPayloads},
	{name: "opaque bytes arrive byte for byte", bytes: true, run: opaquePayloads},
	{name: "many topics", run: manyTopics},
	{name: "dead letters", run: deadLetters},
	{name: "addresses are told", run: addressesAreTold},
	{name: "an address is away", run: anAddressIsAway},
	{name: "order by id within an address", run: orderWithinAddress},
	{name: "concurrent sends", run: concurrentSends},
	{name: "context is over", run: contextIsOver},
	{name: "check", run: check},
	{name: "stopped and back", stops: true, run: stoppedAndBack},
	{name: "stopped in the middle", stops: true, run: stoppedInTheMiddle},
	{name: "sent again under its group_id", onceOnly: true, run: sentAgain},
	{name: "halved after it was sent", onceOnly: true, run: halvedAfterSent},
	{name: "halved before it was sent", onceOnly: true, run: halvedBeforeSent},
}
