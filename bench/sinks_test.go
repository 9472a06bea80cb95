package bench

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// broker is a destination, for the relay and for the loop.
type broker struct {
	pid  int // of the broker; 0 for none
	sink sink.Sink
	loop func() (push, error)
	// url and address are what a configuration says of the sink.
	url, address string
	empty        func(*testing.B, contender)
	count        func(*testing.B) int // of what arrived
}

// nothing is a sink that accepts everything.
type nothing struct{}

func (nothing) Send(context.Context, *buffer.Batch) error { return nil }
func (nothing) Check(context.Context) error               { return nil }
func (nothing) Close() error                              { return nil }

func nowhere() broker {
	return broker{
		sink:  nothing{},
		loop:  func() (push, error) { return func(context.Context, []loopEvent) error { return nil }, nil },
		empty: func(*testing.B, contender) {},
	}
}

const orders = "orders"

// redisStream is a stream of a separate Redis with default settings, without an
// append-only file.
func redisStream(b *testing.B) broker {
	b.Helper()
	server := testserver.Redis(b, "--appendonly", "no")
	s, err := redissink.New(redissink.Config{URL: server.URL, Stream: orders})
	testkit.NoError(b, err)
	b.Cleanup(func() { testkit.NoError(b, s.Close()) })
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	b.Cleanup(func() { testkit.NoError(b, client.Close()) })
	return broker{
		pid:  redisPID(b, client),
		sink: s,
		loop: func() (push, error) { return xadds(client), nil },
		url:  server.URL, address: "stream: " + orders,
		empty: func(b *testing.B, _ contender) { testkit.NoError(b, client.FlushAll(b.Context()).Err()) },
		count: func(b *testing.B) int {
			n, err := client.XLen(b.Context(), orders).Result()
			testkit.NoError(b, err)
			return int(n)
		},
	}
}

func redisPID(b *testing.B, client *redis.Client) int {
	b.Helper()
	info, err := client.Info(b.Context(), "server").Result()
	testkit.NoError(b, err)
	_, after, _ := strings.Cut(info, "process_id:")
	pid, err := strconv.Atoi(strings.Fields(after)[0])
	testkit.NoError(b, err)
	return pid
}

// xadds is a pipeline of XADDs with the fields of the relay's entries.
func xadds(client *redis.Client) push {
	return func(ctx context.Context, events []loopEvent) error {
		pipe := client.Pipeline()
		for i := range events {
			e := &events[i]
			values := make([]any, 0, 10)
			values = append(values, "id", e.id, "topic", e.topic)
			if e.key != nil {
				values = append(values, "key", *e.key)
			}
			values = append(values, "payload", e.payload)
			if e.headers != nil {
				values = append(values, "headers", e.headers)
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: e.topic, Values: values})
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}

// jetStream is a stream with file storage. The relay's stream accepts fast batches if batched is set, the
// loop's does not.
func jetStream(b *testing.B, batched bool) broker {
	b.Helper()
	url, pid := startNATS(b)
	conn, err := nats.Connect(url)
	testkit.NoError(b, err)
	b.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	testkit.NoError(b, err)
	empty := func(b *testing.B, c contender) { newStream(b, js, orders, batched && c.batched) }
	s, err := natssink.New(natssink.Config{URL: url, Subject: orders})
	testkit.NoError(b, err)
	b.Cleanup(func() { testkit.NoError(b, s.Close()) })
	return broker{
		pid: pid, sink: s, empty: empty,
		loop: func() (push, error) { return publishes(b, url) },
		url:  url, address: "subject: " + orders,
		count: func(b *testing.B) int { return inStream(b, js) },
	}
}

// newStream makes the stream anew for each drain, because a purged one keeps the ids of the last.
func newStream(b *testing.B, js jetstream.JetStream, subject string, batched bool) {
	b.Helper()
	if err := js.DeleteStream(b.Context(), "ORDERS"); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		b.Fatal(err)
	}
	_, err := js.CreateStream(b.Context(), jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{subject}, Storage: jetstream.FileStorage, AllowBatchPublish: batched,
	})
	testkit.NoError(b, err)
}

// inStream returns how many events arrived.
func inStream(b *testing.B, js jetstream.JetStream) int {
	b.Helper()
	stream, err := js.Stream(b.Context(), "ORDERS")
	testkit.NoError(b, err)
	return int(stream.CachedInfo().State.Msgs) //nolint:gosec // as many as were sent
}

// publishes publishes a batch and then awaits every acknowledgement. By the id in the
// header JetStream drops duplicates.
func publishes(b *testing.B, url string) (push, error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	b.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	return func(ctx context.Context, events []loopEvent) error {
		acks := make([]jetstream.PubAckFuture, len(events))
		for i := range events {
			e := &events[i]
			m := nats.NewMsg(e.topic)
			m.Data = e.payload
			m.Header.Set(jetstream.MsgIDHeader, strconv.FormatInt(e.id, 10))
			if e.key != nil {
				m.Header.Set("Key", *e.key)
			}
			var err error
			if acks[i], err = js.PublishMsgAsync(m); err != nil {
				return err
			}
		}
		for _, ack := range acks {
			select {
			case <-ack.Ok():
			case err := <-ack.Err():
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}, err
}
