package natssink

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxSubject leaves room for the rest of a protocol line. A server takes lines of 4096 bytes unless
// configured otherwise, and closes the connection on a longer one.
const maxSubject = 3900

// AddressOf implements sink.Addresser: the subject.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	address, err := s.subjectOf(e)
	return address, err == nil
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.subject.Fixed() }

// subjectOf returns the event's subject. The error wraps sink.ErrPermanent.
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
		return fmt.Errorf("it is %d bytes long; expected at most %d", len(subject), maxSubject)
	}
	if strings.ContainsAny(subject, " \t\r\n\x00") {
		return errors.New("it contains a blank, a line break or a NUL")
	}
	for token := range strings.SplitSeq(subject, ".") {
		switch token {
		case "":
			return errors.New("it has an empty token")
		case "*", ">":
			return errors.New("it contains a wildcard; events can only be published to a plain subject")
		}
	}
	// An event that commands the server is a mistake or an attack.
	if strings.HasPrefix(subject, "$JS.") || strings.HasPrefix(subject, "$SYS.") {
		return errors.New("it is reserved for the server")
	}
	return nil
}

// The relay's own headers. An event cannot override them.
const (
	headerID         = "Nats-Msg-Id"
	headerGroupID    = "Relay-Group-Id"
	headerKey        = "Relay-Key"
	headerDeadLetter = "Relay-Dead-Letter"
)

var relayHeaders = []string{headerID, headerGroupID, headerKey, headerDeadLetter}

// publisher builds the NATS messages of a batch, one after the other. All share one nats.Msg, because nats.go
// keeps no reference after PublishMsg has returned.
type publisher struct {
	msg         nats.Msg
	batch       *buffer.Batch
	group       []string // the value of headerGroupID
	id          []byte   // scratch space
	cloudEvents bool
}

func (s *Sink) newPublisher(b *buffer.Batch) *publisher {
	return &publisher{msg: nats.Msg{Header: nats.Header{}}, batch: b, group: []string{b.GroupID.String()}, cloudEvents: s.cloudEvents}
}

// prepare builds the message of an event. The error wraps sink.ErrPermanent.
func (p *publisher) prepare(i int, subject, reply string) error {
	e, header := &p.batch.Events[i], p.msg.Header
	p.msg.Subject, p.msg.Reply, p.msg.Data = subject, reply, e.Payload
	clear(header)
	p.id = sink.AppendDedupeID(p.id[:0], p.batch, i)
	header[headerID] = []string{string(p.id)}
	header[headerGroupID] = p.group
	if d := p.batch.DeadLetter(i); d != nil {
		header[headerDeadLetter] = []string{string(sink.AppendDeadLetter(nil, d))}
	}
	switch {
	case e.Key == nil:
	case isHeaderValue(*e.Key):
		header[headerKey] = []string{*e.Key}
	case p.batch.DeadLetter(i) == nil:
		return sink.Permanent(errors.New("key: " + notHeaderValue))
	}
	if p.cloudEvents {
		if err := setAttributes(header, p.batch, i); err != nil {
			return err
		}
	}
	headers, err := e.Headers.Map()
	dead := p.batch.DeadLetter(i) != nil
	if err != nil && !dead {
		return sink.Permanent(err)
	}
	for name, value := range headers {
		if isRelayHeader(name) || p.cloudEvents && isCloudEventHeader(name) {
			continue
		}
		if dead && (!isHeaderName(name) || !isHeaderValue(value) || isServerHeader(name)) {
			continue // it may have died of this header, and a hook must be notified of everything
		}
		if !isHeaderValue(value) {
			return sink.Permanent(fmt.Errorf("header %q: %s", name, notHeaderValue))
		}
		if commandsStream(name) {
			return sink.Permanent(fmt.Errorf("header %q commands the stream, which may concern other messages; expected no other header of Nats- than Nats-TTL and Nats-Expected-*", name))
		}
		header[name] = []string{value}
	}
	return nil
}

// isRelayHeader ignores case.
func isRelayHeader(name string) bool {
	return slices.ContainsFunc(relayHeaders, func(own string) bool { return strings.EqualFold(name, own) })
}

// commandsStream reports whether a header of an event is an instruction for the stream that may concern other messages: Nats-Rollup deletes
// them. What concerns the message alone is allowed: how long it lasts, and when the stream must not accept it. It ignores case.
func commandsStream(name string) bool {
	return isServerHeader(name) && !strings.EqualFold(name, "Nats-TTL") && !hasPrefix(name, "Nats-Expected-")
}

// isServerHeader reports whether a header is one that the server may read. It ignores case.
func isServerHeader(name string) bool { return hasPrefix(name, "Nats-") }

// hasPrefix ignores case.
func hasPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// isHeaderName reports whether nats.go sends a header of this name: a token of RFC 9110.
func isHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

const notHeaderValue = "a NATS header cannot carry a line break, or a blank at either end"

// isHeaderValue reports whether a NATS header carries the value unchanged. nats.go replaces line breaks with
// blanks and trims both ends.
func isHeaderValue(value string) bool {
	return !strings.ContainsAny(value, "\r\n") && strings.Trim(value, " \t") == value
}

// The values of Config.Format.
const (
	formatPayload     = "payload"
	formatCloudEvents = "cloudevents"
)

func (c Config) checkFormat() error {
	if c.Format == formatPayload || c.Format == formatCloudEvents {
		return nil
	}
	return fmt.Errorf("format is %q; expected %q or %q", c.Format, formatPayload, formatCloudEvents)
}

const (
	attributePrefix = "ce-"
	// headerContentType repeats datacontenttype. The Go SDK reads it, and it decides whether a message is in
	// binary mode at all.
	headerContentType = "content-type"
)

// isCloudEventHeader reports whether a header belongs to the CloudEvent. It ignores case.
func isCloudEventHeader(name string) bool {
	return strings.EqualFold(name, headerContentType) || hasPrefix(name, attributePrefix)
}

// setAttributes makes the message a CloudEvent in binary mode, as the NATS Protocol Binding for CloudEvents
// specifies. The error wraps sink.ErrPermanent.
func setAttributes(h nats.Header, b *buffer.Batch, i int) error {
	attributes, err := sink.CloudEventAttributes(b, i)
	if err != nil {
		return err
	}
	for _, attribute := range attributes {
		h[attributePrefix+attribute.Name] = []string{sink.CloudEventHeader(attribute.Value)}
		if attribute.Name == "datacontenttype" {
			h[headerContentType] = []string{attribute.Value}
		}
	}
	return nil
}
