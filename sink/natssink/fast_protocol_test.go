package natssink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink/natssink"
)

// fastMsg is a message of a fast batch.
type fastMsg struct {
	*nats.Msg
	id  string
	seq int
	op  string
}

// fakeStream opens a sink that knows a stream on orders.> with fast batches, deletes the
// stream, and answers in its place. It rejects single events.
func fakeStream(t *testing.T, c natssink.Config, answer func(fastMsg)) (fixture, *natssink.Sink) {
	t.Helper()
	return fakeStreamWith(t, c, answer, `{"error":{"code":503,"err_code":10077,"description":"single"}}`)
}

// fakeStreamWith is fakeStream with another answer to single events.
func fakeStreamWith(t *testing.T, c natssink.Config, answer func(fastMsg), single string) (fixture, *natssink.Sink) {
	t.Helper()
	o := newFixture(t, fastStream)
	c.URL = o.url
	s := open(t, c)
	w := countPublishes(t, o.client, "orders.>")
	b := batchOf(3, "orders.a")
	for i := range b.Events {
		b.Events[i].ID += 10_000
	}
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), b))
	w.expect(t, 1, 0)
	testkit.NoError(t, w.sub.Unsubscribe())
	js, err := jetstream.New(o.client)
	testkit.NoError(t, err)
	testkit.NoError(t, js.DeleteStream(t.Context(), "ORDERS"))
	_, err = o.client.Subscribe("orders.>", func(m *nats.Msg) {
		tokens := strings.Split(m.Reply, ".")
		if len(tokens) < 6 || tokens[len(tokens)-1] != "$FI" {
			respond(t, m, single)
			return
		}
		tokens = tokens[len(tokens)-6:]
		seq, err := strconv.Atoi(tokens[3])
		if err != nil || tokens[2] != "fail" {
			t.Errorf("reply subject %s: %v", m.Reply, err)
		}
		answer(fastMsg{Msg: m, id: tokens[0], seq: seq, op: tokens[4]})
	})
	testkit.NoError(t, err)
	testkit.NoError(t, o.client.Flush())
	return o, s
}

func respond(t *testing.T, m *nats.Msg, text string) {
	t.Helper()
	if err := m.Respond([]byte(text)); err != nil {
		t.Error(err)
	}
}

// Only events that the PubAck covers are delivered, and none from the first failed one on.
func TestFastBatch_Answers(t *testing.T) {
	t.Parallel()
	const (
		started  = `{"type":"ack","seq":0,"msgs":500}`
		ack      = `{"stream":"ORDERS","seq":99,"batch":"ID","count":5}`
		failure  = `{"code":503,"err_code":10077,"description":"fast"}`
		rejected = `{"stream":"ORDERS","seq":0,"error":` + failure + `}`
		unknown  = `{"stream":"ORDERS","seq":0,"error":{"code":400,"err_code":10208,"description":"batch publish ID unknown"}}`
		disabled = `{"stream":"ORDERS","seq":0,"error":{"code":400,"err_code":10205,"description":"batch publish is disabled"}}`
	)
	for _, c := range []struct {
		name    string
		answers map[string]string // by number and operation
		stored  int
	}{
		{"all stored", map[string]string{"1.0": started, "5.2": ack}, 5},
		{"acks in between", map[string]string{"1.0": started, "2.1": `{"type":"ack","seq":2,"msgs":2}`, "4.1": `{"type":"ack","seq":4,"msgs":2}`, "5.2": ack}, 5},
		{"no ack at the start", map[string]string{"5.2": ack}, 5},
		{"smaller count", map[string]string{"1.0": started, "5.2": strings.Replace(ack, `"count":5`, `"count":4`, 1)}, 4},
		{"larger count", map[string]string{"5.2": strings.Replace(ack, `"count":5`, `"count":6`, 1)}, 0},
		{"no count", map[string]string{"5.2": strings.Replace(ack, `,"count":5`, ``, 1)}, 0},
		{"another batch", map[string]string{"1.0": started, "5.2": strings.Replace(ack, "ID", "another", 1)}, 0},
		{"no batch", map[string]string{"5.2": `{"stream":"ORDERS","seq":99}`}, 0},
		{"no stream", map[string]string{"5.2": strings.Replace(ack, "ORDERS", "", 1)}, 0},
		{"not JSON", map[string]string{"5.2": "+OK"}, 0},
		{"nothing stored", map[string]string{"5.2": strings.Replace(ack, "99", "0", 1)}, 0},
		{"error, then PubAck for all", map[string]string{"3.1": `{"type":"err","seq":3,"error":` + failure + `}`, "5.2": ack, "6.3": ack}, 2},
		{"rejection, then PubAck for all", map[string]string{"3.1": rejected, "5.2": ack, "6.3": ack}, 2},
		{"gap, then PubAck for all", map[string]string{"3.1": `{"type":"gap","last_seq":2,"seq":3}`, "5.2": ack, "6.3": ack}, 1},
		{"error after ack", map[string]string{"3.1": `{"type":"ack","seq":3,"msgs":3}`, "4.1": `{"type":"err","seq":2,"error":` + failure + `}`, "6.3": ack}, 1},
		{"error, then unknown batch", map[string]string{"3.1": `{"type":"err","seq":3,"error":` + failure + `}`, "6.3": unknown}, 0},
		{"first event rejected", map[string]string{"1.0": rejected}, 0},
		{"fast batches disabled", map[string]string{"1.0": disabled}, 0},
		{"last event rejected, then PubAck for the others", map[string]string{"5.2": rejected, "6.3": strings.Replace(ack, `"count":5`, `"count":4`, 1)}, 4},
		{"PubAck lost", map[string]string{"1.0": started, "5.4": unknown}, 0},
		{"PubAck after ping", map[string]string{"5.4": ack}, 5},
	} {
		for _, ordered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ordered=%v", c.name, ordered), func(t *testing.T) {
				t.Parallel()
				_, s := fakeStream(t, natssink.Config{Ordered: ordered}, func(m fastMsg) {
					if text := c.answers[fmt.Sprintf("%d.%s", m.seq, m.op)]; text != "" {
						respond(t, m.Msg, strings.Replace(text, "ID", m.id, 1))
					}
				})
				err := s.Send(testkit.Timeout(t, sendTimeout), batchOf(5, "orders.a"))
				want := slices.Repeat([]string{"ok"}, 5)
				for i := c.stored; i < 5; i++ {
					want[i] = "outage"
				}
				testkit.Equal(t, "results", results(t, err, 5), strings.Join(want, " "))
				if c.stored < 5 {
					testkit.ErrorContains(t, err, "single")
				}
			})
		}
	}
}

// At most the window that the stream allows is unacknowledged, and a silent stream is pinged.
func TestFastBatch_Window(t *testing.T) {
	t.Parallel()
	came := make(chan fastMsg, 2000)
	_, s := fakeStream(t, natssink.Config{}, func(m fastMsg) { came <- m })
	sent := make(chan error, 1)
	go func() { sent <- s.Send(testkit.Timeout(t, sendTimeout), batchOf(500, "orders.a")) }()
	deadline := time.After(promptTimeout)
	// until receives events first..last and returns the ping after them.
	until := func(first, last int) fastMsg {
		t.Helper()
		for next := first; ; next++ {
			select {
			case m := <-came:
				if m.op == "4" {
					if m.seq != last || next != last+1 {
						t.Fatalf("ping for sequence %d after event %d; want it after %d", m.seq, next-1, last)
					}
					return m
				}
				if m.seq != next {
					t.Fatalf("received event %d; want %d", m.seq, next)
				}
			case <-deadline:
				t.Fatalf("received nothing after event %d", next-1)
			}
		}
	}
	ping := until(1, 100)
	respond(t, ping.Msg, `{"type":"ack","seq":50,"msgs":10}`) // fifty are unacknowledged, twenty are allowed
	ping = until(101, 100)
	respond(t, ping.Msg, `{"type":"ack","seq":90,"msgs":10}`)
	ping = until(101, 110)
	respond(t, ping.Msg, `{"type":"ack","seq":110,"msgs":150}`)
	ping = until(111, 410)
	respond(t, ping.Msg, `{"type":"ack","seq":410,"msgs":500}`)
	ping = until(411, 500)
	respond(t, ping.Msg, fmt.Sprintf(`{"stream":"ORDERS","seq":900,"batch":%q,"count":500}`, ping.id))
	testkit.NoError(t, <-sent)
}

// A cancelled Send returns at once and closes the batch.
func TestFastBatch_CancelledSend(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(testkit.Timeout(t, sendTimeout))
	closed := make(chan struct{})
	_, s := fakeStream(t, natssink.Config{}, func(m fastMsg) {
		switch {
		case m.seq == 100: // the window is full
			cancel()
		case m.op == "3":
			close(closed)
		}
	})
	err := s.Send(ctx, batchOf(500, "orders.a"))
	testkit.Equal(t, "kind", kind(err), "outage")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want one that wraps context.Canceled", err)
	}
	select {
	case <-closed:
	case <-testkit.Timeout(t, promptTimeout).Done():
		t.Error("the batch was not closed")
	}
}

// After a gap the next batch goes singly.
func TestFastBatch_PausesAfterGap(t *testing.T) {
	t.Parallel()
	var fast atomic.Int64
	_, s := fakeStream(t, natssink.Config{}, func(m fastMsg) {
		fast.Add(1)
		if m.op == "2" {
			respond(t, m.Msg, `{"type":"gap","last_seq":1,"seq":3}`)
			respond(t, m.Msg, fmt.Sprintf(`{"stream":"ORDERS","seq":900,"batch":%q,"count":0}`, m.id))
		}
	})
	for _, want := range []int64{5, 5} {
		testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, sendTimeout), batchOf(5, "orders.a")), 5), "outage outage outage outage outage")
		if n := fast.Load(); n < want || n > want+1 { // perhaps with opClose
			t.Errorf("%d events in fast batches so far; want %d", n, want)
		}
	}
}
