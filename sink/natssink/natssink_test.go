package natssink_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var keeps = sinktest.Keeps{Key: true, Headers: true, GroupID: true, Bytes: true, LineBreaks: true}

// single and fast publish to one stream for all the suite's topics; fast's allows fast
// batches.
var (
	single = jetStream(natssink.Config{}, false)
	fast   = jetStream(natssink.Config{}, true)
)

func jetStream(c natssink.Config, fast bool) sinktest.Harness {
	connectTo := func(t testing.TB, url string) sink.Sink {
		c := c
		c.URL = url
		return newSink(t, c)
	}
	h := sinktest.Harness{Keeps: keeps, OnceOnly: true}
	h.Open = func(t testing.TB) sinktest.Destination {
		server := testserver.NATS(t)
		client := connect(t, server.URL)
		stream := addStream(t, client, jetstream.StreamConfig{
			Name: "EVENTS", Subjects: []string{sinktest.TopicPrefix + ">"}, AllowBatchPublish: fast,
		})
		return sinktest.Destination{
			Connect: func(t testing.TB) sink.Sink { return connectTo(t, server.URL) },
			BreakAddress: func(t testing.TB, topic string) {
				config := stream.CachedInfo().Config
				config.Subjects = nil
				for i := range 10 {
					if other := fmt.Sprintf("%st%d", sinktest.TopicPrefix, i); other != topic {
						config.Subjects = append(config.Subjects, other)
					}
				}
				js, err := jetstream.New(client)
				testkit.NoError(t, err)
				_, err = js.UpdateStream(t.Context(), config)
				testkit.NoError(t, err)
			},
			Arrivals: func(t testing.TB) []sinktest.Arrival { return stored(t, stream) },
			Address:  func(topic string) string { return topic },
			Stop:     func(testing.TB) { server.Stop() },
			Start: func(t testing.TB) {
				testkit.NoError(t, server.Start())
				testkit.Eventually(t, func() error { return client.FlushTimeout(time.Second) })
			},
		}
	}
	h.OpenBroken = func(t testing.TB) sink.Sink { return connectTo(t, deadURL(t)) }
	return h
}

// core publishes to a subscriber. It cannot stop the server, because core NATS loses the
// events that are in flight then.
var core = sinktest.Harness{
	Keeps: keeps,
	Open: func(t testing.TB) sinktest.Destination {
		server := testserver.CoreNATS(t)
		client := connect(t, server.URL)
		sub, err := client.SubscribeSync(sinktest.TopicPrefix + ">")
		testkit.NoError(t, err)
		testkit.NoError(t, sub.SetPendingLimits(-1, -1))
		testkit.NoError(t, client.Flush())
		var all []sinktest.Arrival
		return sinktest.Destination{
			Connect: func(t testing.TB) sink.Sink { return newSink(t, natssink.Config{URL: server.URL, Core: true}) },
			Arrivals: func(t testing.TB) []sinktest.Arrival {
				testkit.NoError(t, client.Flush()) // everything that the server forwarded has arrived then
				n, _, err := sub.Pending()
				testkit.NoError(t, err)
				for range n {
					m, err := sub.NextMsg(time.Second)
					testkit.NoError(t, err)
					all = append(all, arrival(t, m.Subject, m.Header, m.Data))
				}
				return all
			},
			Address: func(topic string) string { return topic },
		}
	},
	OpenBroken: func(t testing.TB) sink.Sink { return newSink(t, natssink.Config{URL: deadURL(t), Core: true}) },
}

func TestJetStream(t *testing.T)     { sinktest.Run(t, single) }
func TestJetStreamFast(t *testing.T) { sinktest.Run(t, fast) }
func TestCore(t *testing.T)          { sinktest.Run(t, core) }
func BenchmarkCore(b *testing.B)     { sinktest.Bench(b, core) }

// BenchmarkJetStream compares single publishes and fast batches in one run.
func BenchmarkJetStream(b *testing.B) {
	b.Run("one by one", func(b *testing.B) { sinktest.Bench(b, single) })
	b.Run("fast", func(b *testing.B) { sinktest.Bench(b, fast) })
}

func newSink(t testing.TB, c natssink.Config) *natssink.Sink {
	t.Helper()
	s, err := natssink.New(c)
	testkit.NoError(t, err)
	return s
}

// open is newSink for tests that do not close the sink themselves.
func open(t testing.TB, c natssink.Config) *natssink.Sink {
	t.Helper()
	s := newSink(t, c)
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	return s
}

// connect returns a client of the test's own.
func connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	testkit.NoError(t, err)
	t.Cleanup(func() { nc.Close(); <-closed })
	return nc
}

// deadURL returns a URL on which nothing listens.
func deadURL(t testing.TB) string {
	t.Helper()
	server := testserver.CoreNATS(t)
	server.Stop()
	return server.URL
}

func addStream(t testing.TB, client *nats.Conn, c jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(client)
	testkit.NoError(t, err)
	var stream jetstream.Stream
	testkit.Eventually(t, func() error { // a stream of the name may still be being deleted
		stream, err = js.CreateStream(t.Context(), c)
		return err
	})
	return stream
}

// stored reads a stream from its beginning.
func stored(t testing.TB, stream jetstream.Stream) []sinktest.Arrival {
	t.Helper()
	info, err := stream.Info(t.Context())
	testkit.NoError(t, err)
	if info.State.Msgs == 0 {
		return nil
	}
	reader, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	testkit.NoError(t, err)
	var all []sinktest.Arrival
	for len(all) < int(info.State.Msgs) {
		got, err := reader.Fetch(int(info.State.Msgs)-len(all), jetstream.FetchMaxWait(10*time.Second))
		testkit.NoError(t, err)
		for m := range got.Messages() {
			all = append(all, arrival(t, m.Subject(), m.Headers(), m.Data()))
		}
		testkit.NoError(t, got.Error())
	}
	return all
}

func arrival(t testing.TB, subject string, header nats.Header, data []byte) sinktest.Arrival {
	t.Helper()
	name, prefixed := strings.CutPrefix(header.Get("Nats-Msg-Id"), sinktest.Pipeline+":")
	id, rest, _ := strings.Cut(name, ":")
	diedIn, dead := strings.CutPrefix(rest, "dead:")
	if why := header.Get("Relay-Dead-Letter"); dead != (why != "") || dead && !strings.Contains(why, diedIn) {
		t.Errorf("Nats-Msg-Id is %q, and Relay-Dead-Letter %q", header.Get("Nats-Msg-Id"), why)
	}
	if !prefixed {
		t.Errorf("Nats-Msg-Id is %q, want %s:<id>", header.Get("Nats-Msg-Id"), sinktest.Pipeline)
	}
	a := sinktest.Arrival{ID: id, GroupID: header.Get("Relay-Group-Id"), Address: subject, Payload: data, DeadLetter: header.Get("Relay-Dead-Letter")}
	own := map[string]string{}
	for name, values := range header {
		if len(values) != 1 {
			t.Errorf("event %s: header %s has values %q", id, name, values)
		}
		switch name {
		case "Nats-Msg-Id", "Relay-Group-Id", "Relay-Dead-Letter":
		case "Relay-Key":
			a.Key = &values[0]
		default:
			own[name] = values[0]
		}
	}
	if len(own) > 0 {
		a.Headers = outbox.NewHeaders(own)
	}
	return a
}
