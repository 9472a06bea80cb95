package natssink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// orders is a server with a stream on orders.>, a client and a sink.
type orders struct {
	url    string
	client *nats.Conn
	stream jetstream.Stream
	sink   *natssink.Sink
}

func openOrders(t *testing.T, stream jetstream.StreamConfig, configure ...func(*server.Options)) orders {
	t.Helper()
	url := testserver.NATS(t, configure...).URL
	client := connect(t, url)
	stream.Name, stream.Subjects = "ORDERS", []string{"orders.>"}
	return orders{
		url: url, client: client, stream: addStream(t, client, stream),
		sink: open(t, natssink.Config{URL: url}),
	}
}

// ids is what arrived, in order.
func (o orders) ids(t *testing.T) string { t.Helper(); return ids(stored(t, o.stream)) }

func ids(all []sinktest.Arrival) string {
	var got []string
	for _, a := range all {
		got = append(got, a.ID)
	}
	return strings.Join(got, " ")
}

// batch makes one event a subject, with ids from 1.
func batch(topics ...string) *buffer.Batch {
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: sinktest.Pipeline, PayloadIsJSON: true, FirstSend: true}
	for i, topic := range topics {
		b.Events = append(b.Events, outbox.Event{ID: int64(i + 1), Topic: topic, Payload: []byte(`{}`), CreatedAt: time.Now()})
	}
	return b
}

// bothWays runs the test with a stream that allows fast batches and with one that does
// not: what comes of the events is the same.
func bothWays(t *testing.T, test func(t *testing.T, fast bool)) {
	for name, fast := range map[string]bool{"one by one": false, "fast": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fast)
		})
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

const (
	patience = 30 * time.Second // more than any Send should take
	soon     = patience / 2     // what must not wait for a Send's deadline
)

// verdicts is Send's answer as one word an event.
func verdicts(t *testing.T, err error, n int) string {
	t.Helper()
	all := slices.Repeat([]string{"ok"}, n)
	var some *sink.BatchError
	switch {
	case err == nil:
	case errors.As(err, &some):
		for _, e := range some.Events {
			all[e.Index] = kind(e.Err)
		}
	default:
		all = slices.Repeat([]string{"all-" + kind(err)}, n)
	}
	return strings.Join(all, " ")
}

func kind(err error) string {
	switch {
	case errors.Is(err, sink.ErrUnavailable):
		return "outage"
	case errors.Is(err, sink.ErrPermanent):
		return "dead"
	}
	return "refused"
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("got error %v, want one that says %q", err, word)
		}
	}
}

func TestNoStream(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	err := o.sink.Send(within(t, patience), batch("other.a", "other.b"))
	expect(t, "verdicts", verdicts(t, err, 2), "outage outage")
	says(t, err, `"other.a"`, "nats stream add", "--subjects 'other.a'")

	err = o.sink.Send(within(t, patience), batch("orders.a", "other.a", "orders.b"))
	expect(t, "verdicts", verdicts(t, err, 3), "ok outage ok")
	expect(t, "stored", o.ids(t), "1 3")
}

func TestStreamOnTheSubjectComesLater(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	err := o.sink.Send(within(t, patience), batch("late"))
	expect(t, "verdicts", verdicts(t, err, 1), "outage")
	late := addStream(t, o.client, jetstream.StreamConfig{Name: "LATE", Subjects: []string{"late"}})
	ok(t, o.sink.Send(within(t, patience), batch("late")))
	expect(t, "stored", ids(stored(t, late)), "1")
}

func TestFullStream(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]jetstream.StreamConfig{
		"messages":    {MaxMsgs: 2},
		"bytes":       {MaxBytes: 400},
		"per subject": {MaxMsgsPerSubject: 2, DiscardNewPerSubject: true},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, fast bool) {
				limit := limit
				limit.Discard, limit.AllowBatchPublish = jetstream.DiscardNew, fast
				o := openOrders(t, limit)
				b := batch("orders.a", "orders.a", "orders.a", "orders.a")
				err := o.sink.Send(within(t, patience), b)
				expect(t, "verdicts", verdicts(t, err, 4), "ok ok outage outage")
				b.FirstSend = false
				err = o.sink.Send(within(t, patience), b)
				expect(t, "verdicts when sent again", verdicts(t, err, 4), "ok ok outage outage")
				expect(t, "stored", o.ids(t), "1 2")
			})
		})
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stream jetstream.StreamConfig
		server func(*server.Options)
	}{
		"for the server": {server: func(o *server.Options) { o.MaxPayload = 1000 }},
		"for the stream": {stream: jetstream.StreamConfig{MaxMsgSize: 1000}, server: func(*server.Options) {}},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, fast bool) {
				config := c.stream
				config.AllowBatchPublish = fast
				o := openOrders(t, config, c.server)
				b := batch("orders.a", "orders.b", "orders.c")
				b.Events[1].Payload = bytes.Repeat([]byte("7"), 1000)
				err := o.sink.Send(within(t, patience), b)
				expect(t, "verdicts", verdicts(t, err, 3), "ok dead ok")
				expect(t, "stored", o.ids(t), "1 3")
			})
		})
	}
}

func TestInvalidSubjects(t *testing.T) {
	bothWays(t, func(t *testing.T, fast bool) {
		o := openOrders(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		b := batch("orders.a", "", "orders.a b", "orders..b", ".orders", "orders.", "orders.*", "orders.>", ">", "orders.\n", "a\x00b",
			"$JS.API.STREAM.DELETE.ORDERS", "$SYS.REQ.SERVER.PING", "orders."+strings.Repeat("x", 4000), "orders.a*b>")
		err := o.sink.Send(within(t, patience), b)
		expect(t, "verdicts", verdicts(t, err, len(b.Events)), "ok"+strings.Repeat(" dead", len(b.Events)-2)+" ok")
		expect(t, "stored", o.ids(t), fmt.Sprintf("1 %d", len(b.Events)))
	})
}

func TestSubjectWithoutKey(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	s := open(t, natssink.Config{URL: o.url, Subject: "orders.{key}"})
	b := batch("x", "x")
	key := "k"
	b.Events[1].Key = &key
	expect(t, "verdicts", verdicts(t, s.Send(within(t, patience), b), 2), "dead ok")
}

func TestEventsThatHeadersCannotCarry(t *testing.T) {
	bothWays(t, func(t *testing.T, fast bool) {
		o := openOrders(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		headers := []string{
			`{"good": "value"}`, `{"a": "two\nlines"}`, `{"a": "carriage\rreturn"}`, `{"a": " blank"}`, `{"a": "tab\t"}`, `{"two words": "x"}`,
			`{"": "x"}`, `{"colon:": "x"}`, `{"größe": "x"}`, `{"line\nbreak": "x"}`, `{"a": 1}`, `[]`, `null`, `{`, ``, `{"a": "gr\u00f6\u00dfe"}`,
		}
		b := batch(slices.Repeat([]string{"orders.a"}, len(headers)+2)...)
		for i, h := range headers {
			b.Events[i].Headers = outbox.Headers(h)
		}
		for i, key := range []string{"two\nlines", "blank "} {
			b.Events[len(headers)+i].Key = &key
		}
		err := o.sink.Send(within(t, patience), b)
		expect(t, "verdicts", verdicts(t, err, len(b.Events)), "ok"+strings.Repeat(" dead", len(headers)-2)+" ok dead dead")
		expect(t, "stored", o.ids(t), "1 16")
	})
}

func TestHeadersCannotOverruleTheRelay(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	b := batch("orders.a", "orders.a")
	key := "customer-7"
	b.Events[0].Key = &key
	b.Events[0].Headers = outbox.NewHeaders(map[string]string{
		"Nats-Msg-Id": "mine", "relay-group-id": "mine", "RELAY-KEY": "mine", "Mine": "mine",
	})
	b.Events[1].Headers = outbox.NewHeaders(map[string]string{"Relay-Key": "mine", "relay-DEAD-letter": "mine"})
	ok(t, o.sink.Send(within(t, patience), b))
	got := stored(t, o.stream)
	if len(got) != 2 || got[0].ID != "1" || got[0].GroupID != b.GroupID.String() || *got[0].Key != key ||
		string(got[0].Headers) != `{"Mine":"mine"}` {
		t.Errorf("the first event arrived as %+v", got)
	}
	if got[1].Key != nil || got[1].Headers != nil || got[1].DeadLetter != "" {
		t.Errorf("the second event arrived as %+v", got[1])
	}
}

func TestDuplicatesOnTheFirstAttempt(t *testing.T) {
	bothWays(t, func(t *testing.T, fast bool) {
		o := openOrders(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		var log bytes.Buffer
		s := open(t, natssink.Config{URL: o.url, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		b := batch("orders.a", "orders.b")
		ok(t, s.Send(within(t, patience), b))
		for _, again := range []func(*buffer.Batch){
			func(b *buffer.Batch) { b.FirstSend = false }, func(b *buffer.Batch) { b.FirstSend = false }, func(b *buffer.Batch) { b.FirstSend = false },
			func(b *buffer.Batch) { b.Origins = append(b.Origins, buffer.NewGroupID()) },
		} {
			b := batch("orders.a", "orders.b")
			again(b)
			ok(t, s.Send(within(t, patience), b))
		}
		if s.Duplicates() != 0 || log.Len() != 0 {
			t.Fatalf("batches sent again: %d duplicates, log %q", s.Duplicates(), &log)
		}
		ok(t, s.Send(within(t, patience), batch("orders.a", "orders.b", "orders.c")))
		if s.Duplicates() != 2 {
			t.Errorf("got %d duplicates, want 2", s.Duplicates())
		}
		if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "events=2") {
			t.Errorf("log: %q", &log)
		}
	})
}

// TestDeadLetterIsNoDuplicateOfItsEvent: the hook tells the very stream that the
// event goes to when it is replayed.
func TestDeadLetterIsNoDuplicateOfItsEvent(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{})
	dead := batch("orders.a")
	dead.Events[0].Headers = outbox.NewHeaders(map[string]string{"relay-dead-letter": "mine", "Nats-Msg-Id": "sinktest:1"})
	dead.Events[0].DeadLetter = &outbox.DeadLetter{Pipeline: "p", GroupID: buffer.NewGroupID(), Attempts: 3, Error: "no\r\nway \xff"}
	ok(t, o.sink.Send(within(t, patience), dead))
	ok(t, o.sink.Send(within(t, patience), dead)) // told once more: known
	ok(t, o.sink.Send(within(t, patience), batch("orders.a")))
	again := batch("orders.a") // it died once more
	again.Events[0].DeadLetter = &outbox.DeadLetter{Pipeline: "p", GroupID: buffer.NewGroupID(), Error: "no"}
	ok(t, o.sink.Send(within(t, patience), again))
	got := stored(t, o.stream)
	if len(got) != 3 || got[0].DeadLetter == "" || got[1].DeadLetter != "" || got[2].DeadLetter == "" {
		t.Fatalf("stored: %+v, want a dead letter, its event and a dead letter", got)
	}
	expect(t, "dead letter", got[0].DeadLetter, string(sink.AppendDeadLetter(nil, dead.Events[0].DeadLetter)))
	if got[0].Headers != nil {
		t.Errorf("headers %s arrived", got[0].Headers)
	}
	if n := o.sink.Duplicates(); n != 0 {
		t.Errorf("%d dead letters that were told twice count as duplicates", n)
	}
}

// TestNoAnswerForOne: someone listens on the subject, but no stream does.
func TestNoAnswerForOne(t *testing.T) {
	bothWays(t, func(t *testing.T, fast bool) {
		o := openOrders(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		_, err := o.client.SubscribeSync("silent")
		ok(t, err)
		_, err = o.client.Subscribe("babble", func(m *nats.Msg) {
			if err := m.Respond([]byte("+OK")); err != nil {
				t.Error(err)
			}
		})
		ok(t, err)
		ok(t, o.client.Flush())
		ok(t, o.sink.Check(within(t, patience))) // the connection stands
		err = o.sink.Send(within(t, 300*time.Millisecond), batch("orders.a", "silent", "orders.b", "babble", "orders.c"))
		expect(t, "verdicts", verdicts(t, err, 5), "ok outage ok outage ok")
		expect(t, "stored", o.ids(t), "1 3 5")
		some, _ := errors.AsType[*sink.BatchError](err)
		if silent, babble := some.Events[0].Err, some.Events[1].Err; !errors.Is(silent, sink.ErrMaybePoison) || errors.Is(babble, sink.ErrMaybePoison) {
			t.Errorf("silent: %v, babble: %v; want the silent one to be suspect", silent, babble)
		}
		err = o.sink.Send(within(t, 100*time.Millisecond), batch("silent"))
		expect(t, "verdicts", verdicts(t, err, 1), "all-outage")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("got %v, want one that wraps context.DeadlineExceeded and sink.ErrSuspect", err)
		}
		called, callOff := context.WithCancel(within(t, patience))
		watch, err := o.client.Subscribe("silent", func(*nats.Msg) { callOff() })
		ok(t, err)
		ok(t, o.client.Flush())
		err = o.sink.Send(called, batch("silent"))
		expect(t, "verdicts when called off", verdicts(t, err, 1), "all-outage")
		if errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("%v is blamed on the batch", err)
		}
		ok(t, watch.Unsubscribe())
	})
}
