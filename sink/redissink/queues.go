package redissink

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/sink"
)

// queueSet is the key of the set in which Sidekiq or asynq looks up its queues.
func (s *Sink) queueSet() string {
	if s.cfg.Mode == Asynq {
		return "asynq:queues"
	}
	return "queues"
}

// registerQueues adds the queues' names to the set before any event is pushed: if that failed afterwards, the
// events would be pushed again. The set may be on another server than the queues. Every batch does it,
// because deleting an empty queue removes its name. The error wraps sink.ErrUnavailable.
func (s *Sink) registerQueues(ctx context.Context, calls []*call) error {
	set := s.queueSet()
	c := &call{address: set, key: set, cmd: redis.NewCmd(ctx, s.registerArgs(calls)...)}
	s.exchange(ctx, []*call{c})
	if c.err == nil {
		return nil
	}
	return s.secret.redact(sink.Unavailable(fmt.Errorf("redis %s %q: %w", s.cfg.Mode, set, detach(c.err))))
}

func (s *Sink) registerArgs(calls []*call) []any {
	args := append(make([]any, 0, 2+len(calls)), "SADD", s.queueSet())
	for _, c := range calls {
		args = append(args, c.address)
	}
	return args
}
