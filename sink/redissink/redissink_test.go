package redissink_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestMain(m *testing.M) {
	logging.Disable() // the tests stop servers on purpose
	testserver.Main(m)
}

func TestStream(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open:       opener(redissink.Config{Stream: "s:{topic}"}, "", "s:", streamArrivals),
		OpenBroken: openBroken,
		Keeps: sinktest.Keeps{
			Topic: true, Key: true, Headers: true, GroupID: true,
			HeadersText: true, AnyText: true, Bytes: true, LineBreaks: true,
		},
		OnceOnly: true,
	})
}

func TestList(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open:       opener(redissink.Config{Mode: redissink.List, List: "l:{topic}"}, "", "l:", listArrivals),
		OpenBroken: openBroken,
		Keeps: sinktest.Keeps{
			Topic: true, Key: true, Headers: true, CreatedAt: true,
			HeadersText: true, AnyText: true, Bytes: true, LineBreaks: true,
		},
	})
}

func BenchmarkSend(b *testing.B) {
	for _, cfg := range []redissink.Config{{Mode: redissink.Stream}, {Mode: redissink.List}, {Mode: redissink.Publish}, {Mode: redissink.Sidekiq}, {Mode: redissink.Asynq}} {
		b.Run(string(cfg.Mode), func(b *testing.B) {
			sinktest.Bench(b, sinktest.Harness{Open: func(t testing.TB) sinktest.Destination {
				s := testserver.Redis(t, "--appendonly", "no")
				cfg.URL = s.URL
				return sinktest.Destination{Connect: func(t testing.TB) sink.Sink { return open(t, cfg) }}
			}})
		})
	}
}

// opener returns a function that opens destinations, each with a Redis server of its own.
// The key of an address has the prefix before.
func opener(cfg redissink.Config, before, prefix string, arrivals func(testing.TB, *redis.Client) []sinktest.Arrival) func(testing.TB) sinktest.Destination {
	return func(t testing.TB) sinktest.Destination {
		s := testserver.Redis(t)
		cfg := cfg
		cfg.URL = s.URL
		c := client(t, s)
		return sinktest.Destination{
			Connect:  func(t testing.TB) sink.Sink { return open(t, cfg) },
			Arrivals: func(t testing.TB) []sinktest.Arrival { return arrivals(t, c) },
			Address:  func(topic string) string { return prefix + topic },
			BreakAddress: func(t testing.TB, topic string) {
				key := before + prefix + topic
				if cfg.Mode == redissink.Asynq {
					key += "}:pending"
				}
				testkit.NoError(t, c.Set(t.Context(), key, "a string", 0).Err())
			},
			Stop:  func(t testing.TB) { testkit.NoError(t, s.Stop()) },
			Start: func(t testing.TB) { testkit.NoError(t, s.Start(context.WithoutCancel(t.Context()))) },
		}
	}
}

func openBroken(t testing.TB) sink.Sink {
	s := testserver.Redis(t)
	testkit.NoError(t, s.Stop())
	return open(t, redissink.Config{URL: s.URL})
}

// open returns a sink that the caller closes.
func open(t testing.TB, cfg redissink.Config) *redissink.Sink {
	t.Helper()
	s, err := redissink.New(cfg)
	testkit.NoError(t, err)
	return s
}

func client(t testing.TB, s *testserver.RedisServer) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	return c
}

// keys returns the names of all keys of a type.
func keys(t testing.TB, c *redis.Client, kind string) []string {
	t.Helper()
	var names []string
	all := c.ScanType(t.Context(), 0, "*", 1000, kind).Iterator()
	for all.Next(t.Context()) {
		names = append(names, all.Val())
	}
	testkit.NoError(t, all.Err())
	return names
}

func streamArrivals(t testing.TB, c *redis.Client) []sinktest.Arrival {
	t.Helper()
	var arrivals []sinktest.Arrival
	for _, stream := range keys(t, c, "stream") {
		entries, err := c.XRange(t.Context(), stream, "-", "+").Result()
		testkit.NoError(t, err)
		for _, entry := range entries {
			a := sinktest.Arrival{Address: stream}
			for name, value := range entry.Values {
				v := fmt.Sprint(value)
				switch name {
				case "id":
					a.ID = v
				case "topic":
					a.Topic = v
				case "key":
					a.Key = &v
				case "payload":
					a.Payload = []byte(v)
				case "headers":
					a.Headers = outbox.Headers(v)
				case "group_id":
					a.GroupID = v
				case "dead_letter":
					a.DeadLetter = v
				default:
					t.Errorf("an entry has an unknown field %q", name)
				}
			}
			arrivals = append(arrivals, a)
		}
	}
	return arrivals
}

func listArrivals(t testing.TB, c *redis.Client) []sinktest.Arrival {
	t.Helper()
	var arrivals []sinktest.Arrival
	for _, list := range keys(t, c, "list") {
		envelopes, err := c.LRange(t.Context(), list, 0, -1).Result()
		testkit.NoError(t, err)
		for _, envelope := range envelopes {
			a := sinktest.ParseEnvelope(t, []byte(envelope))
			a.Address = list
			arrivals = append(arrivals, a)
		}
	}
	return arrivals
}

// A server that is not Redis is named as that.
func TestCheck_AnotherProtocol(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	s := open(t, redissink.Config{URL: strings.Replace(server.URL, "http", "redis", 1), Stream: "s"})
	err := s.Check(testkit.Timeout(t, time.Minute))
	testkit.ErrorContains(t, err, "is it Redis?")
	if !errors.Is(err, sink.ErrUnavailable) {
		t.Errorf("%v is no outage", err)
	}
}

// A server that hangs is named with its address.
func TestCheck_NoAnswer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, silent.Close()) })
	s := open(t, redissink.Config{URL: "redis://" + silent.Addr().String(), Stream: "s"})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err = s.Check(ctx)
	testkit.ErrorContains(t, err, silent.Addr().String())
	if !errors.Is(err, sink.ErrUnavailable) {
		t.Errorf("%v is no outage", err)
	}
}
