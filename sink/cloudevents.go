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

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// The media types of CloudEvents in JSON: of one, and of an array of them.
const (
	CloudEventType  = "application/cloudevents+json; charset=utf-8"
	CloudEventsType = "application/cloudevents-batch+json; charset=utf-8"
)

// AppendCloudEvent appends the event as a CloudEvent 1.0 in the JSON event format, on
// one line where the payload is on one, and returns the extended slice:
//
//	{"specversion":"1.0","id":"17","source":"/relay/orders","type":"orders.created","subject":"customer-7",
//	 "time":"2026-01-02T03:04:05.123456Z","datacontenttype":"application/json","data":<JSON>}
//
// The attributes are those of CloudEventAttributes, as far as they can be made;
// CheckCloudEvent looks. The payload is the database's own text, byte for byte; bytes that
// are not JSON travel as data_base64.
func AppendCloudEvent(dst []byte, b *buffer.Batch, e *outbox.Event) []byte {
	attributes, _ := CloudEventAttributes(b, e)
	for i, attribute := range attributes {
		dst = append(dst, "{,"[min(i, 1)])
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

// CheckCloudEvent tells whether the event can be a CloudEvent. The error wraps
// ErrPermanent.
func CheckCloudEvent(e *outbox.Event) error {
	_, err := CloudEventAttributes(&buffer.Batch{PayloadIsJSON: true}, e)
	return err
}

// CloudEventAttributes are the context attributes of the event as a CloudEvent 1.0, by
// the names of its specification, in this order:
//
//	specversion      1.0
//	id               the event's identity; of a dead letter ID:dead:<the group_id it died in>
//	source           /relay/<pipeline>
//	type             the topic
//	subject          the key; absent when that is NULL or empty
//	time             created_at, to the microsecond
//	datacontenttype  application/json; where the payload is not JSON, the event's own header
//	                 content-type, or else application/octet-stream
//	deadletter       of a dead letter, why it was buried, as JSON; see AppendDeadLetter
//
// and the event's own headers, by name, where that makes one of an extension (letters
// and digits; it is written in lower case), such as traceparent. The others are left out.
// So id and source name an event for ever, and a dead letter another one.
//
// The error wraps ErrPermanent, and the attributes are those that can be had: the topic is
// empty, an attribute's value has characters that a CloudEvent cannot carry, or the headers
// are not a JSON object of strings.
func CloudEventAttributes(b *buffer.Batch, e *outbox.Event) ([]Field, error) {
	own, err := e.Headers.Map()
	attributes := append(make([]Field, 0, 8+len(own)),
		Field{"specversion", "1.0"},
		Field{"id", e.Identity()},
		Field{"source", "/relay/" + b.Pipeline},
		Field{"type", e.Topic},
	)
	if e.DeadLetter != nil {
		attributes[1].Value += ":dead:" + e.DeadLetter.GroupID.String()
	}
	if e.Key != nil && *e.Key != "" {
		attributes = append(attributes, Field{"subject", *e.Key})
	}
	attributes = append(attributes,
		Field{"time", e.CreatedAt.UTC().Format(timeFormat)},
		Field{"datacontenttype", dataContentType(own, IsJSON(e, b.PayloadIsJSON))},
	)
	if e.DeadLetter != nil {
		attributes = append(attributes, Field{deadLetterAttribute, fitting(AppendDeadLetter(nil, e.DeadLetter))})
	}
	attributes = appendExtensions(attributes, own)
	if e.Topic == "" {
		err = errors.New("the topic is empty, and so would the CloudEvent's type be")
	}
	for _, attribute := range attributes {
		if err == nil && (strings.ContainsFunc(attribute.Value, unfit) || !utf8.ValidString(attribute.Value)) {
			err = fmt.Errorf("the CloudEvent's %s has a control character in it, or what is not Unicode text", attribute.Name)
		}
	}
	if err != nil {
		err = Permanent(err)
	}
	return attributes, err
}

// deadLetterAttribute names an extension of ours.
const deadLetterAttribute = "deadletter"

// appendExtensions appends the headers that can be extensions, each name once: of those
// that differ in case only, the one in lower case or else the last.
func appendExtensions(attributes []Field, own map[string]string) []Field {
	if len(own) == 0 {
		return attributes
	}
	extensions := make(map[string]string, len(own))
	for _, name := range slices.Sorted(maps.Keys(own)) { // capitals come first
		if lower := strings.ToLower(name); extensionName(lower) {
			extensions[lower] = own[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		attributes = append(attributes, Field{name, extensions[name]})
	}
	return attributes
}

// extensionName tells whether an extension of somebody else's may be called so.
func extensionName(name string) bool {
	switch name {
	case "", "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", deadLetterAttribute:
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

// unfit are the characters that CloudEvents 1.0 (section 3.3, String) does not allow.
func unfit(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Noncharacter_Code_Point, r)
}

// fitting replaces what is unfit: the error in it is somebody else's, and the hook has to
// hear of it all the same.
func fitting(text []byte) string {
	return strings.Map(func(r rune) rune {
		if unfit(r) {
			return utf8.RuneError
		}
		return r
	}, string(text))
}

// dataContentType is what the payload is: JSON, or what the event's own header says of
// bytes. Nothing finer of JSON: a receiver reads data by it, and even the Go SDK knows no
// application/anything+json.
func dataContentType(own map[string]string, isJSON bool) string {
	if isJSON {
		return "application/json"
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if !strings.EqualFold(name, "content-type") {
			continue
		}
		media, _, err := mime.ParseMediaType(own[name])
		if err == nil && !strings.HasSuffix(media, "json") && !strings.HasPrefix(media, "application/cloudevents") {
			return strings.TrimSpace(own[name])
		}
	}
	return "application/octet-stream"
}
