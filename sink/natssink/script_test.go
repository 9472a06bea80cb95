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

	"github.com/outboxrelay/relay/sink/natssink"
)

// told is what a message is to its fast batch; seq 0: it is in none.
type told struct {
	*nats.Msg
	id  string
	seq int
	op  string
}

// answerInstead opens a sink that has learnt of a stream on orders.> which allows fast
// batches, and takes that stream's place. Events that come alone are refused.
func answerInstead(t *testing.T, c natssink.Config, answer func(told)) (orders, *natssink.Sink) {
	t.Helper()
	return answerBoth(t, c, answer, `{"error":{"code":503,"err_code":10077,"description":"alone"}}`)
}

// answerBoth is answerInstead with another answer to events that come alone.
func answerBoth(t *testing.T, c natssink.Config, answer func(told), alone string) (orders, *natssink.Sink) {
	t.Helper()
	o := openOrders(t, allowed)
	c.URL = o.url
	s := open(t, c)
	w := watch(t, o.client, "orders.>")
	b := many(3, "orders.a")
	for i := range b.Events {
		b.Events[i].ID += 10_000
	}
	ok(t, s.Send(within(t, patience), b))
	w.saw(t, 1, 0)
	ok(t, w.sub.Unsubscribe())
	js, err := jetstream.New(o.client)
	ok(t, err)
	ok(t, js.DeleteStream(t.Context(), "ORDERS"))
	_, err = o.client.Subscribe("orders.>", func(m *nats.Msg) {
		tokens := strings.Split(m.Reply, ".")
		if len(tokens) < 6 || tokens[len(tokens)-1] != "$FI" {
			respond(t, m, alone)
			return
		}
		tokens = tokens[len(tokens)-6:]
		seq, err := strconv.Atoi(tokens[3])
		if err != nil || tokens[2] != "fail" {
			t.Errorf("reply subject %s: %v", m.Reply, err)
		}
		answer(told{Msg: m, id: tokens[0], seq: seq, op: tokens[4]})
	})
	ok(t, err)
	ok(t, o.client.Flush())
	return o, s
}

func respond(t *testing.T, m *nats.Msg, text string) {
	t.Helper()
	if err := m.Respond([]byte(text)); err != nil {
		t.Error(err)
	}
}

// TestAnswersToAFastBatch: only what the last answer speaks for is delivered, and nothing
// from the first event on that is said not to be stored.
func TestAnswersToAFastBatch(t *testing.T) {
	t.Parallel()
	const (
		started  = `{"type":"ack","seq":0,"msgs":500}`
		ack      = `{"stream":"ORDERS","seq":99,"batch":"ID","count":5}`
		refusal  = `{"code":503,"err_code":10077,"description":"fast"}`
		instead  = `{"stream":"ORDERS","seq":0,"error":` + refusal + `}`
		unknown  = `{"stream":"ORDERS","seq":0,"error":{"code":400,"err_code":10208,"description":"batch publish ID unknown"}}`
		disabled = `{"stream":"ORDERS","seq":0,"error":{"code":400,"err_code":10205,"description":"batch publish is disabled"}}`
	)
	for _, c := range []struct {
		name    string
		answers map[string]string // by number and operation
		stored  int
	}{
		{"all is well", map[string]string{"1.0": started, "5.2": ack}, 5},
		{"some acks between", map[string]string{"1.0": started, "2.1": `{"type":"ack","seq":2,"msgs":2}`, "4.1": `{"type":"ack","seq":4,"msgs":2}`, "5.2": ack}, 5},
		{"no word at the start", map[string]string{"5.2": ack}, 5},
		{"another count", map[string]string{"1.0": started, "5.2": strings.Replace(ack, `"count":5`, `"count":4`, 1)}, 4},
		{"a larger count", map[string]string{"5.2": strings.Replace(ack, `"count":5`, `"count":6`, 1)}, 0},
		{"no count", map[string]string{"5.2": strings.Replace(ack, `,"count":5`, ``, 1)}, 0},
		{"another batch", map[string]string{"1.0": started, "5.2": strings.Replace(ack, "ID", "another", 1)}, 0},
		{"no batch", map[string]string{"5.2": `{"stream":"ORDERS","seq":99}`}, 0},
		{"no stream", map[string]string{"5.2": strings.Replace(ack, "ORDERS", "", 1)}, 0},
		{"not JSON", map[string]string{"5.2": "+OK"}, 0},
		{"nothing was stored", map[string]string{"5.2": strings.Replace(ack, "99", "0", 1)}, 0},
		{"an error, and the ack for all", map[string]string{"3.1": `{"type":"err","seq":3,"error":` + refusal + `}`, "5.2": ack, "6.3": ack}, 2},
		{"a refusal, and the ack for all", map[string]string{"3.1": instead, "5.2": ack, "6.3": ack}, 2},
		{"a gap, and the ack for all", map[string]string{"3.1": `{"type":"gap","last_seq":2,"seq":3}`, "5.2": ack, "6.3": ack}, 1},
		{"an error after an ack", map[string]string{"3.1": `{"type":"ack","seq":3,"msgs":3}`, "4.1": `{"type":"err","seq":2,"error":` + refusal + `}`, "6.3": ack}, 1},
		{"an error, and the end", map[string]string{"3.1": `{"type":"err","seq":3,"error":` + refusal + `}`, "6.3": unknown}, 0},
		{"the first is refused", map[string]string{"1.0": instead}, 0},
		{"it is switched off", map[string]string{"1.0": disabled}, 0},
		{"the last is refused, and the ack for the others", map[string]string{"5.2": instead, "6.3": strings.Replace(ack, `"count":5`, `"count":4`, 1)}, 4},
		{"the ack is lost", map[string]string{"1.0": started, "5.4": unknown}, 0},
		{"the ack comes when it is asked for", map[string]string{"5.4": ack}, 5},
	} {
		for _, ordered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ordered=%v", c.name, ordered), func(t *testing.T) {
				t.Parallel()
				_, s := answerInstead(t, natssink.Config{Ordered: ordered}, func(m told) {
					if text := c.answers[fmt.Sprintf("%d.%s", m.seq, m.op)]; text != "" {
						respond(t, m.Msg, strings.Replace(text, "ID", m.id, 1))
					}
				})
				err := s.Send(within(t, patience), many(5, "orders.a"))
				want := slices.Repeat([]string{"ok"}, 5)
				for i := c.stored; i < 5; i++ {
					want[i] = "outage"
				}
				expect(t, "verdicts", verdicts(t, err, 5), strings.Join(want, " "))
				if c.stored < 5 {
					says(t, err, "alone")
				}
				if n := s.Duplicates(); n != 0 {
					t.Errorf("%d duplicates were counted", n)
				}
			})
		}
	}
}

// TestFlow: no more events are under way than the stream allows; and a stream that
// says nothing is asked.
func TestFlow(t *testing.T) {
	t.Parallel()
	came := make(chan told, 2000)
	_, s := answerInstead(t, natssink.Config{}, func(m told) { came <- m })
	sent := make(chan error, 1)
	go func() { sent <- s.Send(within(t, patience), many(500, "orders.a")) }()
	deadline := time.After(soon)
	// until takes events until the stream is asked for its last answer, and returns that.
	until := func(first, last int) told {
		t.Helper()
		for next := first; ; next++ {
			select {
			case m := <-came:
				if m.op == "4" {
					if m.seq != last || next != last+1 {
						t.Fatalf("asked behind event %d, number %d; %d was expected", next-1, m.seq, last)
					}
					return m
				}
				if m.seq != next {
					t.Fatalf("event %d came, %d was expected", m.seq, next)
				}
			case <-deadline:
				t.Fatalf("nothing comes behind event %d", next-1)
			}
		}
	}
	ask := until(1, 100)
	respond(t, ask.Msg, `{"type":"ack","seq":50,"msgs":10}`) // fifty are under way, twenty may be
	ask = until(101, 100)
	respond(t, ask.Msg, `{"type":"ack","seq":90,"msgs":10}`)
	ask = until(101, 110)
	respond(t, ask.Msg, `{"type":"ack","seq":110,"msgs":150}`)
	ask = until(111, 410)
	respond(t, ask.Msg, `{"type":"ack","seq":410,"msgs":500}`)
	ask = until(411, 500)
	respond(t, ask.Msg, fmt.Sprintf(`{"stream":"ORDERS","seq":900,"batch":%q,"count":500}`, ask.id))
	ok(t, <-sent)
}

// TestCalledOffInABatch: whoever calls a Send off need not wait, and the batch is ended
// there.
func TestCalledOffInABatch(t *testing.T) {
	t.Parallel()
	ctx, callOff := context.WithCancel(within(t, patience))
	closed := make(chan struct{})
	_, s := answerInstead(t, natssink.Config{}, func(m told) {
		switch {
		case m.seq == 100: // no more may be under way
			callOff()
		case m.op == "3":
			close(closed)
		}
	})
	err := s.Send(ctx, many(500, "orders.a"))
	expect(t, "kind", kind(err), "outage")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want one that wraps context.Canceled", err)
	}
	select {
	case <-closed:
	case <-within(t, soon).Done():
		t.Error("the batch was left open")
	}
}

// TestStreamThatDidNotGetAllRests: the next batch does not go the same way to the same end.
func TestStreamThatDidNotGetAllRests(t *testing.T) {
	t.Parallel()
	var fast atomic.Int64
	_, s := answerInstead(t, natssink.Config{}, func(m told) {
		fast.Add(1)
		if m.op == "2" {
			respond(t, m.Msg, `{"type":"gap","last_seq":1,"seq":3}`)
			respond(t, m.Msg, fmt.Sprintf(`{"stream":"ORDERS","seq":900,"batch":%q,"count":0}`, m.id))
		}
	})
	for _, want := range []int64{5, 5} {
		expect(t, "verdicts", verdicts(t, s.Send(within(t, patience), many(5, "orders.a")), 5), "outage outage outage outage outage")
		if n := fast.Load(); n < want || n > want+1 { // and perhaps the end of the batch
			t.Errorf("%d events went in fast batches so far, %d were expected", n, want)
		}
	}
}

// TestOwnDuplicates: what this Send may have had stored itself is no duplicate of
// another event's; what it cannot is.
func TestOwnDuplicates(t *testing.T) {
	t.Parallel()
	const unknown = `{"stream":"ORDERS","seq":0,"error":{"code":400,"err_code":10208,"description":"batch publish ID unknown"}}`
	for text, want := range map[string]int64{
		unknown: 0,
		`{"stream":"ORDERS","seq":0,"batch":"ID","count":5}`:  5,
		`{"stream":"ORDERS","seq":99,"batch":"ID","count":3}`: 0,
	} {
		_, s := answerBoth(t, natssink.Config{}, func(m told) {
			if m.op == "2" || m.op == "3" {
				respond(t, m.Msg, strings.Replace(text, "ID", m.id, 1))
			}
		}, `{"stream":"ORDERS","seq":7,"duplicate":true}`)
		ok(t, s.Send(within(t, patience), many(5, "orders.a")))
		if n := s.Duplicates(); n != want {
			t.Errorf("%s: %d duplicates were counted, %d were expected", text, n, want)
		}
	}
}
