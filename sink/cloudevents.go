package sink

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The media types of one CloudEvent and of an array of them, in JSON.
const (
	CloudEventType  = "application/cloudevents+json; charset=utf-8"
	CloudEventsType = "application/cloudevents-batch+json; charset=utf-8"
)

// AppendCloudEvent appends the batch's event at index i as a CloudEvent 1.0 in the JSON event format, and returns the extended
// slice:
//
//	{"specversion":"1.0","id":"17","source":"/relay/orders","type":"orders.created","subject":"customer-7",
//	 "time":"2026-01-02T03:04:05.123456Z","datacontenttype":"application/json","data":<JSON>}
//
// The attributes are those of CloudEventAttributes, which must return no error for the event. The payload
// is the database's own text, byte for byte; bytes that are not JSON travel as data_base64.
func AppendCloudEvent(dst []byte, b *buffer.Batch, i int) []byte {
	e := &b.Events[i]
	attributes, _ := CloudEventAttributes(b, i)
	for n, attribute := range attributes {
		dst = append(dst, "{,"[min(n, 1)])
		dst = AppendJSONString(dst, attribute.Name)
		dst = append(dst, ':')
		dst = AppendJSONString(dst, attribute.Value)
	}
	if IsJSON(e, b.PayloadIsJSON) {
		dst = append(dst, `,"data":`...)
		return append(append(dst, e.Payload...), '}')
	}
	dst = append(dst, `,"data_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, e.Payload)
	return append(dst, `"}`...)
}

// CloudEventAttributes are the context attributes of the batch's event at index i as a CloudEvent 1.0, in this order:
//
//	specversion      1.0
//	id               the event's identity; of a dead letter ID:dead:<the group_id it died in>
//	source           /relay/<pipeline>
//	type             the topic
//	subject          the key; absent if it is NULL or empty
//	time             created_at, to the microsecond
//	datacontenttype  application/json; for other payloads the event's own header content-type, or
//	                 application/octet-stream
//	deadletter       of a dead letter, the reason as JSON; see AppendDeadLetter
//
// Then come the event's own headers whose lower-case name is valid for an extension (letters and digits),
// such as traceparent, sorted. Other headers are left out. So id and source identify an event for ever, and
// identify its dead letter as another one.
//
// The error wraps ErrPermanent, and the attributes are those that are valid: the topic is empty, a value has
// characters that a CloudEvent cannot carry, or the headers are not a JSON object of strings.
func CloudEventAttributes(b *buffer.Batch, i int) ([]Field, error) {
	e, dead := &b.Events[i], b.DeadLetter(i)
	headers, err := e.Headers.Map()
	attributes := append(make([]Field, 0, 8+len(headers)),
		Field{"specversion", "1.0"},
		Field{"id", string(AppendIdentity(nil, b, i))},
		Field{"source", "/relay/" + b.Pipeline},
		Field{"type", e.Topic},
	)
	if e.Key != nil && *e.Key != "" {
		attributes = append(attributes, Field{"subject", *e.Key})
	}
	attributes = append(attributes,
		Field{"time", string(AppendTime(nil, e.CreatedAt))},
		Field{"datacontenttype", dataContentType(headers, IsJSON(e, b.PayloadIsJSON))},
	)
	if dead != nil {
		attributes = append(attributes, Field{DeadLetterAttribute, replaceNotAllowed(AppendDeadLetter(nil, dead))})
	}
	attributes = appendExtensions(attributes, headers)
	if e.Topic == "" {
		err = errors.New("the topic is empty; expected one for the CloudEvent's type")
	}
	for _, attribute := range attributes {
		if err == nil && (strings.ContainsFunc(attribute.Value, notAllowed) || !utf8.ValidString(attribute.Value)) {
			err = fmt.Errorf("the CloudEvent's %s contains a control character or invalid Unicode; expected neither", attribute.Name)
		}
	}
	if err != nil {
		err = Permanent(err)
	}
	return attributes, err
}

// CloudEventHeader is an attribute's value as a header of binary mode has it: blanks, double quotes, per cent signs and everything
// but printable ASCII are percent-encoded (HTTP Protocol Binding, section 3.1.3.2, to which the NATS binding refers).
func CloudEventHeader(value string) string {
	special := func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' }
	var encoded strings.Builder
	for i := range len(value) {
		if c := value[i]; special(c) {
			fmt.Fprintf(&encoded, "%%%02X", c)
		} else {
			encoded.WriteByte(c)
		}
	}
	return encoded.String()
}

// DeadLetterAttribute is the extension with the reason of a dead letter; see AppendDeadLetter.
const DeadLetterAttribute = "deadletter"

// appendExtensions appends the headers that can be extensions, each name once. Of names that differ only in
// case, the one in lower case counts, otherwise the last.
func appendExtensions(attributes []Field, headers map[string]string) []Field {
	extensions := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) { // capitals come first
		if lower := strings.ToLower(name); isExtensionName(lower) {
			extensions[lower] = headers[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		attributes = append(attributes, Field{name, extensions[name]})
	}
	return attributes
}

// isExtensionName reports whether an event's header of that name can be an extension.
func isExtensionName(name string) bool {
	switch name {
	case "", "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", DeadLetterAttribute:
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

// notAllowed reports whether a CloudEvents 1.0 string (section 3.3) must not contain the character.
func notAllowed(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Noncharacter_Code_Point, r)
}

// replaceNotAllowed is for the error of a dead letter, which the hook must get all the same.
func replaceNotAllowed(text []byte) string {
	return strings.Map(func(r rune) rune {
		if notAllowed(r) {
			return utf8.RuneError
		}
		return r
	}, string(text))
}

// dataContentType is application/json, or for other payloads the type in the event's own header. JSON gets no
// finer type: receivers choose by it how to read data, and even the Go SDK knows no
// application/anything+json.
func dataContentType(headers map[string]string, isJSON bool) string {
	if isJSON {
		return "application/json"
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if !strings.EqualFold(name, "content-type") {
			continue
		}
		media, _, err := mime.ParseMediaType(headers[name])
		if err == nil && !strings.HasSuffix(media, "json") && !strings.HasPrefix(media, "application/cloudevents") {
			return strings.TrimSpace(headers[name])
		}
	}
	return "application/octet-stream"
}
