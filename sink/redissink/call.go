package redissink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/sink"
)

// call is one command to Redis: a script for the events of a stream or of a queue of
// asynq's, an RPUSH or LPUSH for those of a list or of a queue of Sidekiq's, a PUBLISH for
// one event.
type call struct {
	address string
	key     string        // it is sent to who holds that
	indexes []int         // of its events in the batch
	script  *redis.Script // nil: it is none
	cmd     *redis.Cmd
	err     error
}

// exchange sends the calls, one pipeline a server, and reads every answer.
func (s *Sink) exchange(ctx context.Context, calls []*call) {
	byServer := make(map[*redis.Client][]*call, 1)
	for _, c := range calls {
		server, err := s.servers.MasterForKey(ctx, c.key)
		if err != nil {
			c.err = err
			continue
		}
		byServer[server] = append(byServer[server], c)
	}
	var servers sync.WaitGroup
	for server, calls := range byServer {
		servers.Go(func() { s.pipeline(ctx, server, calls) })
	}
	servers.Wait()
	for _, c := range calls {
		if c.err != nil && (code(c.err) == "" || code(c.err) == "MOVED") {
			s.servers.ReloadState(ctx)
			return
		}
	}
}

func (s *Sink) pipeline(ctx context.Context, server *redis.Client, calls []*call) {
	cmds := make([]redis.Cmder, len(calls), len(calls)+1)
	for i, c := range calls {
		cmds[i] = c.cmd
	}
	var written begun
	written.watch(calls[0].cmd)
	// WAIT is about what its own connection wrote before.
	var wait *redis.Cmd
	if s.cfg.WaitReplicas > 0 {
		wait = redis.NewCmd(ctx, "WAIT", s.cfg.WaitReplicas, s.cfg.WaitTimeout.Milliseconds())
		cmds = append(cmds, wait)
	}
	pipe := server.Pipeline()
	err := pipe.BatchProcess(ctx, cmds...)
	if err == nil {
		_, err = pipe.Exec(ctx)
	}
	for _, c := range calls {
		c.read(err)
		if written.yet && code(c.err) == "" && cutOff(ctx, c.err) {
			c.err = sink.MaybePoison(c.err)
		}
	}
	if wait == nil {
		return
	}
	if err := s.enough(wait, err); err != nil {
		for _, c := range calls {
			if c.err == nil {
				c.err = err
			}
		}
	}
}

// begun finds out whether a pipeline came as far as to write its first command.
// go-redis does not say whether an error came before that, when it dialled, logged
// in or waited for a connection.
type begun struct {
	arg string
	yet bool
}

// watch puts itself in the place of an argument that every command has.
func (b *begun) watch(first *redis.Cmd) {
	args := first.Args()
	b.arg, args[1] = fmt.Sprint(args[1]), b
}

// MarshalBinary implements encoding.BinaryMarshaler; go-redis calls it when it
// writes the command.
func (b *begun) MarshalBinary() ([]byte, error) {
	b.yet = true
	return []byte(b.arg), nil
}

// cutOff tells a time-out and a connection that was lost. Who was called off while
// it waited says nothing of the batch.
func cutOff(ctx context.Context, err error) bool {
	_, network := errors.AsType[net.Error](err)
	return (network || errors.Is(err, io.EOF)) && !errors.Is(ctx.Err(), context.Canceled)
}

// enough reads the answer to WAIT.
func (s *Sink) enough(wait *redis.Cmd, pipeline error) error {
	v, err := result(wait, pipeline)
	if err != nil {
		return fmt.Errorf("waiting for replicas: %w", unread(err))
	}
	if n, ok := v.(int64); !ok || n < int64(s.cfg.WaitReplicas) {
		return fmt.Errorf("%v of %d replicas had it within %v", v, s.cfg.WaitReplicas, s.cfg.WaitTimeout)
	}
	return nil
}

// unread makes a reply an error like any other: whatever Redis said to WAIT, it
// says nothing of the events.
func unread(err error) error { return errors.New(err.Error()) }

// result is what Redis answered to one command of a pipeline. When a connection
// could not be set up, go-redis may say so for the pipeline only, and leave each
// command without a value and without an error: that is no answer.
func result(cmd *redis.Cmd, pipeline error) (any, error) {
	v, err := cmd.Result()
	switch {
	case err != nil:
		var r redis.Error
		if errors.As(err, &r) {
			return nil, reply{err}
		}
		return nil, err
	case v != nil:
		return v, nil
	case pipeline != nil:
		return nil, unread(pipeline)
	}
	return nil, errors.New("no answer")
}

// read sets err to what the answer means. When the script failed, it was not an
// event's fault: Redis takes any fields, so the stream takes no more, or the user
// may not, and not every version has a code for that.
func (c *call) read(pipeline error) {
	v, err := result(c.cmd, pipeline)
	c.err = err
	answer, scripted := v.([]any)
	if err != nil || !scripted {
		return // the other commands answer with a number
	}
	switch word := fmt.Sprint(answer[:min(1, len(answer))]...); {
	case word == "added", word == "known":
	case word == "fenced":
		c.err = sink.ErrFenced
	case word == "failed" && len(answer) == 3:
		c.err = sink.Unavailable(reply{fmt.Errorf("%v (at event %v of %d)", answer[2], answer[1], len(c.indexes))})
	default:
		c.err = fmt.Errorf("the script answered %q", answer)
	}
}

func (c *call) source() string {
	if c.script == asynqScript {
		return asynqSource
	}
	return streamSource
}

// useSource makes the call carry the script itself.
func (c *call) useSource(ctx context.Context) {
	args := c.cmd.Args()
	args[0], args[1] = "EVAL", c.source()
	c.cmd, c.err = redis.NewCmd(ctx, args...), nil
}
