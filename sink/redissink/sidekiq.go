package redissink

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// sidekiqKey is the list that a queue of Sidekiq's is. Workers take from its right.
func sidekiqKey(queue string) string { return "queue:" + queue }

// sidekiqArgs push the events of a queue, in order. They name the events that are
// pushed, and those that Sidekiq cannot take; nil: that is all of them.
func (s *Sink) sidekiqArgs(b *buffer.Batch, g sink.Group) (args []any, indexes []int, refused []sink.EventError) {
	now := time.Now()
	args = append(make([]any, 0, 2+len(g.Indexes)), "LPUSH", sidekiqKey(g.Address))
	for _, i := range g.Indexes {
		pushed, err := s.appendSidekiq(nil, b, &b.Events[i], g.Address, now)
		if err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: err})
			continue
		}
		args = append(args, pushed)
		indexes = append(indexes, i)
	}
	if indexes == nil {
		return nil, nil, refused
	}
	return args, indexes, refused
}

var (
	errNoClass = errors.New("the class is empty")
	errNotJSON = errors.New("the payload is not JSON, and Sidekiq's arguments are")
)

// appendSidekiq appends what Sidekiq's own client would push; see
// https://github.com/sidekiq/sidekiq/wiki/Job-Format. Times are in seconds. The error
// wraps sink.ErrPermanent.
func (s *Sink) appendSidekiq(dst []byte, b *buffer.Batch, e *outbox.Event, queue string, now time.Time) ([]byte, error) {
	class, err := s.class.Address(e)
	switch {
	case err != nil:
		return nil, err
	case class == "":
		return nil, sink.Permanent(errNoClass)
	case !sink.IsJSON(e, b.PayloadIsJSON):
		return nil, sink.Permanent(errNotJSON)
	}
	sum := sha256.Sum256([]byte(nameOf(b, e)))
	dst = append(dst, `{"class":`...)
	dst = sink.AppendJSONString(dst, class)
	dst = append(dst, `,"args":[`...)
	dst = append(dst, e.Payload...)
	dst = append(dst, `],"queue":`...)
	dst = sink.AppendJSONString(dst, queue)
	dst = append(dst, `,"jid":"`...)
	dst = hex.AppendEncode(dst, sum[:12])
	dst = append(dst, `","retry":true,"created_at":`...)
	dst = appendSeconds(dst, e.CreatedAt)
	dst = append(dst, `,"enqueued_at":`...)
	dst = appendSeconds(dst, now)
	if e.DeadLetter != nil {
		dst = append(dst, `,"dead_letter":`...)
		dst = sink.AppendDeadLetter(dst, e.DeadLetter)
	}
	return append(dst, '}'), nil
}

// appendSeconds appends the time in seconds since 1970, to the microsecond.
func appendSeconds(dst []byte, t time.Time) []byte {
	return strconv.AppendFloat(dst, float64(t.UnixMicro())/1e6, 'f', 6, 64)
}

// nameOf names the event for ever, and among those of other pipelines; a dead letter is
// another one than the event, which may be replayed.
func nameOf(b *buffer.Batch, e *outbox.Event) string {
	name := b.Pipeline + ":" + e.Identity()
	if e.DeadLetter != nil {
		name += ":dead:" + e.DeadLetter.GroupID.String()
	}
	return name
}
