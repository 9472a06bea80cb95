package buffertest

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// fillRandom runs random sequences of what routes events, changes the sinks and fills them, and compares with a model what each sink lacks, and what it
// got in the end. Sinks are added and restored together, dropped and renamed, and batches come back in parts, between any two fills.
func fillRandom(t *testing.T, p *sinksCase) {
	route := func(name, was string, size int) buffer.Route {
		return buffer.Route{Sink: name, Was: was, BatchSize: size}
	}
	var (
		first  = []buffer.Route{route("a", "", 4), route("b", "", 3)}
		second = append(slices.Clone(first), route("c", "", 5), route("d", "", 2))
		third  = append(slices.Clone(second), route("e", "", 3), route("f", "", 3))
		fourth = append(slices.Clone(second), route("e", "", 3), route("g", "f", 3))
		relays []RoutedBuffer
	)
	for _, routes := range [][]buffer.Route{first, second, third, fourth} {
		relays = append(relays, p.Buffer(t, p.mode, routes...))
	}
	// A sequence takes a while on a server, so there are fewer than rapid's 100, unless a flag asks for a number.
	limit, passed, failed := 20, 0, false
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "rapid.checks" {
			limit = math.MaxInt
		}
	})
	rapid.Check(t, func(r *rapid.T) {
		if passed >= limit && !failed {
			return
		}
		ended := false
		defer func() { failed = failed || !ended }()
		for _, table := range []string{"outbox_events", "outbox_batches", "outbox_dead_letters", "outbox_archive", "outbox_sinks"} {
			p.Exec(t, "DELETE FROM "+table)
		}
		m := &fillModel{t: t, p: p, relays: relays}
		m.register(r)
		r.Repeat(map[string]func(*rapid.T){
			"insert":   m.insert,
			"route":    m.route,
			"deliver":  m.deliver,
			"hold":     m.hold,
			"register": m.register,
			"drop":     m.drop,
			"restore":  m.restore,
			"fill":     m.fill,
			"fill all": m.fillAll,
		})
		m.drain(r)
		ended = true
		passed++
	})
}

type fillModel struct {
	t        *testing.T
	p        *sinksCase
	relays   []RoutedBuffer
	started  int // so many of the relays have registered their sinks
	sinks    []*filledSink
	inserted int // events, whose topics are numbers; the first ones are routed
	routed   int
	held     []heldBatch
}

// filledSink is a sink, which may be renamed.
type filledSink struct {
	name    string
	dropped bool
	has     map[string]bool // what it was given
	owed    map[string]bool // and does not have yet
}

type heldBatch struct {
	sink  *filledSink
	batch *buffer.Lease
}

// relay is the one that started last: it knows all sinks.
func (m *fillModel) relay() RoutedBuffer { return m.relays[m.started-1] }

func (m *fillModel) insert(r *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(r, "events") {
		m.inserted++
		m.p.topics(m.t, fmt.Sprint(m.inserted))
	}
}

// route lets any relay route, also one that knows fewer sinks.
func (m *fillModel) route(r *rapid.T) {
	relay := m.relays[rapid.IntRange(0, m.started-1).Draw(r, "relay")]
	routed, err := relay.Route(r.Context(), rapid.IntRange(1, 8).Draw(r, "limit"), time.Hour, takeNone)
	ok(r, "Route", err)
	if routed == nil {
		equal(r, "routed events", m.routed, m.inserted)
		return
	}
	for range routed.Events {
		m.routed++
		for _, s := range m.open() {
			s.give(fmt.Sprint(m.routed))
		}
	}
}

func (s *filledSink) give(topic string) { s.has[topic], s.owed[topic] = true, true }

func (m *fillModel) open() (open []*filledSink) {
	for _, s := range m.sinks {
		if !s.dropped {
			open = append(open, s)
		}
	}
	return open
}

func (m *fillModel) sink(r *rapid.T) *filledSink {
	open := m.open()
	return open[rapid.IntRange(0, len(open)-1).Draw(r, "sink")]
}

func (m *fillModel) take(r *rapid.T) (s *filledSink, batch *buffer.Lease) {
	s = m.sink(r)
	batch, err := m.relay().Sink(s.name).TakeOver(r.Context(), time.Hour, buffer.DueRetry)
	ok(r, "TakeOver", err)
	if batch == nil {
		r.Skip("nothing is due")
	}
	return s, batch
}

// deliver settles a batch: it is delivered, or its first event is and the others wait, or it dies.
func (m *fillModel) deliver(r *rapid.T) {
	if len(m.held) > 0 && rapid.Bool().Draw(r, "held") {
		i := rapid.IntRange(0, len(m.held)-1).Draw(r, "batch")
		m.settle(r, m.held[i].sink, m.held[i].batch)
		m.held = slices.Delete(m.held, i, i+1)
		return
	}
	s, batch := m.take(r)
	m.settle(r, s, batch)
}

func (m *fillModel) settle(r *rapid.T, s *filledSink, batch *buffer.Lease) {
	outcomes, events := []buffer.Outcome{{Verdict: buffer.Delivered}}, batch.Events
	switch {
	case len(events) > 1 && rapid.Bool().Draw(r, "in part"):
		outcomes, events = retryTail(batch), events[:1]
	case batch.ClaimID != uuid.Nil && rapid.IntRange(0, 5).Draw(r, "dies") == 0: // what shares no event is a dead letter only, and not archived
		outcomes = []buffer.Outcome{{Verdict: buffer.Dead, IDs: batch.IDs(), Attempts: 1, Error: "no"}}
	}
	ok(r, "Settle", m.relay().Sink(s.name).Settle(r.Context(), batch, outcomes))
	for i := range events {
		topic := events[i].Topic
		if !s.owed[topic] {
			r.Fatalf("sink %s got event %s, which it has, or which it was not given", s.name, topic)
		}
		delete(s.owed, topic)
	}
}

// hold leaves a batch leased. A fill awaits one that shares no event.
func (m *fillModel) hold(r *rapid.T) {
	s, batch := m.take(r)
	if batch.ClaimID == uuid.Nil {
		m.settle(r, s, batch)
		return
	}
	m.held = append(m.held, heldBatch{s, batch})
}

// register starts the next relay: two sinks are added, and the fourth renames one.
func (m *fillModel) register(r *rapid.T) {
	added := [][]string{{"a", "b"}, {"c", "d"}, {"e", "f"}, nil}
	if m.started == len(added) || slices.ContainsFunc(m.sinks, func(s *filledSink) bool { return s.dropped && s.name == "f" }) {
		r.Skip("nothing changes")
	}
	for _, name := range added[m.started] {
		m.sinks = append(m.sinks, &filledSink{name: name, has: map[string]bool{}, owed: map[string]bool{}})
	}
	m.started++
	ok(r, "RegisterSinks", m.relay().RegisterSinks(r.Context()))
	if m.started == len(added) {
		m.sinks[5].name = "g"
	}
}

// drop drops sinks together. What waits for them is not sent to them, not by a fill either.
func (m *fillModel) drop(r *rapid.T) {
	for range rapid.IntRange(1, 2).Draw(r, "sinks") {
		s := m.sink(r)
		if len(m.open()) == 1 || slices.ContainsFunc(m.held, func(h heldBatch) bool { return h.sink == s }) {
			r.Skip("the sink stays")
		}
		ok(r, "DropSink", m.relay().DropSink(r.Context(), s.name, buffer.DroppedDiscarded))
		s.dropped = true
		clear(s.owed)
		_, err := m.relay().EndDropped(r.Context(), 1000)
		ok(r, "EndDropped", err)
	}
}

func (m *fillModel) restore(r *rapid.T) {
	for _, s := range m.sinks {
		if s.dropped && rapid.IntRange(0, 3).Draw(r, "stays dropped") > 0 {
			ok(r, "RestoreSink", m.relay().RestoreSink(r.Context(), s.name))
			s.dropped = false
		}
	}
	ok(r, "ServeSinks", m.relay().ServeSinks(r.Context())) // it reads the registry
}

func (m *fillModel) fill(r *rapid.T) { m.fillSink(r, m.sink(r)) }

// fillAll fills all sinks, in any order.
func (m *fillModel) fillAll(r *rapid.T) {
	for _, s := range rapid.Permutation(m.open()).Draw(r, "sinks") {
		m.fillSink(r, s)
	}
}

func (m *fillModel) fillSink(r *rapid.T, s *filledSink) {
	var lacks []string
	for i := range m.routed {
		if topic := fmt.Sprint(i + 1); !s.has[topic] {
			lacks = append(lacks, topic)
		}
	}
	for _, want := range []struct {
		dry    bool
		events int
	}{{true, len(lacks)}, {false, len(lacks)}, {false, 0}} {
		got, err := m.relay().FillSink(r.Context(), s.name, time.Time{}, want.dry, nil)
		ok(r, "FillSink", err)
		if got.Events() != int64(want.events) {
			r.Fatalf("sink %s got %+v (dry: %v), want %d events: %v", s.name, got, want.dry, want.events, lacks)
		}
	}
	for _, topic := range lacks {
		s.give(topic)
	}
}

// drain delivers everything, and expects that each sink got what it was given.
func (m *fillModel) drain(r *rapid.T) {
	for _, h := range m.held {
		m.settle(r, h.sink, h.batch)
	}
	for m.routed < m.inserted {
		m.route(r)
	}
	for _, s := range m.open() {
		for {
			batch, err := m.relay().Sink(s.name).TakeOver(r.Context(), time.Hour, buffer.DueRetry)
			ok(r, "TakeOver", err)
			if batch == nil {
				break
			}
			m.settle(r, s, batch)
		}
		equal(r, "events that "+s.name+" did not get", len(s.owed), 0)
	}
	equal(r, "events and batches left", m.p.count(m.t, "outbox_events")+m.p.count(m.t, "outbox_batches"), int64(0))
}
