package redissink

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/sink"
)

// allQueues is the set in which Sidekiq or asynq looks for the queues there are.
func (s *Sink) allQueues() string {
	if s.cfg.Mode == Asynq {
		return "asynq:queues"
	}
	return "queues"
}

// announce makes the names of the queues known, before anything is pushed: a push that
// worked beside a name that did not would be repeated. The set may be on another server
// than the queues. It is done for every batch, because whoever deletes an empty queue takes
// its name out. The error wraps sink.ErrUnavailable: it says nothing of the events.
func (s *Sink) announce(ctx context.Context, calls []*call) error {
	set := s.allQueues()
	c := &call{address: set, key: set, cmd: redis.NewCmd(ctx, s.announcement(calls)...)}
	s.exchange(ctx, []*call{c})
	if c.err == nil {
		return nil
	}
	return s.secret.redact(sink.Unavailable(fmt.Errorf("redis %s %q: %w", s.cfg.Mode, set, unread(c.err))))
}

func (s *Sink) announcement(calls []*call) []any {
	args := append(make([]any, 0, 2+len(calls)), "SADD", s.allQueues())
	for _, c := range calls {
		args = append(args, c.address)
	}
	return args
}
