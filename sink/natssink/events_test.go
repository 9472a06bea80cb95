package natssink_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// fixture is a server with a stream on orders.>, a client and a sink.
type fixture struct {
	url    string
	client *nats.Conn
	stream jetstream.Stream
	sink   *natssink.Sink
}

func newFixture(t *testing.T, stream jetstream.StreamConfig, configure ...func(*server.Options)) fixture {
	t.Helper()
	url := testserver.NATS(t, configure...).URL
	client := connect(t, url)
	stream.Name, stream.Subjects = "ORDERS", []string{"orders.>"}
	return fixture{
		url: url, client: client, stream: addStream(t, client, stream),
		sink: open(t, natssink.Config{URL: url}),
	}
}

// ids lists the stored events, in order.
func (o fixture) ids(t *testing.T) string { t.Helper(); return ids(stored(t, o.stream)) }

func ids(all []sinktest.Arrival) string {
	var got []string
	for _, a := range all {
		got = append(got, a.ID)
	}
	return strings.Join(got, " ")
}

// batch returns a batch with one event for each topic, with ids from 1.
func batch(topics ...string) *buffer.Batch {
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: sinktest.Pipeline, PayloadIsJSON: true, FirstSend: true}
	for i, topic := range topics {
		b.Events = append(b.Events, outbox.Event{ID: int64(i + 1), Topic: topic, Payload: []byte(`{}`), CreatedAt: time.Now()})
	}
	return b
}

// singlyAndFast runs the test with a stream that allows fast batches and with one that does
// not. The results must be the same.
func singlyAndFast(t *testing.T, test func(t *testing.T, fast bool)) {
	for name, fast := range map[string]bool{"singly": false, "fast": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fast)
		})
	}
}

const (
	sendTimeout   = 30 * time.Second // more than any Send should take
	promptTimeout = sendTimeout / 2  // for a Send that must not wait for its deadline
)

// results describes Send's error with one word per event.
func results(t *testing.T, err error, n int) string {
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
		all = slices.Repeat([]string{"all " + kind(err)}, n)
	}
	return strings.Join(all, " ")
}

func kind(err error) string {
	switch {
	case errors.Is(err, sink.ErrUnavailable):
		return "outage"
	case errors.Is(err, sink.ErrPermanent):
		return "permanent"
	}
	return "rejected"
}

func TestSend_NoStream(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	err := o.sink.Send(testkit.Timeout(t, sendTimeout), batch("other.a", "other.b"))
	testkit.Equal(t, "results", results(t, err, 2), "outage outage")
	testkit.ErrorContains(t, err, `"other.a"`, "nats stream add", "--subjects 'other.a'")

	err = o.sink.Send(testkit.Timeout(t, sendTimeout), batch("orders.a", "other.a", "orders.b"))
	testkit.Equal(t, "results", results(t, err, 3), "ok outage ok")
	testkit.Equal(t, "stored", o.ids(t), "1 3")
}

func TestSend_StreamCreatedLater(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	err := o.sink.Send(testkit.Timeout(t, sendTimeout), batch("late"))
	testkit.Equal(t, "results", results(t, err, 1), "outage")
	late := addStream(t, o.client, jetstream.StreamConfig{Name: "LATE", Subjects: []string{"late"}})
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batch("late")))
	testkit.Equal(t, "stored", ids(stored(t, late)), "1")
}

func TestSend_StreamFull(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]jetstream.StreamConfig{
		"messages":    {MaxMsgs: 2},
		"bytes":       {MaxBytes: 400},
		"per subject": {MaxMsgsPerSubject: 2, DiscardNewPerSubject: true},
	} {
		t.Run(name, func(t *testing.T) {
			singlyAndFast(t, func(t *testing.T, fast bool) {
				limit := limit
				limit.Discard, limit.AllowBatchPublish = jetstream.DiscardNew, fast
				o := newFixture(t, limit)
				b := batch("orders.a", "orders.a", "orders.a", "orders.a")
				err := o.sink.Send(testkit.Timeout(t, sendTimeout), b)
				testkit.Equal(t, "results", results(t, err, 4), "ok ok outage outage")
				b.FirstSend = false
				err = o.sink.Send(testkit.Timeout(t, sendTimeout), b)
				testkit.Equal(t, "results when sent again", results(t, err, 4), "ok ok outage outage")
				testkit.Equal(t, "stored", o.ids(t), "1 2")
			})
		})
	}
}

func TestSend_TooLarge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stream jetstream.StreamConfig
		server func(*server.Options)
	}{
		"for the server": {server: func(o *server.Options) { o.MaxPayload = 1000 }},
		"for the stream": {stream: jetstream.StreamConfig{MaxMsgSize: 1000}, server: func(*server.Options) {}},
	} {
		t.Run(name, func(t *testing.T) {
			singlyAndFast(t, func(t *testing.T, fast bool) {
				config := c.stream
				config.AllowBatchPublish = fast
				o := newFixture(t, config, c.server)
				b := batch("orders.a", "orders.b", "orders.c")
				b.Events[1].Payload = bytes.Repeat([]byte("7"), 1000)
				err := o.sink.Send(testkit.Timeout(t, sendTimeout), b)
				testkit.Equal(t, "results", results(t, err, 3), "ok permanent ok")
				testkit.Equal(t, "stored", o.ids(t), "1 3")
			})
		})
	}
}

func TestSend_InvalidSubjects(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		b := batch("orders.a", "", "orders.a b", "orders..b", ".orders", "orders.", "orders.*", "orders.>", ">", "orders.\n", "a\x00b",
			"$JS.API.STREAM.DELETE.ORDERS", "$SYS.REQ.SERVER.PING", "orders."+strings.Repeat("x", 4000), "orders.a*b>")
		err := o.sink.Send(testkit.Timeout(t, sendTimeout), b)
		testkit.Equal(t, "results", results(t, err, len(b.Events)), "ok"+strings.Repeat(" permanent", len(b.Events)-2)+" ok")
		testkit.Equal(t, "stored", o.ids(t), fmt.Sprintf("1 %d", len(b.Events)))
	})
}

func TestSend_SubjectWithoutKey(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	s := open(t, natssink.Config{URL: o.url, Subject: "orders.{key}"})
	b := batch("x", "x")
	key := "k"
	b.Events[1].Key = &key
	testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, sendTimeout), b), 2), "permanent ok")
}

func TestSend_InvalidHeaders(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
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
		err := o.sink.Send(testkit.Timeout(t, sendTimeout), b)
		testkit.Equal(t, "results", results(t, err, len(b.Events)), "ok"+strings.Repeat(" permanent", len(headers)-2)+" ok permanent permanent")
		testkit.Equal(t, "stored", o.ids(t), "1 16")
	})
}

// An application that inserts events must not delete messages of the stream.
func TestSend_HeadersCommandNoStream(t *testing.T) {
	t.Parallel()
	for _, fast := range []bool{false, true} {
		o := newFixture(t, jetstream.StreamConfig{AllowRollup: true, AllowMsgTTL: true, AllowBatchPublish: fast})
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batchOf(5, "orders.a")))
		b := batchOf(6, "orders.a")
		for i, header := range [][2]string{
			{"Nats-Rollup", "all"}, {"nats-rollup", "sub"}, {"Nats-Schedule-Target", "orders.b"}, {"Nats-Batch-Commit", "1"}, {"Nats-TTL", "1h"}, {"Nats-Expected-Stream", "ORDERS"},
		} {
			b.Events[i].ID, b.Events[i].Headers = int64(100+i), outbox.NewHeaders(map[string]string{header[0]: header[1]})
		}
		testkit.Equal(t, "results", results(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b), 6), "permanent permanent permanent permanent ok ok")
		testkit.Equal(t, "stored", o.ids(t), "1 2 3 4 5 104 105")
	}
}

// The value of a NATS header is text, not JSON: \u0000 becomes a NUL byte, a lone surrogate U+FFFD, and the last of duplicate keys counts.
func TestSend_UnusualHeaders(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		headers := []string{`{"a": "x\u0000y"}`, `{"a": "x\ud800y"}`, `{"a": "first", "a": "last"}`, `{"a": "1", "A": "2"}`}
		b := batch(slices.Repeat([]string{"orders.a"}, len(headers))...)
		for i, h := range headers {
			b.Events[i].Headers = outbox.Headers(h)
		}
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
		var got []string
		for _, a := range stored(t, o.stream) {
			got = append(got, string(a.Headers))
		}
		testkit.Equal(t, "headers", got, []string{`{"a":"x\u0000y"}`, `{"a":"x�y"}`, `{"a":"last"}`, `{"A":"2","a":"1"}`})
	})
}

func TestSend_RelayHeadersWin(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	b := batch("orders.a", "orders.a")
	key := "customer-7"
	b.Events[0].Key = &key
	b.Events[0].Headers = outbox.NewHeaders(map[string]string{
		"Nats-Msg-Id": "forged", "relay-group-id": "forged", "RELAY-KEY": "forged", "Mine": "own",
	})
	b.Events[1].Headers = outbox.NewHeaders(map[string]string{"Relay-Key": "forged", "relay-DEAD-letter": "forged"})
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
	got := stored(t, o.stream)
	if len(got) != 2 || got[0].ID != "1" || got[0].GroupID != b.GroupID.String() || *got[0].Key != key ||
		string(got[0].Headers) != `{"Mine":"own"}` {
		t.Errorf("the first event arrived as %+v", got)
	}
	if got[1].Key != nil || got[1].Headers != nil || got[1].DeadLetter != "" {
		t.Errorf("the second event arrived as %+v", got[1])
	}
}

// A hook is notified of an event that died because NATS cannot carry its key or headers, or because they command the stream: those are left out.
func TestSend_DeadLetterOfInvalidHeaders(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast, AllowRollup: true})
		headers := []string{
			`{"Nats-Rollup": "all", "good": "1"}`, `{"Nats-TTL": "1h", "good": "1"}`, `{"nats-expected-last-sequence": "17", "good": "1"}`, `{"Nats-Expected-Stream": "OTHER", "good": "1"}`,
			`{"a": "two\nlines", "good": "1"}`, `{"two words": "x", "größe": "1", "": "2", "good": "1"}`, `[]`, `{"good": "1"}`,
		}
		b := batch(slices.Repeat([]string{"orders.a"}, len(headers))...)
		for i, h := range headers {
			b.Events[i].Headers = outbox.Headers(h)
			b.DeadLetters = append(b.DeadLetters, &buffer.DeadLetter{Pipeline: "p", GroupID: buffer.NewGroupID(), Error: "no"})
		}
		key := "two\nlines"
		b.Events[len(headers)-1].Key = &key
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
		var got []string
		for _, a := range stored(t, o.stream) {
			got = append(got, string(a.Headers))
		}
		testkit.Equal(t, "headers", got, append(slices.Repeat([]string{`{"good":"1"}`}, 6), "", `{"good":"1"}`))
	})
}

// A hook is notified of an event that died because NATS does not take it at all: without what NATS does not take.
func TestSend_DeadLetterIsReduced(t *testing.T) {
	t.Parallel()
	const room = 4096
	long := strings.Repeat("ö", 5000)
	for name, c := range map[string]struct {
		stream   jetstream.StreamConfig
		server   func(*server.Options)
		template string
		event    func(e *outbox.Event)
		subject  string
	}{
		"too large for the server": {server: func(o *server.Options) { o.MaxPayload = room }, event: func(e *outbox.Event) { e.Payload = bytes.Repeat([]byte("7"), room) }},
		"too large for the stream": {stream: jetstream.StreamConfig{MaxMsgSize: room}, event: func(e *outbox.Event) { e.Payload = bytes.Repeat([]byte("7"), room) }},
		"headers too large": {event: func(e *outbox.Event) {
			e.Headers = outbox.NewHeaders(map[string]string{"a": strings.Repeat("7", 1<<16)})
		}},
		"key too large":    {event: func(e *outbox.Event) { e.Key = new(strings.Repeat("7", 1<<16)) }},
		"subject":          {template: "orders.{topic}", event: func(e *outbox.Event) { e.Topic = "a b..*.>.c\n" }, subject: "orders.a_b._._._.c_"},
		"no topic":         {template: "orders.{topic}", event: func(e *outbox.Event) { e.Topic = "" }, subject: "orders._"},
		"long subject":     {template: "orders.{topic}", event: func(e *outbox.Event) { e.Topic = long }, subject: "orders." + long[:252]},
		"no key":           {template: "orders.{key}", event: func(*outbox.Event) {}, subject: "orders._"},
		"reserved subject": {template: "{topic}.{key}", event: func(e *outbox.Event) { e.Topic = "$JS.API" }, subject: "_JS.API._"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.server == nil {
				c.server = func(*server.Options) {}
			}
			if c.template == "" {
				c.template, c.subject = "orders.dead", "orders.dead"
			}
			o := newFixture(t, c.stream, c.server)
			c.stream.Name, c.stream.Subjects = "OTHER", []string{"x.>", "_JS.>"}
			other := addStream(t, o.client, c.stream)
			hook := open(t, natssink.Config{URL: o.url, Subject: c.template})
			b := batch("x", "x", "x")
			key := "k"
			for i := range b.Events {
				b.DeadLetters = append(b.DeadLetters, &buffer.DeadLetter{Pipeline: "p", GroupID: buffer.NewGroupID(), Error: "no"})
				b.Events[i].ID, b.Events[i].Key = int64(7+i), &key
			}
			b.DeadLetters[1].Error = strings.Repeat("é\x00", 1000)
			b.Events[1].Key = nil
			c.event(&b.Events[1])
			for range 2 { // the second time they are duplicates
				testkit.NoError(t, hook.Send(testkit.Timeout(t, sendTimeout), b))
			}
			all := append(stored(t, o.stream), stored(t, other)...)
			testkit.Equal(t, "stored", len(all), len(b.Events))
			stream := o.stream
			if strings.HasPrefix(c.subject, "_JS") {
				stream = other
			}
			m, err := stream.GetLastMsgForSubject(t.Context(), c.subject)
			testkit.NoError(t, err)
			for _, text := range []string{`"id":"8"`, `"left_out":"key, headers and payload"`, `"show":"relay dead show --pipeline p --id 8"`} {
				if !strings.Contains(string(m.Data), text) {
					t.Errorf("the payload is %s; want it to contain %s", m.Data, text)
				}
			}
			var dead struct {
				Error   string
				GroupID string `json:"group_id"`
			}
			testkit.NoError(t, json.Unmarshal([]byte(m.Header.Get("Relay-Dead-Letter")), &dead))
			if dead.GroupID != b.DeadLetters[1].GroupID.String() || len(dead.Error) > 512 || !strings.HasSuffix(dead.Error, "…") || !utf8.ValidString(dead.Error) {
				t.Errorf("the dead letter is %+v", dead)
			}
		})
	}
}

// No attribute of a CloudEvent has control characters: a hook is notified without those of the topic.
func TestSend_DeadLetterOfControlCharacters(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{}, func(*server.Options) {})
	hook := open(t, natssink.Config{URL: o.url, Subject: "orders.dead", Format: "cloudevents"})
	b := batch("tab\tbell\ax")
	b.DeadLetters = []*buffer.DeadLetter{{Pipeline: "p", GroupID: buffer.NewGroupID(), Error: "no"}}
	testkit.NoError(t, hook.Send(testkit.Timeout(t, sendTimeout), b))
	all := stored(t, o.stream)
	testkit.Equal(t, "stored", len(all), 1)
}

// A dead-letter hook may publish to the stream that takes the event when it is replayed.
func TestSend_DeadLetterIsNotADuplicate(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	dead := batch("orders.a")
	dead.Events[0].Headers = outbox.NewHeaders(map[string]string{"relay-dead-letter": "forged", "Nats-Msg-Id": "sinktest:1"})
	dead.DeadLetters = []*buffer.DeadLetter{{Pipeline: "p", GroupID: buffer.NewGroupID(), Attempts: 3, Error: "no\r\nway \xff"}}
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), dead))
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), dead)) // resent, so a duplicate
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batch("orders.a")))
	again := batch("orders.a") // it was buried again
	again.DeadLetters = []*buffer.DeadLetter{{Pipeline: "p", GroupID: buffer.NewGroupID(), Error: "no"}}
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), again))
	got := stored(t, o.stream)
	if len(got) != 3 || got[0].DeadLetter == "" || got[1].DeadLetter != "" || got[2].DeadLetter == "" {
		t.Fatalf("stored: %+v, want a dead letter, its event and a dead letter", got)
	}
	testkit.Equal(t, "dead letter", got[0].DeadLetter, string(sink.AppendDeadLetter(nil, dead.DeadLetter(0))))
	if got[0].Headers != nil {
		t.Errorf("headers %s arrived", got[0].Headers)
	}
}

// A responder that is not a stream listens on the subject.
func TestSend_NoAnswer(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		_, err := o.client.SubscribeSync("silent")
		testkit.NoError(t, err)
		_, err = o.client.Subscribe("babble", func(m *nats.Msg) {
			if err := m.Respond([]byte("+OK")); err != nil {
				t.Error(err)
			}
		})
		testkit.NoError(t, err)
		testkit.NoError(t, o.client.Flush())
		testkit.NoError(t, o.sink.Check(testkit.Timeout(t, sendTimeout))) // connects
		err = o.sink.Send(testkit.Timeout(t, 300*time.Millisecond), batch("orders.a", "silent", "orders.b", "babble", "orders.c"))
		testkit.Equal(t, "results", results(t, err, 5), "ok outage ok outage ok")
		testkit.Equal(t, "stored", o.ids(t), "1 3 5")
		some, _ := errors.AsType[*sink.BatchError](err)
		if silent, babble := some.Events[0].Err, some.Events[1].Err; !errors.Is(silent, sink.ErrMaybePoison) || errors.Is(babble, sink.ErrMaybePoison) {
			t.Errorf("silent: %v, babble: %v; want only the silent one to be MaybePoison", silent, babble)
		}
		err = o.sink.Send(testkit.Timeout(t, 100*time.Millisecond), batch("silent"))
		testkit.Equal(t, "results", results(t, err, 1), "all outage")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("got %v, want one that wraps context.DeadlineExceeded and sink.ErrMaybePoison", err)
		}
		cancelled, cancel := context.WithCancel(testkit.Timeout(t, sendTimeout))
		watcher, err := o.client.Subscribe("silent", func(*nats.Msg) { cancel() })
		testkit.NoError(t, err)
		testkit.NoError(t, o.client.Flush())
		err = o.sink.Send(cancelled, batch("silent"))
		testkit.Equal(t, "results of a cancelled Send", results(t, err, 1), "all outage")
		if errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("error is %v; want one that does not wrap sink.ErrMaybePoison", err)
		}
		testkit.NoError(t, watcher.Unsubscribe())
	})
}
