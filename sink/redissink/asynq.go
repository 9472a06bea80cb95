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

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// What asynq's own client gives a task that asks for nothing else.
const (
	asynqRetry   = 25
	asynqTimeout = 30 * 60 // seconds
)

// asynqPrefix is what all the keys of a queue of asynq's begin with; they share a hash
// slot.
func asynqPrefix(queue string) string { return "asynq:{" + queue + "}:" }

// checkQueue tells whether asynq takes the name, and Redis the keys made of it. The error
// is a refusal for good.
func checkQueue(queue string) error {
	switch {
	case strings.TrimSpace(queue) == "":
		return sink.Permanent(errors.New("the name of the queue is blank"))
	case queue[0] == '}':
		return sink.Permanent(fmt.Errorf("the name of the queue, %q, begins with a brace that closes its hash tag", queue))
	case !utf8.ValidString(queue):
		return sink.Permanent(fmt.Errorf("the name of the queue, %q, is not UTF-8", queue))
	}
	return nil
}

// asynqArgs are the arguments of asynq.lua for the events of a queue. They name the
// events that are added, and those that asynq cannot take; nil: that is all of them.
func (s *Sink) asynqArgs(b *buffer.Batch, g sink.Group) (args []any, indexes []int, refused []sink.EventError) {
	prefix := asynqPrefix(g.Address)
	marker := prefix + "relay:"
	args = append(make([]any, 0, 9+len(b.Origins)+2*len(g.Indexes)),
		"EVALSHA", asynqScript.Hash(), 2+len(b.Origins), prefix+"pending", marker+b.GroupID.String())
	for _, origin := range b.Origins {
		args = append(args, marker+origin.String())
	}
	args = append(args, s.cfg.DedupeWindow.Milliseconds(), s.proof(b, g), prefix+"t:", time.Now().UnixNano())
	for _, i := range g.Indexes {
		t, err := s.taskOf(b, &b.Events[i], g.Address)
		if err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: err})
			continue
		}
		args = append(args, t.id, t.encode())
		indexes = append(indexes, i)
	}
	if indexes == nil {
		return nil, nil, refused
	}
	return args, indexes, refused
}

// task is what asynq runs.
type task struct {
	id, kind, queue string
	payload         []byte
	headers         map[string]string
}

// headerDeadLetter is the header that says why a dead letter was buried, as NATS has it.
const headerDeadLetter = "Relay-Dead-Letter"

// taskOf makes the task of an event. The error wraps sink.ErrPermanent.
func (s *Sink) taskOf(b *buffer.Batch, e *outbox.Event, queue string) (task, error) {
	t := task{id: nameOf(b, e), queue: queue, payload: e.Payload}
	var err error
	if t.kind, err = s.class.Address(e); err != nil {
		return t, err
	}
	switch {
	case strings.TrimSpace(t.kind) == "":
		return t, sink.Permanent(errNoClass)
	case !utf8.ValidString(t.kind): // asynq could not read it, and would try for ever
		return t, sink.Permanent(fmt.Errorf("the class, %q, is not UTF-8", t.kind))
	}
	if t.headers, err = e.Headers.Map(); err != nil {
		return t, sink.Permanent(err)
	}
	if e.DeadLetter != nil {
		t.headers = maps.Clone(t.headers)
		if t.headers == nil {
			t.headers = map[string]string{}
		}
		t.headers[headerDeadLetter] = string(sink.AppendDeadLetter(nil, e.DeadLetter))
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
		// An entry of a map: key is its field 1, value its field 2.
		entry := text(text(nil, 1, name), 2, t.headers[name])
		dst = protowire.AppendBytes(protowire.AppendTag(dst, fieldHeaders, protowire.BytesType), entry)
	}
	return dst
}
