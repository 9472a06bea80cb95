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

// The relay's own headers. Events cannot overrule them.
const (
	headerID         = "Nats-Msg-Id"
	headerGroupID    = "Relay-Group-Id"
	headerKey        = "Relay-Key"
	headerDeadLetter = "Relay-Dead-Letter"
)

var ownHeaders = []string{headerID, headerGroupID, headerKey, headerDeadLetter}

// maxSubject leaves room for the rest of a protocol line, of which a server takes
// 4096 bytes unless it is told otherwise; it ends the connection on a longer
// one.
const maxSubject = 3900

// subjectOf makes the event's address and looks whether one can publish there. The
// error is a refusal for good.
func (s *Sink) subjectOf(e *outbox.Event) (string, error) {
	subject, err := s.subject.Address(e)
	if err != nil {
		return "", err
	}
	if err := checkSubject(subject); err != nil {
		return "", sink.Permanent(fmt.Errorf("subject %q: %w", subject[:min(len(subject), 200)], err))
	}
	return subject, nil
}

func checkSubject(subject string) error {
	if len(subject) > maxSubject {
		return fmt.Errorf("it is %d bytes long, at most %d are taken", len(subject), maxSubject)
	}
	if strings.ContainsAny(subject, " \t\r\n\x00") {
		return errors.New("it has a blank, a line break or a NUL in it")
	}
	for token := range strings.SplitSeq(subject, ".") {
		switch token {
		case "":
			return errors.New("one of its tokens is empty")
		case "*", ">":
			return errors.New("one cannot publish to a wildcard")
		}
	}
	// An event that gives orders to the server is a mistake or an attack.
	if strings.HasPrefix(subject, "$JS.") || strings.HasPrefix(subject, "$SYS.") {
		return errors.New("it belongs to the server")
	}
	return nil
}

// publisher makes NATS messages of the events of a batch, one after the other.
// nats.go is done with one when PublishMsg returns, so there is only one.
type publisher struct {
	msg     nats.Msg
	batch   *buffer.Batch
	id      [1]string
	group   [1]string
	key     [1]string
	foreign bool // the last event had headers that others do not have
	// cloudEvents: the message is a CloudEvent too.
	cloudEvents bool
}

func (s *Sink) newPublisher(b *buffer.Batch) *publisher {
	p := &publisher{batch: b, group: [1]string{b.GroupID.String()}, cloudEvents: s.cloudEvents}
	p.ownHeaders()
	return p
}

func (p *publisher) ownHeaders() {
	p.msg.Header = nats.Header{headerID: p.id[:], headerGroupID: p.group[:]}
}

// prepare makes the message of an event. The error is a refusal for good.
func (p *publisher) prepare(e *outbox.Event, subject, reply string) error {
	if p.foreign {
		p.ownHeaders()
		p.foreign = false
	}
	p.msg.Subject, p.msg.Reply, p.msg.Data = subject, reply, e.Payload
	p.id[0] = p.batch.Pipeline + ":" + e.Identity()
	if d := e.DeadLetter; d != nil {
		// Another id than the event's own, or a stream that takes both would drop
		// the event for a duplicate when it is replayed.
		p.id[0] += ":dead:" + d.GroupID.String()
		p.msg.Header[headerDeadLetter] = []string{string(sink.AppendDeadLetter(nil, d))}
		p.foreign = true
	}
	if e.Key == nil {
		delete(p.msg.Header, headerKey)
	} else {
		if !fits(*e.Key) {
			return sink.Permanent(errors.New("key: " + misfit))
		}
		p.key[0] = *e.Key
		p.msg.Header[headerKey] = p.key[:]
	}
	if p.cloudEvents {
		p.foreign = true
		if err := setAttributes(p.msg.Header, p.batch, e); err != nil {
			return err
		}
	}
	if e.Headers == nil {
		return nil
	}
	own, err := e.Headers.Map()
	if err != nil {
		return sink.Permanent(err)
	}
	p.foreign = true
	for name, value := range own {
		if ours(name) || p.cloudEvents && ofCloudEvents(name) {
			continue
		}
		if !fits(value) {
			return sink.Permanent(fmt.Errorf("header %q: %s", name, misfit))
		}
		p.msg.Header[name] = []string{value}
	}
	return nil
}

// ours tells whether a header is the relay's own, however it is written.
func ours(name string) bool {
	for _, own := range ownHeaders {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

const misfit = "a NATS header cannot carry a line break, nor blanks at either end"

// fits tells whether a NATS header carries the value as it is; nats.go would
// make blanks of line breaks and trim the ends.
func fits(value string) bool {
	return !strings.ContainsAny(value, "\r\n") && strings.Trim(value, " \t") == value
}

// publish publishes events one by one, each to be acknowledged alone. Events that NATS
// cannot carry, and all that is left when the connection breaks, get their verdict.
func (c *connection) publish(p *publisher, f *flight, indexes []int) {
	for _, i := range indexes {
		if _, alive := c.publishOne(p, f, i, c.replyTo(f, i)); !alive {
			return
		}
	}
}

// replyTo is where the answer to an event that is published alone comes; "" without
// JetStream.
func (c *connection) replyTo(f *flight, i int) string {
	if c.inbox == "" {
		return ""
	}
	return f.replyTo + strconv.FormatInt(int64(i), 36)
}

// publishOne publishes an event, or settles it; not alive: the connection is broken.
func (c *connection) publishOne(p *publisher, f *flight, i int, reply string) (published, alive bool) {
	err := p.prepare(&p.batch.Events[i], f.subjects[i], reply)
	if err == nil {
		err = c.nc.PublishMsg(&p.msg)
	}
	switch {
	case err == nil:
		return true, true
	case errors.Is(err, sink.ErrPermanent):
	case errors.Is(err, nats.ErrMaxPayload):
		err = sink.Permanent(fmt.Errorf("payload and headers: %w: the server takes %d bytes (max_payload)", err, c.nc.MaxPayload()))
	case errors.Is(err, nats.ErrBadHeaderMsg):
		err = sink.Permanent(errors.New("a header's name is not one of printable ASCII without punctuation"))
	default:
		// What was published before may be lost as well.
		c.nc.Close()
		c.mu.Lock()
		f.settleAll(sink.Unavailable(err))
		c.mu.Unlock()
		return false, false
	}
	c.mu.Lock()
	f.settle(i, err)
	c.mu.Unlock()
	return false, true
}
