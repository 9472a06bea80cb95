package redissink_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// A batch goes through random steps: it is sent, resent after a crash, split before and
// after a Send, sent by a former owner, its streams break and recover, the stream template
// changes, the projection moves its events to other streams. Every event that Send reports
// as delivered is in its stream at that moment. At the end every event is in its stream
// once; more often only if the template changed. With a projection it may be in other
// streams too, but in none twice.
func TestStream_ExactlyOnceProperty(t *testing.T) {
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
			whole.Events[i].Key = new(rapid.SampledFrom(m.streams).Draw(t, "stream by key"))
		}
		whole.Projected = rapid.Bool().Draw(t, "projected")
		m.live = []*buffer.Batch{whole}
		turns := map[string]func(*rapid.T){
			"send":  m.send,
			"crash": m.crash,
			"split": m.split,
			"late":  m.late,
			"break": m.toggle,
		}
		if rapid.Bool().Draw(t, "template changes") {
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
	sink    *redissink.Sink // with the current template
	other   *redissink.Sink // with the other template
	changed bool            // the template has changed
	client  *redis.Client
	streams []string
	broken  map[string]bool

	live  []*buffer.Batch // leased, to be sent
	done  []*buffer.Batch // settled
	stale []*buffer.Batch // of former owners
}

// send sends a leased batch and settles what was delivered.
func (m *model) send(t *rapid.T) {
	i := m.pick(t, m.live, anyBatch)
	b := m.live[i]
	err := m.sink.Send(t.Context(), b)
	var batchErr *sink.BatchError
	switch {
	case err == nil:
		m.expectPresent(t, b, nil)
		m.live = append(m.live[:i], m.live[i+1:]...)
		m.done = append(m.done, b)
	case errors.Is(err, sink.ErrUnavailable):
	case errors.As(err, &batchErr):
		var rest []int
		for _, e := range batchErr.Events {
			rest = append(rest, e.Index)
		}
		m.expectPresent(t, b, rest)
		m.live[i] = part(b, rest...)
		m.stale = append(m.stale, b)
	default:
		t.Fatalf("Send of the owner: %v", err)
	}
}

// expectPresent fails unless each event of b without the rest is in its stream.
func (m *model) expectPresent(t *rapid.T, b *buffer.Batch, rest []int) {
	arrived := m.arrived(t)
	for i, id := range ids(b) {
		stream, _ := m.sink.AddressOf(&b.Events[i])
		if !slices.Contains(rest, i) && arrived[stream+" "+id] == 0 {
			t.Errorf("event %s is not in %s, although Send delivered it", id, stream)
		}
	}
}

// arrived counts the entries by stream and id, also of broken streams.
func (m *model) arrived(t *rapid.T) map[string]int {
	arrived := map[string]int{}
	for _, stream := range m.streams {
		where := stream
		if m.broken[stream] {
			where = stream + ":saved"
		}
		entries, err := m.client.XRange(t.Context(), where, "-", "+").Result()
		testkit.NoError(t, err)
		for _, e := range entries {
			arrived[stream+" "+fmt.Sprint(e.Values["id"])]++
		}
	}
	return arrived
}

// retemplate switches to the other template.
func (m *model) retemplate(*rapid.T) {
	m.sink, m.other, m.changed = m.other, m.sink, true
}

// project moves events of a batch to other streams. A former owner may not know.
func (m *model) project(t *rapid.T) {
	i := m.pick(t, m.live, anyBatch)
	b := m.live[i]
	m.stale = append(m.stale, b)
	m.live[i] = projected(b)
	for at := range m.live[i].Events {
		e := &m.live[i].Events[at]
		e.Topic = rapid.SampledFrom(append(m.streams[:len(m.streams):len(m.streams)], e.Topic)).Draw(t, "stream")
		e.Key = new(rapid.SampledFrom(append(m.streams[:len(m.streams):len(m.streams)], *e.Key)).Draw(t, "stream by key"))
	}
}

// crash makes a settled batch a leased one again, as if the settle was lost.
func (m *model) crash(t *rapid.T) {
	i := m.pick(t, m.done, anyBatch)
	m.live = append(m.live, m.done[i])
	m.done = append(m.done[:i], m.done[i+1:]...)
}

func (m *model) split(t *rapid.T) {
	i := m.pick(t, m.live, func(b *buffer.Batch) bool { return len(b.Events) > 1 })
	b := m.live[i]
	between := rapid.IntRange(1, len(b.Events)-1).Draw(t, "between") // those before and after it are apart
	var parts [2][]int
	for at := range b.Events {
		var side int
		switch at {
		case between - 1:
		case between:
			side = 1
		default:
			side = rapid.IntRange(0, 1).Draw(t, "side")
		}
		parts[side] = append(parts[side], at)
	}
	m.live[i] = part(b, parts[0]...)
	m.live = append(m.live, part(b, parts[1]...))
	m.stale = append(m.stale, b)
}

// late sends a batch of a former owner and ignores the result.
func (m *model) late(t *rapid.T) {
	b := m.stale[m.pick(t, m.stale, anyBatch)]
	s := m.sink
	if m.changed && rapid.Bool().Draw(t, "with the other template") {
		s = m.other
	}
	err := s.Send(t.Context(), b)
	if err != nil && !errors.Is(err, sink.ErrFenced) && !errors.Is(err, sink.ErrUnavailable) && !errors.As(err, new(*sink.BatchError)) {
		t.Fatalf("Send of a former owner: %v", err)
	}
}

// toggle replaces a stream with a key of the wrong type, or restores it.
func (m *model) toggle(t *rapid.T) {
	stream := rapid.SampledFrom(m.streams).Draw(t, "stream")
	if m.broken[stream] {
		m.restore(t, stream)
		return
	}
	m.broken[stream] = true
	m.move(t, stream, stream+":saved")
	testkit.NoError(t, m.client.Set(t.Context(), stream, "no stream", 0).Err())
}

func (m *model) restore(t *rapid.T, stream string) {
	m.broken[stream] = false
	testkit.NoError(t, m.client.Del(t.Context(), stream).Err())
	m.move(t, stream+":saved", stream)
}

func (m *model) move(t *rapid.T, from, to string) {
	if m.client.Exists(t.Context(), from).Val() > 0 {
		testkit.NoError(t, m.client.Rename(t.Context(), from, to).Err())
	}
}

// finish restores the streams and sends every leased batch, then those of former owners.
func (m *model) finish(t *rapid.T) {
	for stream, broken := range m.broken {
		if broken {
			m.restore(t, stream)
		}
	}
	for _, b := range m.live {
		if err := m.sink.Send(t.Context(), b); err != nil {
			t.Fatalf("Send of the owner: %v", err)
		}
		m.expectPresent(t, b, nil)
	}
	for _, b := range m.stale {
		if err := m.sink.Send(t.Context(), b); err != nil && !errors.Is(err, sink.ErrFenced) {
			t.Fatalf("Send of a former owner: %v", err)
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
		return // expectPresent has checked
	}
	for i, id := range ids(whole) {
		if n := arrived[whole.Events[i].Topic+" "+id]; n != 1 {
			t.Errorf("event %s arrived %d times", id, n)
		}
	}
	if len(arrived) != len(whole.Events) {
		t.Errorf("%d events arrived; want %d", len(arrived), len(whole.Events))
	}
}

// pick draws one of the batches of a kind. It skips the step, before anything is drawn, if there is none.
func (m *model) pick(t *rapid.T, of []*buffer.Batch, is func(*buffer.Batch) bool) int {
	var able []int
	for i, b := range of {
		if is(b) {
			able = append(able, i)
		}
	}
	if len(able) == 0 {
		t.Skip("none")
	}
	return rapid.SampledFrom(able).Draw(t, "batch")
}

func anyBatch(*buffer.Batch) bool { return true }
