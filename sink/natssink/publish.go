package natssink

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The relay's own headers. An event cannot override them.
const (
	headerID         = "Nats-Msg-Id"
	headerGroupID    = "Relay-Group-Id"
	headerKey        = "Relay-Key"
	headerDeadLetter = "Relay-Dead-Letter"
)

var relayHeaders = []string{headerID, headerGroupID, headerKey, headerDeadLetter}

// publisher builds the NATS messages of a batch, one after the other. All share one
// nats.Msg, because nats.go keeps no reference after PublishMsg has returned.
type publisher struct {
	msg   nats.Msg
	batch *buffer.Batch
	id    [1]string
	group [1]string
	key   [1]string
	// extraHeaders: the last message had headers that the next one may not have.
	extraHeaders bool
	cloudEvents  bool
}

func (s *Sink) newPublisher(b *buffer.Batch) *publisher {
	p := &publisher{batch: b, group: [1]string{b.GroupID.String()}, cloudEvents: s.cloudEvents}
	p.resetHeaders()
	return p
}

func (p *publisher) resetHeaders() {
	p.msg.Header = nats.Header{headerID: p.id[:], headerGroupID: p.group[:]}
}

// prepare builds the message of an event. The error wraps sink.ErrPermanent.
func (p *publisher) prepare(e *outbox.Event, subject, reply string) error {
	if p.extraHeaders {
		p.resetHeaders()
		p.extraHeaders = false
	}
	p.msg.Subject, p.msg.Reply, p.msg.Data = subject, reply, e.Payload
	p.id[0] = p.batch.Pipeline + ":" + e.Identity()
	if d := e.DeadLetter; d != nil {
		// With the event's own id, a stream that takes both would drop the replayed
		// event as a duplicate.
		p.id[0] += ":dead:" + d.GroupID.String()
		p.msg.Header[headerDeadLetter] = []string{string(sink.AppendDeadLetter(nil, d))}
		p.extraHeaders = true
	}
	if e.Key == nil {
		delete(p.msg.Header, headerKey)
	} else {
		if !isHeaderValue(*e.Key) {
			return sink.Permanent(errors.New("key: " + notHeaderValue))
		}
		p.key[0] = *e.Key
		p.msg.Header[headerKey] = p.key[:]
	}
	if p.cloudEvents {
		p.extraHeaders = true
		if err := setAttributes(p.msg.Header, p.batch, e); err != nil {
			return err
		}
	}
	if e.Headers == nil {
		return nil
	}
	headers, err := e.Headers.Map()
	if err != nil {
		return sink.Permanent(err)
	}
	p.extraHeaders = true
	for name, value := range headers {
		if isRelayHeader(name) || p.cloudEvents && isCloudEventHeader(name) {
			continue
		}
		if !isHeaderValue(value) {
			return sink.Permanent(fmt.Errorf("header %q: %s", name, notHeaderValue))
		}
		p.msg.Header[name] = []string{value}
	}
	return nil
}

// isRelayHeader ignores case.
func isRelayHeader(name string) bool {
	for _, own := range relayHeaders {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

const notHeaderValue = "a NATS header cannot carry a line break, or a blank at either end"

// isHeaderValue reports whether a NATS header carries the value unchanged. nats.go
// replaces line breaks with blanks and trims both ends.
func isHeaderValue(value string) bool {
	return !strings.ContainsAny(value, "\r\n") && strings.Trim(value, " \t") == value
}

// publish publishes events singly, each with an answer of its own, until the connection
// breaks.
func (c *connection) publish(p *publisher, f *inflight, indexes []int) {
	for _, i := range indexes {
		if _, err := c.publishOne(p, f, i, c.replyTo(f, i)); err != nil {
			return
		}
	}
}

// replyTo is the reply subject of an event that is published singly; "" without
// JetStream.
func (c *connection) replyTo(f *inflight, i int) string {
	if c.inbox == "" {
		return ""
	}
	return f.replyTo + strconv.FormatInt(int64(i), 36)
}

// publishOne publishes an event. An event that NATS cannot carry gets its result and is
// not sent. The error means that the connection is broken: all pending events have
// their result then.
func (c *connection) publishOne(p *publisher, f *inflight, i int, reply string) (sent bool, err error) {
	err = p.prepare(&p.batch.Events[i], f.subjects[i], reply)
	if err == nil {
		err = c.nc.PublishMsg(&p.msg)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, sink.ErrPermanent):
	case errors.Is(err, nats.ErrMaxPayload):
		err = sink.Permanent(fmt.Errorf("payload and headers: %w; the server's max_payload is %d bytes", err, c.nc.MaxPayload()))
	case errors.Is(err, nats.ErrBadHeaderMsg):
		err = sink.Permanent(errors.New("a header's name is invalid; expected printable ASCII without punctuation"))
	default:
		// Events that were published before may be lost as well.
		c.nc.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		f.resolveAll(sink.Unavailable(err))
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f.resolve(i, err)
	return false, nil
}
