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
//
// With WaitReplicas, the replicas must have the names before any event is pushed: Sidekiq has no markers, so
// every retry while replicas are missing would push the batch again. The set is stored once more because SADD
// of known names writes nothing, and WAIT would not wait.
func (s *Sink) registerQueues(ctx context.Context, calls []*call) error {
	set := s.queueSet()
	cmds := []*redis.Cmd{redis.NewCmd(ctx, s.registerArgs(calls)...)}
	if s.cfg.WaitReplicas > 0 {
		cmds = append(cmds, redis.NewCmd(ctx, "SUNIONSTORE", set, set))
	}
	register := make([]*call, len(cmds))
	for i, cmd := range cmds {
		register[i] = &call{address: set, key: set, cmd: cmd}
	}
	s.exchange(ctx, register)
	for _, c := range register {
		if c.err != nil {
			return s.secrets.redact(sink.Unavailable(fmt.Errorf("redis %s %q: %w", s.cfg.Mode, set, detach(c.err))))
		}
	}
	return nil
}

func (s *Sink) registerArgs(calls []*call) []any {
	args := append(make([]any, 0, 2+len(calls)), "SADD", s.queueSet())
	for _, c := range calls {
		args = append(args, c.address)
	}
	return args
}
