package redissink

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// sidekiqKey is the key of a Sidekiq queue, a list. Workers take from its right.
func sidekiqKey(queue string) string { return "queue:" + queue }

// sidekiqArgs are the arguments of the LPUSH of a queue's events, in order. indexes
// are the events in it, rejected those that cannot be jobs.
func (s *Sink) sidekiqArgs(b *buffer.Batch, g sink.Group) (args []any, indexes []int, rejected []sink.EventError) {
	now := time.Now()
	args = append(make([]any, 0, 2+len(g.Indexes)), "LPUSH", sidekiqKey(g.Address))
	for _, i := range g.Indexes {
		job, err := s.appendSidekiqJob(nil, b, i, g.Address, now)
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		args = append(args, job)
		indexes = append(indexes, i)
	}
	return args, indexes, rejected
}

var (
	errNoClass = errors.New("the class is empty")
	errNotJSON = errors.New("the payload is not JSON; expected JSON, as Sidekiq's arguments are")
)

// retryOfClass leaves a job's retries to its class. Sidekiq's client writes the options of the class into the job, and the relay does
// not know them. Without the member, Sidekiq asks the class when the job has raised (JobRetry#local of 6.4.1, 7.3.2 and 8.1.7).
const retryOfClass = "class"

// appendSidekiqJob appends a job as Sidekiq's own client would push it; see
// https://github.com/sidekiq/sidekiq/wiki/Job-Format. Times are floats, in seconds, as the clients of Sidekiq up to 7 write them.
// That of 8 writes integers, in milliseconds, and Sidekiq 8 tells the two apart by the type (ApiUtils#calculate_latency,
// JobRecord#time_from_timestamp of 8.1.7). So floats are right for every version, also while servers of two versions run.
// The error wraps sink.ErrPermanent.
func (s *Sink) appendSidekiqJob(dst []byte, b *buffer.Batch, i int, queue string, now time.Time) ([]byte, error) {
	e := &b.Events[i]
	class, err := s.class.Address(e)
	switch {
	case err != nil:
		return nil, err
	case class == "":
		return nil, sink.Permanent(errNoClass)
	case !sink.IsJSON(e, b.PayloadIsJSON):
		return nil, sink.Permanent(errNotJSON)
	}
	dst = append(dst, `{"class":`...)
	dst = sink.AppendJSONString(dst, class)
	dst = append(dst, `,"args":[`...)
	dst = append(dst, e.Payload...)
	dst = append(dst, `],"queue":`...)
	dst = sink.AppendJSONString(dst, queue)
	dst = append(dst, `,"jid":"`...)
	dst = appendJID(dst, b, i)
	dst = append(dst, '"')
	if s.cfg.Retry != retryOfClass {
		dst = append(append(dst, `,"retry":`...), s.cfg.Retry...)
	}
	dst = append(dst, `,"created_at":`...)
	dst = appendSeconds(dst, e.CreatedAt)
	dst = append(dst, `,"enqueued_at":`...)
	dst = appendSeconds(dst, now)
	if d := b.DeadLetter(i); d != nil {
		dst = append(dst, `,"dead_letter":`...)
		dst = sink.AppendDeadLetter(dst, d)
	}
	return append(dst, '}'), nil
}

// appendJID appends the job's id, which is the same whenever the event is sent: consumers that keep jobs unique
// recognise it. created_at is part of it because a database may use an id again (TRUNCATE RESTART IDENTITY, a
// failover). The created_at of a projection may differ between attempts.
func appendJID(dst []byte, b *buffer.Batch, i int) []byte {
	name := sink.EventName(b, i)
	if created := b.Events[i].CreatedAt; !b.Projected {
		name += ":" + strconv.FormatInt(created.UnixMicro(), 10)
	}
	sum := sha256.Sum256([]byte(name))
	return hex.AppendEncode(dst, sum[:12])
}

// appendSeconds appends the time in seconds since 1970, to the microsecond.
func appendSeconds(dst []byte, t time.Time) []byte {
	return strconv.AppendFloat(dst, float64(t.UnixMicro())/1e6, 'f', 6, 64)
}
