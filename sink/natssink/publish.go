package natssink

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/sink"
)

// publish publishes events singly, each with an answer of its own, until the connection breaks.
func (c *connection) publish(p *publisher, f *inflight, indexes []int) {
	for _, i := range indexes {
		if _, err := c.publishOne(p, f, i, c.replyTo(f, i)); err != nil {
			return
		}
	}
}

// replyTo is the reply subject of an event that is published singly; "" without JetStream.
func (c *connection) replyTo(f *inflight, i int) string {
	if c.inbox == "" {
		return ""
	}
	return f.replyTo + strconv.FormatInt(int64(i), 36)
}

// publishOne publishes an event. An event that NATS cannot carry gets its result and is not sent. The error
// means that the connection is broken: all pending events have their result then.
func (c *connection) publishOne(p *publisher, f *inflight, i int, reply string) (sent bool, err error) {
	err = p.prepare(i, f.subjects[i], reply)
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
