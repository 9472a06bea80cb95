package natssink

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The formats.
const (
	payload     = "payload"     // the headers are the event's own and the relay's
	cloudEvents = "cloudevents" // and its attributes as a CloudEvent, in binary mode
)

func (c Config) checkFormat() error {
	switch c.Format {
	case payload, cloudEvents:
		return nil
	}
	return fmt.Errorf("format is %q, one of %s, %s was expected", c.Format, payload, cloudEvents)
}

const (
	attributePrefix = "ce-"
	// headerContentType is where the Go SDK looks for datacontenttype too; and what
	// stands there tells whether this is binary mode at all.
	headerContentType = "content-type"
)

// ofCloudEvents tells whether a header says what the CloudEvent is, however it is written.
func ofCloudEvents(name string) bool {
	return strings.EqualFold(name, headerContentType) ||
		len(name) >= len(attributePrefix) && strings.EqualFold(name[:len(attributePrefix)], attributePrefix)
}

// setAttributes makes a CloudEvent in binary mode of the message, as the NATS Protocol
// Binding for CloudEvents has it. The error is a refusal for good.
func setAttributes(h nats.Header, b *buffer.Batch, e *outbox.Event) error {
	attributes, err := sink.CloudEventAttributes(b, e)
	if err != nil {
		return err
	}
	for _, attribute := range attributes {
		h[attributePrefix+attribute.Name] = []string{percentEncoded(attribute.Value)}
		if attribute.Name == "datacontenttype" {
			h[headerContentType] = []string{attribute.Value}
		}
	}
	return nil
}

// percentEncoded writes an attribute's value as the HTTP binding does (section 3.1.3.2),
// which the one for NATS refers to: blanks, double quotes, per cent signs and what is not
// printable ASCII are encoded.
func percentEncoded(value string) string {
	special := func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }
	plain := true
	for i := range len(value) {
		plain = plain && !special(value[i])
	}
	if plain {
		return value
	}
	var encoded strings.Builder
	for i := range len(value) {
		if c := value[i]; special(c) {
			const hex = "0123456789ABCDEF"
			encoded.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			encoded.WriteByte(c)
		}
	}
	return encoded.String()
}
