package redissink

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// call is one command to Redis: a script for the events of a stream, an RPUSH for
// those of a list, a PUBLISH for one event.
type call struct {
	address string
	indexes []int // of its events in the batch
	cmd     *redis.Cmd

	err error
	// position, from 1, is that of the event that made a script fail; 0: none.
	position int
}

// calls makes the commands for a batch, and names the events that have no address
// Redis takes.
func (s *Sink) calls(ctx context.Context, b *outbox.Batch) ([]*call, []sink.EventError) {
	groups, wrong := s.address.GroupByAddress(b)
	calls := make([]*call, 0, len(groups))
	groupID := b.GroupID.String()
	for _, g := range groups {
		var err error
		switch {
		case g.Address == "":
			err = sink.Permanent(fmt.Errorf("the name of the %s is empty", s.cfg.Mode))
		case s.cfg.Mode == Stream:
			var args []any
			if args, err = s.streamArgs(b, g, groupID); err == nil {
				calls = append(calls, newCall(ctx, g.Address, g.Indexes, args))
			}
		case s.cfg.Mode == List:
			calls = append(calls, newCall(ctx, g.Address, g.Indexes, pushArgs(b, g)))
		default:
			for at, i := range g.Indexes {
				envelope := sink.AppendEnvelope(nil, &b.Events[i], b.PayloadIsJSON)
				calls = append(calls, newCall(ctx, g.Address, g.Indexes[at:at+1], []any{"PUBLISH", g.Address, envelope}))
			}
		}
		if err != nil {
			for _, i := range g.Indexes {
				wrong = append(wrong, sink.EventError{Index: i, Err: err})
			}
		}
	}
	return calls, wrong
}

func newCall(ctx context.Context, address string, indexes []int, args []any) *call {
	return &call{address: address, indexes: indexes, cmd: redis.NewCmd(ctx, args...)}
}

// exchange sends the calls, one pipeline a server, and reads every answer.
func (s *Sink) exchange(ctx context.Context, calls []*call) {
	byServer := make(map[*redis.Client][]*call, 1)
	for _, c := range calls {
		server, err := s.servers.MasterForKey(ctx, c.address)
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

// read sets err and position to what the answer means.
func (c *call) read(pipeline error) {
	v, err := result(c.cmd, pipeline)
	c.err = err
	answer, scripted := v.([]any)
	if err != nil || !scripted {
		return // RPUSH and PUBLISH answer with a number
	}
	switch word := fmt.Sprint(answer[:min(1, len(answer))]...); {
	case word == "added", word == "known":
	case word == "fenced":
		c.err = sink.ErrFenced
	case word == "failed" && len(answer) == 3:
		position, _ := answer[1].(int64)
		c.position = int(position)
		c.err = reply{errors.New(fmt.Sprint(answer[2]))}
	default:
		c.err = fmt.Errorf("the script answered %q", answer)
	}
}

// eventErrors says of each event of a failed call why it is not there.
func (c *call) eventErrors(err error) []sink.EventError {
	events := make([]sink.EventError, len(c.indexes))
	others := err
	if c.position > 0 && !errors.Is(err, sink.ErrUnavailable) {
		// One event was refused. The others were taken back with it, which is
		// no fault of theirs.
		others = sink.Unavailable(fmt.Errorf("taken back, for another event of the batch was refused: %w", err))
	}
	for at, i := range c.indexes {
		events[at] = sink.EventError{Index: i, Err: others}
		if at+1 == c.position {
			events[at].Err = err
		}
	}
	return events
}

//go:embed stream.lua
var streamLua string

var streamScript = redis.NewScript(streamLua)

// bytesArg points to bytes; a pointer costs no allocation to pass on.
type bytesArg []byte

// MarshalBinary implements encoding.BinaryMarshaler.
func (b *bytesArg) MarshalBinary() ([]byte, error) { return *b, nil }

// streamArgs are the arguments of the script for the events of a stream; it says
// what they are.
func (s *Sink) streamArgs(b *outbox.Batch, g sink.Group, groupID string) ([]any, error) {
	marker, err := markerPrefix(g.Address)
	if err != nil {
		return nil, err
	}
	shapes := make([]byte, len(g.Indexes))
	args := make([]any, 0, 9+len(b.Origins)+3*len(g.Indexes))
	args = append(args, "EVALSHA", streamScript.Hash(), 2+len(b.Origins), g.Address, marker+groupID)
	for _, origin := range b.Origins {
		args = append(args, marker+origin.String())
	}
	args = append(args, s.cfg.DedupeWindow.Milliseconds(), groupID, s.cfg.MaxLen, (*bytesArg)(&shapes))
	topic := ""
	for at, i := range g.Indexes {
		e := &b.Events[i]
		shape := byte('0')
		if at == 0 || e.Topic != topic {
			shape |= 4
			topic = e.Topic
			args = append(args, &e.Topic)
		}
		args = append(args, &e.ID)
		if e.Key != nil {
			shape |= 1
			args = append(args, e.Key)
		}
		args = append(args, (*bytesArg)(&e.Payload))
		if e.Headers != nil {
			shape |= 2
			args = append(args, (*bytesArg)(&e.Headers))
		}
		shapes[at] = shape
	}
	return args, nil
}

// useSource makes the call carry the script itself.
func (c *call) useSource(ctx context.Context) {
	args := c.cmd.Args()
	args[0], args[1] = "EVAL", streamLua
	c.cmd, c.err = redis.NewCmd(ctx, args...), nil
}

// markerPrefix is what a stream's markers begin with. They have to share its hash
// slot.
func markerPrefix(stream string) (string, error) {
	open := strings.IndexByte(stream, '{')
	if open < 0 && strings.IndexByte(stream, '}') < 0 {
		return "{" + stream + "}:relay:", nil
	}
	if open >= 0 && strings.IndexByte(stream[open+1:], '}') > 0 {
		return stream + ":relay:", nil
	}
	return "", sink.Permanent(fmt.Errorf("the name of the stream, %q, has braces that are no hash tag such as {orders}", stream))
}

// pushArgs are the arguments of RPUSH for the events of a list.
func pushArgs(b *outbox.Batch, g sink.Group) []any {
	args := make([]any, 0, 2+len(g.Indexes))
	args = append(args, "RPUSH", g.Address)
	for _, i := range g.Indexes {
		args = append(args, sink.AppendEnvelope(nil, &b.Events[i], b.PayloadIsJSON))
	}
	return args
}
