package httpsink

import (
	"net/http"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func (s *Sink) isCloudEvents() bool {
	return s.cfg.Format == CloudEvents || s.cfg.Format == CloudEventsBinary
}

const (
	// attributePrefix begins the canonical name of an attribute's header.
	attributePrefix = "Ce-"
	// maxDeadLetter bounds the header with the reason of a dead letter, in bytes. Servers reject long headers, nginx and Node.js
	// from 8 and 16 KiB on, and a hook that always rejects would never be notified.
	maxDeadLetter = 4096
	// shortError is what is left of a reason that is too long.
	shortError = 1000
)

// binaryAttributes are the headers of an event in binary mode, as the HTTP Protocol Binding for CloudEvents specifies
// (section 3.1). The attribute datacontenttype is the Content-Type. The event's attributes must be valid.
func binaryAttributes(b *buffer.Batch, i int) http.Header {
	h := http.Header{}
	attributes, _ := sink.CloudEventAttributes(b, i)
	for _, attribute := range attributes {
		if attribute.Name == "datacontenttype" {
			h.Set(headerContentType, attribute.Value)
			continue
		}
		value := sink.CloudEventHeader(attribute.Value)
		if d := b.DeadLetter(i); d != nil && attribute.Name == sink.DeadLetterAttribute && len(value) > maxDeadLetter {
			short := *d
			short.Error = d.Error[:min(len(d.Error), shortError)]
			value = sink.CloudEventHeader(string(sink.AppendDeadLetter(nil, &short)))
		}
		h.Set(attributePrefix+attribute.Name, value)
	}
	return h
}
