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

// call is one command to Redis: a script for the events of a stream or asynq queue, an RPUSH or LPUSH for
// those of a list or Sidekiq queue, or a PUBLISH for one event.
type call struct {
	address string
	key     string  // determines the server
	indexes []int   // of its events in the batch
	script  *script // nil: not a script
	cmd     *redis.Cmd
	answer  string // of a script that did not fail: "added", "known" or "void"
	err     error
}

// run exchanges the calls. A server that was restarted, or whose scripts were flushed, gets their source,
// which it caches.
func (s *Sink) run(ctx context.Context, calls []*call) {
	s.exchange(ctx, calls)
	var again []*call
	for _, c := range calls {
		if code(c.err) == "NOSCRIPT" {
			c.useSource(ctx)
			again = append(again, c)
		}
	}
	s.exchange(ctx, again)
}

// exchange sends the calls, in one pipeline to each server, and reads every reply.
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
	var probe writeProbe
	probe.attach(calls[0].cmd)
	// WAIT covers only what its own connection wrote before. On one that wrote nothing it returns at once
	// (Redis 7.2 and later), so every command must write, also if everything is known already.
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
		if probe.written && code(c.err) == "" && connectionLost(ctx, c.err) {
			c.err = sink.MaybePoison(c.err)
		}
	}
	if wait == nil {
		return
	}
	if err := s.checkReplicas(wait, err); err != nil {
		for _, c := range calls {
			if c.err == nil {
				c.err = err
			}
		}
	}
}

// writeProbe records whether a pipeline began to write its first command. go-redis does not say whether an
// error came before that, while it dialled, logged in or waited for a connection.
type writeProbe struct {
	arg     string
	written bool
}

// attach replaces the command's second argument with the probe.
func (p *writeProbe) attach(first *redis.Cmd) {
	args := first.Args()
	p.arg, args[1] = fmt.Sprint(args[1]), p
}

// MarshalBinary implements encoding.BinaryMarshaler. go-redis calls it when it writes the command.
func (p *writeProbe) MarshalBinary() ([]byte, error) {
	p.written = true
	return []byte(p.arg), nil
}

// connectionLost reports whether err is a time-out or a lost connection, and not a Send that was cancelled.
func connectionLost(ctx context.Context, err error) bool {
	_, network := errors.AsType[net.Error](err)
	return (network || errors.Is(err, io.EOF)) && !errors.Is(ctx.Err(), context.Canceled)
}

// checkReplicas reads the reply to WAIT.
func (s *Sink) checkReplicas(wait *redis.Cmd, pipeline error) error {
	v, err := result(wait, pipeline)
	if err != nil {
		return fmt.Errorf("waiting for replicas: %w", detach(err))
	}
	if n, ok := v.(int64); !ok || n < int64(s.cfg.WaitReplicas) {
		return fmt.Errorf("%v of %d replicas acknowledged within %v", v, s.cfg.WaitReplicas, s.cfg.WaitTimeout)
	}
	return nil
}

// detach keeps the error's text only, so that it no longer counts as a reply about the events, and whether it is about the credentials.
func detach(err error) error {
	text := errors.New(sink.ExplainTLS(err).Error())
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		return sink.Access(text)
	}
	return text
}

// result is the reply to one command of a pipeline. If a connection could not be set up, go-redis may return
// that error for the pipeline only, and leave the commands without a value and without an error.
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
		return nil, detach(pipeline)
	}
	return nil, errors.New("no reply")
}

// read sets err from the reply. A script that failed is an outage: Redis accepts any fields, so the stream is
// full or the user lacks a permission, and not every version has an error code for that.
func (c *call) read(pipeline error) {
	v, err := result(c.cmd, pipeline)
	c.err = err
	answer, scripted := v.([]any)
	if err != nil || !scripted {
		return // the other commands return a number
	}
	switch status := fmt.Sprint(answer[:min(1, len(answer))]...); {
	case status == "added", status == "known", status == "void":
		c.answer = status
	case status == "fenced":
		c.err = sink.ErrFenced
	case status == "failed" && len(answer) == 3:
		c.err = sink.Unavailable(reply{fmt.Errorf("%v (at event %v of %d)", answer[2], answer[1], len(c.indexes))})
	default:
		c.err = fmt.Errorf("the script returned %q", answer)
	}
}

// useSource replaces the script's hash with its source.
func (c *call) useSource(ctx context.Context) {
	args := c.cmd.Args()
	args[0], args[1] = "EVAL", c.script.source
	c.cmd, c.err = redis.NewCmd(ctx, args...), nil
}
