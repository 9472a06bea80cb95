package natssink

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The values of Config.Format.
const (
	formatPayload     = "payload"
	formatCloudEvents = "cloudevents"
)

func (c Config) checkFormat() error {
	switch c.Format {
	case formatPayload, formatCloudEvents:
		return nil
	}
	return fmt.Errorf("format is %q; expected %q or %q", c.Format, formatPayload, formatCloudEvents)
}

const (
	attributePrefix = "ce-"
	// headerContentType repeats datacontenttype. The Go SDK reads it, and it decides
	// whether a message is in binary mode at all.
	headerContentType = "content-type"
)

// isCloudEventHeader reports whether a header belongs to the CloudEvent. It ignores case.
func isCloudEventHeader(name string) bool {
	return strings.EqualFold(name, headerContentType) ||
		len(name) >= len(attributePrefix) && strings.EqualFold(name[:len(attributePrefix)], attributePrefix)
}

// setAttributes makes the message a CloudEvent in binary mode, as the NATS Protocol
// Binding for CloudEvents specifies. The error wraps sink.ErrPermanent.
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

// percentEncoded encodes blanks, double quotes, per cent signs and everything but
// printable ASCII. The NATS binding refers to the HTTP binding for this (section
// 3.1.3.2).
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
