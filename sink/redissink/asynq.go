package redissink

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The defaults of asynq's own client.
const (
	asynqRetry   = 25
	asynqTimeout = 30 * 60 // seconds
)

// asynqPrefix is the prefix of all keys of an asynq queue. They share a hash slot.
func asynqPrefix(queue string) string { return "asynq:{" + queue + "}:" }

// checkAsynqQueue checks the name of an asynq queue. The error wraps sink.ErrPermanent.
func checkAsynqQueue(queue string) error {
	switch {
	case strings.TrimSpace(queue) == "":
		return sink.Permanent(errors.New("the name of the queue is blank"))
	case queue[0] == '}':
		return sink.Permanent(fmt.Errorf("the name of the queue is %q; expected no brace at the beginning, because it would close the hash tag", queue))
	case !utf8.ValidString(queue):
		return sink.Permanent(fmt.Errorf("the name of the queue is %q; expected UTF-8", queue))
	}
	return nil
}

// asynqArgs are the arguments of asynq.lua for the events of a queue. indexes are
// the events in it, rejected those that cannot be tasks.
func (s *Sink) asynqArgs(b *buffer.Batch, g sink.Group, marker string) (args []any, indexes []int, rejected []sink.EventError) {
	prefix := asynqPrefix(g.Address)
	args = append(make([]any, 0, 9+len(b.Origins)+2*len(g.Indexes)),
		"EVALSHA", asynqScript.Hash(), 2+len(b.Origins), prefix+"pending", marker+b.GroupID.String())
	for _, origin := range b.Origins {
		args = append(args, marker+origin.String())
	}
	args = append(args, s.cfg.DedupeWindow.Milliseconds(), s.markerValue(b, g), prefix+"t:", time.Now().UnixNano())
	for _, i := range g.Indexes {
		t, err := s.taskOf(b, i, g.Address)
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		args = append(args, t.id, t.encode())
		indexes = append(indexes, i)
	}
	return args, indexes, rejected
}

// task is an asynq task.
type task struct {
	id, kind, queue string
	payload         []byte
	headers         map[string]string
}

// headerDeadLetter is the header that describes a dead letter, as in natssink.
const headerDeadLetter = "Relay-Dead-Letter"

// taskOf returns an event's task. The error wraps sink.ErrPermanent.
func (s *Sink) taskOf(b *buffer.Batch, i int, queue string) (task, error) {
	e := &b.Events[i]
	t := task{id: sink.EventName(b, i), queue: queue, payload: e.Payload}
	var err error
	if t.kind, err = s.class.Address(e); err != nil {
		return t, err
	}
	switch {
	case strings.TrimSpace(t.kind) == "":
		return t, sink.Permanent(errNoClass)
	case !utf8.ValidString(t.kind): // asynq could not read it, and would retry for ever
		return t, sink.Permanent(fmt.Errorf("the class is %q; expected UTF-8", t.kind))
	}
	if t.headers, err = e.Headers.Map(); err != nil {
		return t, sink.Permanent(err)
	}
	if d := b.DeadLetter(i); d != nil {
		t.headers = maps.Clone(t.headers)
		if t.headers == nil {
			t.headers = map[string]string{}
		}
		t.headers[headerDeadLetter] = string(sink.AppendDeadLetter(nil, d))
	}
	return t, nil
}

// The fields of TaskMessage, internal/proto/asynq.proto of asynq v0.26.
const (
	fieldType    = 1
	fieldPayload = 2
	fieldID      = 3
	fieldQueue   = 4
	fieldRetry   = 5
	fieldTimeout = 8
	fieldHeaders = 15
)

func (t task) encode() []byte {
	text := func(dst []byte, field protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), s)
	}
	number := func(dst []byte, field protowire.Number, n uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), n)
	}
	dst := make([]byte, 0, 64+len(t.kind)+len(t.payload)+len(t.id)+len(t.queue))
	dst = text(dst, fieldType, t.kind)
	dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldPayload, protowire.BytesType), t.payload)
	dst = text(dst, fieldID, t.id)
	dst = text(dst, fieldQueue, t.queue)
	dst = number(dst, fieldRetry, asynqRetry)
	dst = number(dst, fieldTimeout, asynqTimeout)
	for _, name := range slices.Sorted(maps.Keys(t.headers)) {
		// In an entry of a map, field 1 is the key and field 2 the value.
		entry := text(text(nil, 1, name), 2, t.headers[name])
		dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldHeaders, protowire.BytesType), entry)
	}
	return dst
}
