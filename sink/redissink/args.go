package redissink

import (
	"context"
	"strconv"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// calls returns the commands for a batch. rejected are the events whose address is invalid, or that the mode
// cannot carry.
func (s *Sink) calls(ctx context.Context, b *buffer.Batch) (calls []*call, rejected []sink.EventError) {
	groups, rejected := sink.GroupByAddress(b, s.address.Address)
	calls = make([]*call, 0, len(groups))
	for _, g := range groups {
		marker, err := s.markerPrefix(g.Address)
		if err != nil {
			for _, i := range g.Indexes {
				rejected = append(rejected, sink.EventError{Index: i, Err: err})
			}
			continue
		}
		c := &call{address: g.Address, key: g.Address, indexes: g.Indexes}
		var args []any
		var more []sink.EventError
		switch s.cfg.Mode {
		case Stream:
			c.script, args = streamScript, s.streamArgs(b, g, marker)
		case Asynq:
			c.script, c.key = asynqScript, asynqPrefix(g.Address)
			args, c.indexes, more = s.asynqArgs(b, g, marker)
		case Sidekiq:
			c.key = sidekiqKey(g.Address)
			args, c.indexes, more = s.sidekiqArgs(b, g)
		case List:
			c.indexes, more = withHeaders(b, g.Indexes)
			args = append(make([]any, 0, 2+len(c.indexes)), "RPUSH", g.Address)
			args = append(args, envelopes(b, c.indexes)...)
		default:
			c.indexes, more = withHeaders(b, g.Indexes)
			for at, envelope := range envelopes(b, c.indexes) {
				calls = append(calls, &call{
					address: g.Address, key: g.Address, indexes: c.indexes[at : at+1],
					cmd: redis.NewCmd(ctx, "PUBLISH", g.Address, envelope),
				})
			}
			rejected = append(rejected, more...)
			continue
		}
		rejected = append(rejected, more...)
		if len(c.indexes) > 0 {
			c.cmd = redis.NewCmd(ctx, args...)
			calls = append(calls, c)
		}
	}
	return calls, rejected
}

// bytesArg is an argument of bytes. Passing a pointer to it does not allocate.
type bytesArg []byte

// MarshalBinary implements encoding.BinaryMarshaler.
func (b *bytesArg) MarshalBinary() ([]byte, error) { return *b, nil }

// streamArgs are the arguments of stream.lua for the events of a stream.
func (s *Sink) streamArgs(b *buffer.Batch, g sink.Group, marker string) []any {
	groupID := b.GroupID.String()
	args := make([]any, 0, 12+len(b.Origins)+4*len(g.Indexes))
	args = append(args, "EVALSHA", streamScript.Hash(), 2+len(b.Origins), g.Address, marker+groupID)
	for _, origin := range b.Origins {
		args = append(args, marker+origin.String())
	}
	args = append(args, s.cfg.DedupeWindow.Milliseconds(), groupID, s.cfg.MaxLen, s.markerValue(b, g))
	for rest := g.Indexes; len(rest) > 0; {
		run := sameShape(b, rest)
		rest = rest[len(run):]
		first := &b.Events[run[0]]
		args = append(args, shape(b, run[0]), len(run), &first.Topic)
		for _, i := range run {
			if b.DeadLetter(i) != nil {
				args = appendFields(args, b, i, groupID)
				continue
			}
			e := &b.Events[i]
			args = append(args, identity(e))
			if e.Key != nil {
				args = append(args, e.Key)
			}
			args = append(args, (*bytesArg)(&e.Payload))
			if e.Headers != nil {
				args = append(args, (*bytesArg)(&e.Headers))
			}
		}
	}
	return args
}

// appendFields appends the names and values of all the event's fields.
func appendFields(args []any, b *buffer.Batch, i int, groupID string) []any {
	e := &b.Events[i]
	args = append(args, "id", identity(e), "topic", &e.Topic)
	if e.Key != nil {
		args = append(args, "key", e.Key)
	}
	args = append(args, "payload", (*bytesArg)(&e.Payload))
	if e.Headers != nil {
		args = append(args, "headers", (*bytesArg)(&e.Headers))
	}
	args = append(args, "group_id", groupID)
	if d := b.DeadLetter(i); d != nil {
		args = append(args, "dead_letter", sink.AppendDeadLetter(nil, d))
	}
	return args
}

// identity is the event's identity as an argument. A number is not converted.
func identity(e *outbox.Event) any {
	if e.UUID == uuid.Nil {
		return &e.ID
	}
	return uuid.UUID(e.UUID).String()
}

// sameShape returns the leading indexes of events with the first one's topic and shape.
func sameShape(b *buffer.Batch, indexes []int) []int {
	first := &b.Events[indexes[0]]
	for at, i := range indexes {
		if e := &b.Events[i]; e.Topic != first.Topic || shape(b, i) != shape(b, indexes[0]) {
			return indexes[:at]
		}
	}
	return indexes
}

// shape is stream.lua's name for the fields that an event has. For a dead letter it is how many arguments
// appendFields appends.
func shape(b *buffer.Batch, i int) string {
	e := &b.Events[i]
	switch {
	case b.DeadLetter(i) != nil:
		return strconv.Itoa(len(appendFields(nil, b, i, "")))
	case e.Key != nil && e.Headers != nil:
		return "both"
	case e.Key != nil:
		return "key"
	case e.Headers != nil:
		return "headers"
	}
	return "plain"
}

// withHeaders returns the events whose headers an envelope can carry, and those rejected.
func withHeaders(b *buffer.Batch, indexes []int) (valid []int, rejected []sink.EventError) {
	for _, i := range indexes {
		if err := sink.CheckHeaders(&b.Events[i]); err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		valid = append(valid, i)
	}
	return valid, rejected
}

// envelopes are the events' JSON envelopes, as arguments.
func envelopes(b *buffer.Batch, indexes []int) []any {
	size := 0
	for _, i := range indexes {
		size += 160 + sizeOf(&b.Events[i])
	}
	text := make([]byte, 0, size) // when it grows, the slices of the old one stay valid
	parts := make([]bytesArg, len(indexes))
	all := make([]any, len(indexes))
	for at, i := range indexes {
		from := len(text)
		text = sink.AppendEnvelope(text, b, i)
		parts[at] = text[from:len(text):len(text)]
		all[at] = &parts[at]
	}
	return all
}
