package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const subject = "orders.placed"

// broker is an embedded NATS server with a JetStream stream for the events.
type broker struct {
	url    string
	server *server.Server
	conn   *nats.Conn
	stream jetstream.Stream
}

// startBroker starts a broker on a free loopback port, with a random token.
func startBroker(ctx context.Context, dir string) (_ *broker, err error) {
	token := rand.Text()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, Authorization: token,
		JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, err
	}
	b := &broker{server: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errors.New("the embedded NATS server did not start")
	}
	b.url = "nats://" + token + "@" + s.Addr().String()
	if b.conn, err = nats.Connect(b.url, nats.Name("audit"), nats.InProcessServer(s)); err != nil {
		return nil, err
	}
	js, err := jetstream.New(b.conn)
	if err != nil {
		return nil, err
	}
	b.stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{subject}, MaxBytes: 256 << 20,
	})
	return b, err
}

func (b *broker) close() error {
	if b.conn != nil {
		b.conn.Close()
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
	return nil
}

// consume passes all messages of the stream to the audit until stop is called.
// consumedAll waits until it has passed all messages that are in the stream.
func (b *broker) consume(ctx context.Context, a *audit) (consumedAll func(context.Context) error, stop func(), err error) {
	consumer, err := b.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		return nil, nil, fmt.Errorf("consuming the stream: %w", err)
	}
	var last atomic.Uint64
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		var event struct{ Order int64 }
		meta, err := m.Metadata()
		if err == nil {
			err = json.Unmarshal(m.Data(), &event)
		}
		if err != nil {
			a.fail(fmt.Errorf("reading an event from the stream: %w", err))
			return
		}
		a.arrived(event.Order, time.Now())
		last.Store(meta.Sequence.Stream)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("consuming the stream: %w", err)
	}
	consumedAll = func(ctx context.Context) error {
		info, err := b.stream.Info(ctx)
		if err != nil {
			return err
		}
		return a.waitUntil(ctx, func() bool { return last.Load() >= info.State.LastSeq })
	}
	return consumedAll, consuming.Stop, nil
}
