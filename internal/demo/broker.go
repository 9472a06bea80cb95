package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	subject = "orders.placed"
	// maxMessage is the largest message that the stream takes, in bytes.
	maxMessage = 1024
)

// broker is an embedded NATS server with a JetStream stream for the events. stop and start are an outage: the
// port and the files stay. Its consumer passes each message to the audit.
type broker struct {
	audit   *audit
	dir     string
	token   string
	port    int
	onFirst func(jetstream.Msg) // called with the first message

	server    *server.Server
	conn      *nats.Conn
	stream    jetstream.Stream
	consuming jetstream.ConsumeContext

	mu   sync.Mutex
	last uint64 // sequence of the last message that was consumed
}

// startBroker starts a broker on a free loopback port, with a random token.
func startBroker(ctx context.Context, dir string, a *audit, onFirst func(jetstream.Msg)) (*broker, error) {
	b := &broker{audit: a, dir: dir, token: rand.Text(), port: server.RANDOM_PORT, onFirst: onFirst}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

func (b *broker) url() string { return fmt.Sprintf("nats://%s@127.0.0.1:%d", b.token, b.port) }

// start starts the server unless it runs.
func (b *broker) start(ctx context.Context) error {
	if b.server != nil {
		return nil
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: b.port, Authorization: b.token,
		JetStream: true, StoreDir: b.dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	b.server = s
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("the embedded NATS server did not start")
	}
	address, ok := s.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("the embedded NATS server listens on %v", s.Addr())
	}
	b.port = address.Port
	if b.conn, err = nats.Connect(b.url(), nats.Name("audit"), nats.InProcessServer(s)); err != nil {
		return err
	}
	js, err := jetstream.New(b.conn)
	if err != nil {
		return err
	}
	if b.stream, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "ORDERS", Subjects: []string{subject}, MaxBytes: 256 << 20, MaxMsgSize: maxMessage,
	}); err != nil {
		return err
	}
	return b.consume(ctx)
}

// stop stops the server if it runs.
func (b *broker) stop() error {
	if b.consuming != nil {
		b.consuming.Stop()
		<-b.consuming.Closed()
	}
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	b.server, b.conn, b.consuming = nil, nil, nil
	return nil
}

// consume passes the messages that were not consumed yet to the audit.
func (b *broker) consume(ctx context.Context) error {
	consumer, err := b.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: b.consumed() + 1,
	})
	if err != nil {
		return fmt.Errorf("consuming the stream: %w", err)
	}
	b.consuming, err = consumer.Consume(func(m jetstream.Msg) {
		var event struct{ Order int64 }
		meta, err := m.Metadata()
		if err == nil {
			err = json.Unmarshal(m.Data(), &event)
		}
		if err != nil {
			b.audit.fail(fmt.Errorf("reading an event from the stream: %w", err))
			return
		}
		if meta.Sequence.Stream <= b.consumed() {
			return
		}
		if b.consumed() == 0 {
			b.onFirst(m)
		}
		b.mu.Lock()
		b.last = meta.Sequence.Stream
		b.mu.Unlock()
		b.audit.arrived(event.Order, time.Now())
	})
	if err != nil {
		return fmt.Errorf("consuming the stream: %w", err)
	}
	return nil
}

func (b *broker) consumed() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// consumedAll waits until the audit has all messages that are in the stream.
func (b *broker) consumedAll(ctx context.Context) error {
	info, err := b.stream.Info(ctx)
	if err != nil {
		return err
	}
	return b.audit.waitUntil(ctx, func() bool { return b.consumed() >= info.State.LastSeq })
}
