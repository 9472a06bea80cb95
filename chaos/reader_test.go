//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// streams are the Redis streams of the topics of toRedis, fanStreams those of the sink log.
var (
	streams    = []string{"orders", "payments", "refunds"}
	fanStreams = []string{"fan.orders", "fan.payments", "fan.refunds", badForBus}
)

const readAtOnce = 2000

// readRedis records the entries of the streams until ctx is done, and trims what it
// has read. The relay's script removes only entries that it added itself, before they
// become visible.
func (r *run) readRedis(ctx context.Context) error {
	from, to := map[string]string{}, map[string]*account{}
	for _, stream := range streams {
		to[stream] = r.toRedis
	}
	for _, stream := range fanStreams {
		to[stream] = r.log
	}
	for ctx.Err() == nil {
		read, whole := 0, true
		for stream, account := range to {
			entries, err := r.cache.XRangeN(ctx, stream, "("+first(from[stream], "0-0"), "+", readAtOnce).Result()
			if err != nil {
				whole = false // it is down
				continue
			}
			if len(entries) == 0 {
				continue
			}
			for _, e := range entries {
				v, err := fromRedis(e)
				if err != nil {
					return fmt.Errorf("redis stream %s, entry %s: %w", stream, e.ID, err)
				}
				account.arrive(v)
			}
			from[stream] = entries[len(entries)-1].ID
			read = max(read, len(entries))
			_ = r.cache.XTrimMinIDApprox(ctx, stream, from[stream], 0).Err() // or the next time
		}
		if whole && read == 0 {
			r.toRedis.ends.Add(1)
		}
		if read < readAtOnce {
			pause(ctx, 100*time.Millisecond)
		}
	}
	return nil
}

func first(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func fromRedis(e redis.XMessage) (v arrival, err error) {
	field := func(name string) string { text, _ := e.Values[name].(string); return text }
	if v.ID, err = parseID(field("id")); err != nil {
		return v, err
	}
	if v.GroupID, err = uuid.Parse(field("group_id")); err != nil {
		return v, err
	}
	at, _, _ := strings.Cut(e.ID, "-")
	v.At, err = strconv.ParseInt(at, 10, 64)
	return v, err
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (id <= 0 || id > maxID) {
		err = fmt.Errorf("there is no event %d", id)
	}
	return id, err
}

func (r *run) readShop(ctx context.Context) error { return readJetStream(ctx, r.stream, r.toJetStream) }
func (r *run) readFan(ctx context.Context) error  { return readJetStream(ctx, r.fanned, r.bus) }

// readJetStream records the messages of a stream until ctx is done.
func readJetStream(ctx context.Context, stream jetstream.Stream, to *account) error {
	for last := uint64(0); ctx.Err() == nil; {
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: last + 1,
		})
		if err == nil {
			err = to.consume(ctx, consumer, &last)
		}
		if errors.Is(err, errStrange) {
			return err
		}
		pause(ctx, 200*time.Millisecond) // the server is down
	}
	return nil
}

var errStrange = errors.New("the stream holds what it should not")

func (a *account) consume(ctx context.Context, consumer jetstream.Consumer, last *uint64) error {
	events, err := consumer.Messages(jetstream.PullMaxMessages(readAtOnce))
	if err != nil {
		return err
	}
	defer events.Stop()
	for {
		e, err := events.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := e.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Stream != *last+1 {
			return fmt.Errorf("%w: entry %d follows on entry %d", errStrange, meta.Sequence.Stream, *last)
		}
		v, err := a.fromJetStream(e, meta)
		if err != nil {
			return fmt.Errorf("%w: entry %d: %w", errStrange, meta.Sequence.Stream, err)
		}
		a.arrive(v)
		*last = meta.Sequence.Stream
	}
}

func (a *account) fromJetStream(e jetstream.Msg, meta *jetstream.MsgMetadata) (v arrival, err error) {
	pipeline, name, _ := strings.Cut(e.Headers().Get("Nats-Msg-Id"), ":")
	id, _, _ := strings.Cut(name, ":")
	if pipeline != a.pipeline {
		return v, fmt.Errorf("it is of pipeline %q", pipeline)
	}
	if v.ID, err = parseID(id); err != nil {
		return v, err
	}
	v.At = meta.Timestamp.UnixMilli()
	v.GroupID, err = uuid.Parse(e.Headers().Get("Relay-Group-Id"))
	return v, err
}

// readToTheEnd returns when everything in the sinks was read. No one writes any more.
func (r *run) readToTheEnd(ctx context.Context) {
	ends := r.toRedis.ends.Load()
	r.until(ctx, time.Minute, "reading the Redis streams to their end", func() bool { return r.toRedis.ends.Load() > ends+1 })
	for a, stream := range map[*account]jetstream.Stream{r.toJetStream: r.stream, r.bus: r.fanned} {
		r.until(ctx, 5*time.Minute, "reading the JetStream stream of "+a.name()+" to its end", func() bool {
			info, err := stream.Info(ctx)
			return err == nil && info.State.LastSeq == uint64(a.arrived.Load()) && info.State.Msgs == info.State.LastSeq
		})
	}
}

func (r *run) until(ctx context.Context, atMost time.Duration, what string, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for !done() {
		if !pause(ctx, 50*time.Millisecond) {
			r.violation("%s was not done in %v", what, atMost)
			return
		}
	}
}
