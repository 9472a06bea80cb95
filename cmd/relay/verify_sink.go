package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// readBack reads at the sink what was added since it was made.
type readBack interface {
	// where is read, for people.
	where() string
	// arrivals calls each with every event's id, as often as it is there.
	arrivals(ctx context.Context, each func(id int64)) error
	close()
}

// newReadBack notes where the probe's address ends. Where there is no reading back, why
// says so.
func newReadBack(ctx context.Context, p *config.Pipeline, s sink.Sink, probe *outbox.Event) (from readBack, why string, err error) {
	addresser, ok := s.(sink.Addresser)
	redisStream := p.Sink.Driver == "redis" && p.Sink.Redis.Mode == "stream"
	jetStream := p.Sink.Driver == "nats" && !p.Sink.NATS.Core
	if !ok || !redisStream && !jetStream {
		return nil, "this kind of sink cannot be asked what arrived", nil
	}
	address, ok := addresser.AddressOf(probe)
	if !ok {
		return nil, "the probe has no address there", nil
	}
	if redisStream {
		from, err = newStreamBack(ctx, &p.Sink, address)
		return from, "", err
	}
	return newJetStreamBack(ctx, p, address)
}

type streamBack struct {
	client redis.UniversalClient
	stream string
	last   string // id of an entry
}

func newStreamBack(ctx context.Context, c *config.Sink, stream string) (*streamBack, error) {
	client, err := redisClient(c.URL.Reveal())
	if err != nil {
		return nil, err
	}
	s := &streamBack{client: client, stream: stream, last: "0-0"}
	// A stream that is not there yet has no entries, which is no error.
	newest, err := client.XRevRangeN(ctx, stream, "+", "-", 1).Result()
	if err != nil {
		s.close()
		return nil, fmt.Errorf("looking at stream %s: %w", stream, err)
	}
	if len(newest) > 0 {
		s.last = newest[0].ID
	}
	return s, nil
}

// redisClient reads a URL that was found valid.
func redisClient(text string) (redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme == "redis" || scheme == "rediss" {
		options, err := redis.ParseURL(text)
		if err != nil {
			return nil, errors.New("sink.url cannot be understood")
		}
		return redis.NewClient(options), nil
	}
	authority, path, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(authority, '@') + 1
	u, err := url.Parse("redis://" + authority[:at] + "host")
	if err != nil {
		return nil, errors.New("sink.url cannot be understood")
	}
	password, _ := u.User.Password()
	hosts := strings.Split(authority[at:], ",")
	port := ":6379"
	if scheme == "redis+sentinel" {
		port = ":26379"
	}
	for i, host := range hosts {
		if parsed, err := url.Parse("redis://" + host); err == nil && parsed.Port() == "" {
			hosts[i] += port
		}
	}
	if scheme == "redis+cluster" {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: hosts, Username: u.User.Username(), Password: password}), nil
	}
	master, number, _ := strings.Cut(strings.Trim(path, "/"), "/")
	database := 0
	if number != "" {
		if database, err = strconv.Atoi(number); err != nil {
			return nil, errors.New("sink.url cannot be understood")
		}
	}
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: master, SentinelAddrs: hosts, Username: u.User.Username(), Password: password, DB: database,
	}), nil
}

func (s *streamBack) where() string { return "Redis stream " + s.stream }

func (s *streamBack) arrivals(ctx context.Context, each func(id int64)) error {
	const page = 1000
	for {
		entries, err := s.client.XRangeN(ctx, s.stream, "("+s.last, "+", page).Result()
		if err != nil {
			return fmt.Errorf("reading stream %s: %w", s.stream, err)
		}
		for _, entry := range entries {
			text, _ := entry.Values["id"].(string)
			if id, err := strconv.ParseInt(text, 10, 64); err == nil {
				each(id)
			}
			s.last = entry.ID
		}
		if len(entries) < page {
			return nil
		}
	}
}

func (s *streamBack) close() { _ = s.client.Close() } // it was read from only

type jetStreamBack struct {
	conn     *nats.Conn
	stream   jetstream.Stream
	subject  string
	pipeline string
	last     uint64
}

func newJetStreamBack(ctx context.Context, p *config.Pipeline, subject string) (from readBack, why string, err error) {
	conn, err := natsConnection(&p.Sink)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if from == nil {
			conn.Close()
		}
	}()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, "", err
	}
	name, err := js.StreamNameBySubject(ctx, subject)
	if err != nil {
		return nil, "", fmt.Errorf("looking for the stream of %s: %w", subject, err)
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, "", fmt.Errorf("looking at stream %s: %w", name, err)
	}
	info := stream.CachedInfo()
	if info.Config.Retention != jetstream.LimitsPolicy {
		return nil, fmt.Sprintf("stream %s forgets what was consumed (%s), so it cannot be asked what arrived", name, info.Config.Retention), nil
	}
	return &jetStreamBack{conn, stream, subject, p.Name, info.State.LastSeq}, "", nil
}

// natsConnection connects as the sink does.
func natsConnection(c *config.Sink) (*nats.Conn, error) {
	text := strings.ReplaceAll(c.URL.Reveal(), "tls+nats://", "tls://")
	options := []nats.Option{nats.Name("relay verify")}
	credentials, nkey := c.NATS.Credentials.Reveal(), c.NATS.NKey.Reveal()
	switch {
	case strings.Contains(credentials, "-----BEGIN NATS USER JWT-----"):
		options = append(options, nats.UserCredentialBytes([]byte(credentials)))
	case credentials != "":
		options = append(options, nats.UserCredentials(credentials))
	case nkey != "":
		option, err := nkeyOption(nkey)
		if err != nil {
			return nil, err
		}
		options = append(options, option)
	}
	return nats.Connect(text, options...)
}

// nkeyOption takes a file with a seed, or the seed.
func nkeyOption(nkey string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(nkey))
	if err != nil {
		return nats.NkeyOptionFromSeed(nkey)
	}
	public, err := pair.PublicKey()
	return nats.Nkey(public, pair.Sign), err
}

func (j *jetStreamBack) where() string {
	return "JetStream stream " + j.stream.CachedInfo().Config.Name
}

func (j *jetStreamBack) arrivals(ctx context.Context, each func(id int64)) error {
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
			if text, ours := strings.CutPrefix(m.Headers().Get("Nats-Msg-Id"), j.pipeline+":"); ours {
				if id, err := strconv.ParseInt(text, 10, 64); err == nil {
					each(id)
				}
			}
		}
		if err := errors.Join(batch.Error(), ctx.Err()); err != nil {
			return fmt.Errorf("reading stream: %w", err)
		}
		if pending == before { // the rest was deleted meanwhile
			return nil
		}
	}
	return nil
}

func (j *jetStreamBack) close() { j.conn.Close() }
