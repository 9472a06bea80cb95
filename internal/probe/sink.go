package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// sinkReader reads the events that arrived at a sink since it was made.
type sinkReader interface {
	// name describes what is read.
	name() string
	// arrivals calls visit with the id of every event, as often as it arrived.
	arrivals(ctx context.Context, visit func(id int64)) error
}

// newSinkReader remembers the end of the probe's address. If the sink cannot be read,
// the reader is nil and why says so.
func newSinkReader(ctx context.Context, p *config.Pipeline, s sink.Sink, probe *outbox.Event) (r sinkReader, why string, err error) {
	addresser, ok := s.(sink.Addresser)
	if !ok {
		return nil, "this kind of sink cannot be read", nil
	}
	address, ok := addresser.AddressOf(probe)
	if !ok {
		return nil, "the probe has no valid address", nil
	}
	switch s := s.(type) {
	case *redissink.Sink:
		if p.Sink.Redis.Mode == "stream" {
			r, err = newStreamReader(ctx, s, address)
			return r, "", err
		}
	case *natssink.Sink:
		if !p.Sink.NATS.Core {
			return newJetStreamReader(ctx, p.Name, s, address)
		}
	}
	return nil, "this kind of sink cannot be read", nil
}

type streamReader struct {
	client *redis.Client
	stream string
	last   string // id of an entry
}

func newStreamReader(ctx context.Context, s *redissink.Sink, stream string) (*streamReader, error) {
	client, err := s.Client(ctx, stream)
	if err != nil {
		return nil, err
	}
	r := &streamReader{client: client, stream: stream, last: "0-0"}
	newest, err := client.XRevRangeN(ctx, stream, "+", "-", 1).Result() // none if there is no stream
	if err != nil {
		return nil, fmt.Errorf("reading stream %s: %w", stream, err)
	}
	if len(newest) > 0 {
		r.last = newest[0].ID
	}
	return r, nil
}

func (s *streamReader) name() string { return "Redis stream " + s.stream }

func (s *streamReader) arrivals(ctx context.Context, visit func(id int64)) error {
	const page = 1000
	for {
		entries, err := s.client.XRangeN(ctx, s.stream, "("+s.last, "+", page).Result()
		if err != nil {
			return fmt.Errorf("reading stream %s: %w", s.stream, err)
		}
		for _, entry := range entries {
			text, _ := entry.Values["id"].(string)
			if id, err := strconv.ParseInt(text, 10, 64); err == nil {
				visit(id)
			}
			s.last = entry.ID
		}
		if len(entries) < page {
			return nil
		}
	}
}

type jetStreamReader struct {
	stream   jetstream.Stream
	subject  string
	pipeline string
	last     uint64
}

func newJetStreamReader(ctx context.Context, pipeline string, s *natssink.Sink, subject string) (r sinkReader, why string, err error) {
	conn, err := s.Conn(ctx)
	if err != nil {
		return nil, "", err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, "", err
	}
	name, err := js.StreamNameBySubject(ctx, subject)
	if err != nil {
		return nil, "", fmt.Errorf("finding the stream of %s: %w", subject, err)
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, "", fmt.Errorf("reading stream %s: %w", name, err)
	}
	info := stream.CachedInfo()
	if info.Config.Retention != jetstream.LimitsPolicy {
		return nil, fmt.Sprintf("stream %s deletes consumed messages (%s retention), so it cannot be read", name, info.Config.Retention), nil
	}
	return &jetStreamReader{stream, subject, pipeline, info.State.LastSeq}, "", nil
}

func (j *jetStreamReader) name() string {
	return "JetStream stream " + j.stream.CachedInfo().Config.Name
}

func (j *jetStreamReader) arrivals(ctx context.Context, visit func(id int64)) error {
	consumer, err := j.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{j.subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: j.last + 1, HeadersOnly: true,
	})
	if err != nil {
		return fmt.Errorf("reading stream: %w", err)
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return fmt.Errorf("reading stream: %w", err)
	}
	for pending := info.NumPending; pending > 0; {
		batch, err := consumer.Fetch(int(min(pending, 1000)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return fmt.Errorf("reading stream: %w", err)
		}
		before := pending
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return fmt.Errorf("reading stream: %w", err)
			}
			pending = meta.NumPending
			name, ours := strings.CutPrefix(m.Headers().Get("Nats-Msg-Id"), j.pipeline+":")
			text, rest, _ := strings.Cut(name, ":")
			id, err := strconv.ParseInt(text, 10, 64)
			if ours && err == nil && !strings.HasPrefix(rest, "dead:") {
				visit(id)
			}
		}
		if err := errors.Join(batch.Error(), ctx.Err()); err != nil {
			return fmt.Errorf("reading stream: %w", err)
		}
		if pending == before { // the others were deleted meanwhile
			return nil
		}
	}
	return nil
}
