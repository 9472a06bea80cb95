package natssink_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestJetStreamOrdered(t *testing.T) {
	sinktest.Run(t, jetStream(natssink.Config{Ordered: true}, false))
}

func TestJetStreamOrderedFast(t *testing.T) {
	sinktest.Run(t, jetStream(natssink.Config{Ordered: true}, true))
}

// keyedBatch returns a batch with one event for each word, "subject/key".
func keyedBatch(words ...string) *buffer.Batch {
	topics, keys := make([]string, len(words)), make([]string, len(words))
	for i, word := range words {
		topics[i], keys[i], _ = strings.Cut(word, "/")
	}
	b := batch(topics...)
	for i := range keys {
		if keys[i] != "" {
			b.Events[i].Key = &keys[i]
		}
	}
	return b
}

// Events behind a failed one of their key are not published. Events of other keys are, and so
// are events behind a permanently rejected one.
func TestOrdered_BehindFailedEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		batch   *buffer.Batch
		results string
		behind  int // of these
		stored  string
	}{
		{"all accepted", keyedBatch("orders.x/a", "orders.y/b", "orders.x/a", "orders.z"), "ok ok ok ok", 0, "1 2 3 4"},
		{"first subject has no stream", keyedBatch("other/a", "orders.x/a", "orders.x/b", "orders.y/b", "orders.y"), "outage outage ok ok ok", 1, "3 4 5"},
		{"subject in the middle has no stream", keyedBatch("orders.x/a", "other/a", "orders.x/a", "orders.y/a"), "ok outage outage outage", 2, "1"},
		{"invalid subject", keyedBatch("orders.x/a", "orders..x/a", "orders.x/a"), "ok permanent ok", 0, "1 3"},
		{"invalid header", keyedBatch("orders.x/a\nb", "orders.x/a\nb", "orders.x/c"), "permanent permanent ok", 0, "3"},
		{"invalid subject behind a failed event", keyedBatch("other/a", "orders..x/a", "orders.x/a"), "outage permanent outage", 1, ""},
		{"invalid subjects in front", keyedBatch("orders..x/a", "orders..y/a", "orders.x/a"), "permanent permanent ok", 0, "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			singlyAndFast(t, func(t *testing.T, fast bool) {
				o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
				s := open(t, natssink.Config{URL: o.url, Ordered: true})
				err := s.Send(testkit.Timeout(t, promptTimeout), c.batch)
				testkit.Equal(t, "results", results(t, err, len(c.batch.Events)), c.results)
				testkit.Equal(t, "stored, sorted by key", byKey(t, o, c.batch), c.stored)
				behind := 0
				if some, partly := errors.AsType[*sink.BatchError](err); partly {
					for _, e := range some.Events {
						why, is := errors.AsType[*sink.KeyBlockedError](e.Err)
						if !is {
							continue
						}
						if behind++; why.ID >= c.batch.Events[e.Index].ID {
							t.Errorf("event %d is behind event %d", c.batch.Events[e.Index].ID, why.ID)
						}
					}
				}
				if behind != c.behind {
					t.Errorf("%d events are behind others; want %d: %v", behind, c.behind, err)
				}
			})
		})
	}
}

// byKey lists the stored events in the batch's order. It fails the test if the events of
// one key were stored in another order.
func byKey(t *testing.T, o fixture, b *buffer.Batch) string {
	t.Helper()
	last := map[string]int64{}
	got := map[int64]bool{}
	for _, a := range stored(t, o.stream) {
		for i := range b.Events {
			e := &b.Events[i]
			if a.ID != strconv.FormatInt(e.ID, 10) {
				continue
			}
			got[e.ID] = true
			if e.Key == nil {
				continue
			}
			if last[*e.Key] > e.ID {
				t.Errorf("event %d of key %s is stored after event %d", e.ID, *e.Key, last[*e.Key])
			}
			last[*e.Key] = e.ID
		}
	}
	var all []string
	for i := range b.Events {
		if got[b.Events[i].ID] {
			all = append(all, strconv.FormatInt(b.Events[i].ID, 10))
		}
	}
	return strings.Join(all, " ")
}

// The second event of a key is published when the first is acknowledged, independently of
// other keys.
func TestOrdered_OneInFlightPerKey(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	s := open(t, natssink.Config{URL: o.url, Ordered: true})
	published := make(chan *nats.Msg, 10)
	_, err := o.client.ChanSubscribe("slow", published) // answers as a stream does
	testkit.NoError(t, err)
	testkit.NoError(t, o.client.Flush())
	sent := make(chan error, 1)
	go func() {
		sent <- s.Send(testkit.Timeout(t, sendTimeout), keyedBatch("slow/a", "slow/a", "slow/b", "slow/a"))
	}()
	next := func() *nats.Msg { return testkit.Receive(t, "published event", published) }
	first, other := next(), next()
	testkit.Equal(t, "the first of each key", idOf(first)+" "+idOf(other), "1 3")
	ack := []byte(`{"stream":"SLOW","seq":1}`)
	testkit.NoError(t, other.Respond(ack))
	testkit.NoError(t, first.Respond(ack))
	second := next()
	testkit.Equal(t, "the second", idOf(second), "2")
	testkit.NoError(t, second.Respond(ack))
	last := next()
	testkit.Equal(t, "the last", idOf(last), "4")
	testkit.NoError(t, last.Respond([]byte(`{"error":{"code":400,"err_code":10060,"description":"no"}}`)))
	testkit.Equal(t, "results", results(t, <-sent, 4), "ok ok ok rejected")
}

// idOf returns the event's id.
func idOf(m *nats.Msg) string {
	name := strings.TrimPrefix(m.Header.Get("Nats-Msg-Id"), sinktest.Pipeline+":")
	id, _, _ := strings.Cut(name, ":")
	return id
}
