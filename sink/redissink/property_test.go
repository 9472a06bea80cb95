package redissink_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// TestOnceWhateverHappens lets the life of a batch take any turn: sent, sent again
// after a crash, divided before and after it was sent, sent late by an owner that
// lost it, its streams out of order for a while, the stream's template changed, its
// events projected to other streams. Whatever an owner is told was delivered is in its
// stream at that moment. In the end every event is in its stream, once; more often only
// where the template changed. Where it was projected it may be in other streams too, but
// in none twice.
func TestOnceWhateverHappens(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--appendonly", "no")
	c := client(t, server)
	byTopic, byKey := opened(t, redissink.Config{URL: server.URL}), opened(t, redissink.Config{URL: server.URL, Stream: "{key}"})
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		m := &model{sink: byTopic, other: byKey, client: c, broken: map[string]bool{}}
		for i := range 3 {
			m.streams = append(m.streams, fmt.Sprintf("run%d:%d", run, i))
		}
		topics := rapid.SliceOfN(rapid.SampledFrom(m.streams), 1, 12).Draw(t, "streams")
		whole := newBatch(topics...)
		for i := range whole.Events {
			whole.Events[i].Key = text(rapid.SampledFrom(m.streams).Draw(t, "stream by key"))
		}
		whole.Projected = rapid.Bool().Draw(t, "projected")
		m.live = []*buffer.Batch{whole}
		turns := map[string]func(*rapid.T){
			"send":   m.send,
			"crash":  m.crash,
			"divide": m.divide,
			"late":   m.late,
			"break":  m.toggle,
		}
		if rapid.Bool().Draw(t, "the template may change") {
			turns["template"] = m.retemplate
		}
		if whole.Projected {
			turns["project"] = m.project
		}
		t.Repeat(turns)
		m.finish(t)
		m.audit(t, whole)
	})
}

type model struct {
	sink    *redissink.Sink // under the template of today
	other   *redissink.Sink // under the other one
	changed bool            // the template was changed
	client  *redis.Client
	streams []string
	broken  map[string]bool

	live  []*buffer.Batch // to be sent by their owners
	done  []*buffer.Batch // sent, and their owners know
	stale []*buffer.Batch // divided since: nobody owns them
}

// send is an owner's: it settles what it is told was delivered.
func (m *model) send(t *rapid.T) {
	i := m.pick(t, m.live)
	b := m.live[i]
	err := m.sink.Send(t.Context(), b)
	var some *sink.BatchError
	switch {
	case err == nil:
		m.holds(t, b, nil)
		m.live = append(m.live[:i], m.live[i+1:]...)
		m.done = append(m.done, b)
	case errors.Is(err, sink.ErrUnavailable):
	case errors.As(err, &some):
		var rest []int
		for _, e := range some.Events {
			rest = append(rest, e.Index)
		}
		m.holds(t, b, rest)
		m.live[i] = part(b, rest...)
		m.stale = append(m.stale, b)
	default:
		t.Fatalf("an owner was told %v", err)
	}
}

// holds fails unless each event of b but the rest is in its stream.
func (m *model) holds(t *rapid.T, b *buffer.Batch, rest []int) {
	arrived := m.arrived(t)
	for i, id := range ids(b) {
		stream, _ := m.sink.AddressOf(&b.Events[i])
		if !slices.Contains(rest, i) && arrived[stream+" "+id] == 0 {
			t.Errorf("an owner was told that event %s is in %s, and it is not", id, stream)
		}
	}
}

// arrived counts, by stream and id; a stream that is out of order holds what it
// held.
func (m *model) arrived(t *rapid.T) map[string]int {
	arrived := map[string]int{}
	for _, stream := range m.streams {
		where := stream
		if m.broken[stream] {
			where = stream + ":away"
		}
		entries, err := m.client.XRange(t.Context(), where, "-", "+").Result()
		m.must(t, err)
		for _, e := range entries {
			arrived[stream+" "+fmt.Sprint(e.Values["id"])]++
		}
	}
	return arrived
}

// retemplate is a new configuration.
func (m *model) retemplate(*rapid.T) {
	m.sink, m.other, m.changed = m.other, m.sink, true
}

// project sends events of a batch elsewhere from now on. One who held it before may not
// know.
func (m *model) project(t *rapid.T) {
	i := m.pick(t, m.live)
	b := m.live[i]
	m.stale = append(m.stale, b)
	m.live[i] = projected(b)
	for at := range m.live[i].Events {
		e := &m.live[i].Events[at]
		e.Topic = rapid.SampledFrom(append(m.streams[:len(m.streams):len(m.streams)], e.Topic)).Draw(t, "stream")
		e.Key = text(rapid.SampledFrom(append(m.streams[:len(m.streams):len(m.streams)], *e.Key)).Draw(t, "stream by key"))
	}
}

// crash makes a batch that was sent one to be sent, as when its settle was lost.
func (m *model) crash(t *rapid.T) {
	i := m.pick(t, m.done)
	m.live = append(m.live, m.done[i])
	m.done = append(m.done[:i], m.done[i+1:]...)
}

func (m *model) divide(t *rapid.T) {
	i := m.pick(t, m.live)
	b := m.live[i]
	if len(b.Events) < 2 {
		t.Skip("too small")
	}
	var parts [2][]int
	for at := range b.Events {
		side := rapid.IntRange(0, 1).Draw(t, "side")
		parts[side] = append(parts[side], at)
	}
	if len(parts[0]) == 0 || len(parts[1]) == 0 {
		t.Skip("not divided")
	}
	m.live[i] = part(b, parts[0]...)
	m.live = append(m.live, part(b, parts[1]...))
	m.stale = append(m.stale, b)
}

// late is the send of one who owns nothing any more; what it is told is ignored.
func (m *model) late(t *rapid.T) {
	b := m.stale[m.pick(t, m.stale)]
	s := m.sink
	if m.changed && rapid.Bool().Draw(t, "under the other template") {
		s = m.other
	}
	err := s.Send(t.Context(), b)
	if err != nil && !errors.Is(err, sink.ErrFenced) && !errors.Is(err, sink.ErrUnavailable) && !errors.As(err, new(*sink.BatchError)) {
		t.Fatalf("a late owner was told %v", err)
	}
}

// toggle puts a key of the wrong type in a stream's place, or the stream back.
func (m *model) toggle(t *rapid.T) {
	stream := rapid.SampledFrom(m.streams).Draw(t, "stream")
	if m.broken[stream] {
		m.mend(t, stream)
		return
	}
	m.broken[stream] = true
	m.move(t, stream, stream+":away")
	m.must(t, m.client.Set(t.Context(), stream, "no stream", 0).Err())
}

func (m *model) mend(t *rapid.T, stream string) {
	m.broken[stream] = false
	m.must(t, m.client.Del(t.Context(), stream).Err())
	m.move(t, stream+":away", stream)
}

func (m *model) move(t *rapid.T, from, to string) {
	if m.client.Exists(t.Context(), from).Val() > 0 {
		m.must(t, m.client.Rename(t.Context(), from, to).Err())
	}
}

// finish mends the streams and lets every owner, then every late one, send.
func (m *model) finish(t *rapid.T) {
	for stream, broken := range m.broken {
		if broken {
			m.mend(t, stream)
		}
	}
	for _, b := range m.live {
		if err := m.sink.Send(t.Context(), b); err != nil {
			t.Fatalf("an owner was told %v", err)
		}
		m.holds(t, b, nil)
	}
	for _, b := range m.stale {
		if err := m.sink.Send(t.Context(), b); err != nil && !errors.Is(err, sink.ErrFenced) {
			t.Fatalf("a late owner was told %v", err)
		}
	}
}

func (m *model) audit(t *rapid.T, whole *buffer.Batch) {
	arrived := m.arrived(t)
	if whole.Projected {
		for where, n := range arrived {
			if n > 1 {
				t.Errorf("%s arrived %d times", where, n)
			}
		}
		return
	}
	if m.changed {
		return // all was there when its owner was told so
	}
	for i, id := range ids(whole) {
		if n := arrived[whole.Events[i].Topic+" "+id]; n != 1 {
			t.Errorf("event %s arrived %d times", id, n)
		}
	}
	if len(arrived) != len(whole.Events) {
		t.Errorf("%d events arrived, %d were sent", len(arrived), len(whole.Events))
	}
}

func (m *model) pick(t *rapid.T, of []*buffer.Batch) int {
	if len(of) == 0 {
		t.Skip("there is none")
	}
	return rapid.IntRange(0, len(of)-1).Draw(t, "batch")
}

func (m *model) must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
