package natssink_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestJetStreamInOrder(t *testing.T) {
	sinktest.Run(t, streamsBy(natssink.Config{Ordered: true}, false))
}

func TestJetStreamInOrderFast(t *testing.T) {
	sinktest.Run(t, streamsBy(natssink.Config{Ordered: true}, true))
}

// keyedBatch makes one event a word "subject/key".
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

// TestBehindOneThatFailed: what comes behind an event of its key that was not accepted
// is not published; other keys are, and so is what comes behind a refusal for good.
func TestBehindOneThatFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		batch    *buffer.Batch
		verdicts string
		behind   int // of these
		stored   string
	}{
		{"all goes well", keyedBatch("orders.x/a", "orders.y/b", "orders.x/a", "orders.z"), "ok ok ok ok", 0, "1 2 3 4"},
		{"a subject without a stream", keyedBatch("other/a", "orders.x/a", "orders.x/b", "orders.y/b", "orders.y"), "outage outage ok ok ok", 1, "3 4 5"},
		{"in the middle", keyedBatch("orders.x/a", "other/a", "orders.x/a", "orders.y/a"), "ok outage outage outage", 2, "1"},
		{"no subject at all", keyedBatch("orders.x/a", "orders..x/a", "orders.x/a"), "ok dead ok", 0, "1 3"},
		{"a header that NATS cannot carry", keyedBatch("orders.x/a\nb", "orders.x/a\nb", "orders.x/c"), "dead dead ok", 0, "3"},
		{"no subject behind one that failed", keyedBatch("other/a", "orders..x/a", "orders.x/a"), "outage dead outage", 1, ""},
		{"no subject in front", keyedBatch("orders..x/a", "orders..y/a", "orders.x/a"), "dead dead ok", 0, "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, fast bool) {
				o := openOrders(t, jetstream.StreamConfig{AllowBatchPublish: fast})
				s := open(t, natssink.Config{URL: o.url, Ordered: true})
				err := s.Send(within(t, soon), c.batch)
				expect(t, "verdicts", verdicts(t, err, len(c.batch.Events)), c.verdicts)
				expect(t, "stored, sorted by key", byKey(t, o, c.batch), c.stored)
				behind := 0
				if some, partly := errors.AsType[*sink.BatchError](err); partly {
					for _, e := range some.Events {
						why, is := errors.AsType[*sink.BehindError](e.Err)
						if !is {
							continue
						}
						if behind++; why.ID >= c.batch.Events[e.Index].ID {
							t.Errorf("event %d waits behind event %d", c.batch.Events[e.Index].ID, why.ID)
						}
					}
				}
				if behind != c.behind {
					t.Errorf("%d events wait behind others, %d were expected: %v", behind, c.behind, err)
				}
			})
		})
	}
}

// byKey is what was stored, in the batch's order, when each key's events came in
// that order.
func byKey(t *testing.T, o orders, b *buffer.Batch) string {
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
				t.Errorf("event %d of key %s came after event %d", e.ID, *e.Key, last[*e.Key])
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

// TestOneOfAKeyIsUnderWay: the second is not published before the first is
// acknowledged, whatever happens to other keys.
func TestOneOfAKeyIsUnderWay(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	s := open(t, natssink.Config{URL: o.url, Ordered: true})
	came := make(chan *nats.Msg, 10)
	_, err := o.client.ChanSubscribe("slow", came) // answers as a stream does
	ok(t, err)
	ok(t, o.client.Flush())
	sent := make(chan error, 1)
	go func() { sent <- s.Send(within(t, patience), keyedBatch("slow/a", "slow/a", "slow/b", "slow/a")) }()
	next := func() *nats.Msg {
		select {
		case m := <-came:
			return m
		case <-within(t, patience).Done():
			t.Fatal("nothing came")
			return nil
		}
	}
	first, other := next(), next()
	expect(t, "the first of each key", first.Header.Get("Nats-Msg-Id")+" "+other.Header.Get("Nats-Msg-Id"),
		sinktest.Pipeline+":1 "+sinktest.Pipeline+":3")
	ack := []byte(`{"stream":"SLOW","seq":1}`)
	ok(t, other.Respond(ack))
	ok(t, first.Respond(ack))
	second := next()
	expect(t, "the second", second.Header.Get("Nats-Msg-Id"), sinktest.Pipeline+":2")
	ok(t, second.Respond(ack))
	last := next()
	expect(t, "the last", last.Header.Get("Nats-Msg-Id"), sinktest.Pipeline+":4")
	ok(t, last.Respond([]byte(`{"error":{"code":400,"err_code":10060,"description":"no"}}`)))
	expect(t, "verdicts", verdicts(t, <-sent, 4), "ok ok ok refused")
}
