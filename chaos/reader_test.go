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

// streams are the Redis streams of the topics.
var streams = []string{"orders", "payments", "refunds"}

const readAtOnce = 2000

// readRedis records the entries of the streams until ctx is done, and trims what it
// has read. The relay's script removes only entries that it added itself, before they
// become visible.
func (r *run) readRedis(ctx context.Context) error {
	from := map[string]string{}
	for ctx.Err() == nil {
		read, whole := 0, true
		for _, stream := range streams {
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
				r.toRedis.arrive(v)
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

// readJetStream records the messages of the stream until ctx is done.
func (r *run) readJetStream(ctx context.Context) error {
	for last := uint64(0); ctx.Err() == nil; {
		consumer, err := r.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: last + 1,
		})
		if err == nil {
			err = r.consume(ctx, consumer, &last)
		}
		if errors.Is(err, errStrange) {
			return err
		}
		pause(ctx, 200*time.Millisecond) // the server is down
	}
	return nil
}

var errStrange = errors.New("the stream holds what it should not")

func (r *run) consume(ctx context.Context, consumer jetstream.Consumer, last *uint64) error {
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
		v, err := fromJetStream(e, meta)
		if err != nil {
			return fmt.Errorf("%w: entry %d: %w", errStrange, meta.Sequence.Stream, err)
		}
		r.toJetStream.arrive(v)
		*last = meta.Sequence.Stream
	}
}

func fromJetStream(e jetstream.Msg, meta *jetstream.MsgMetadata) (v arrival, err error) {
	pipeline, name, _ := strings.Cut(e.Headers().Get("Nats-Msg-Id"), ":")
	id, _, _ := strings.Cut(name, ":")
	if pipeline != "to-jetstream" {
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
	r.until(ctx, 5*time.Minute, "reading the JetStream stream to its end", func() bool {
		info, err := r.stream.Info(ctx)
		return err == nil && info.State.LastSeq == uint64(r.toJetStream.arrived.Load()) && info.State.Msgs == info.State.LastSeq
	})
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
