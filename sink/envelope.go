package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// AppendEnvelope appends the JSON envelope of the batch's event at index i, and returns the extended slice:
//
//	{"id":"17","topic":"...","key":"...","payload":<JSON>,"headers":{...},"created_at":"2026-01-02T03:04:05.123456Z"}
//
// key and headers are absent if they are NULL. The payload is the database's own text, byte for byte; bytes
// that are not JSON travel as payload_base64. The envelope of a dead letter ends in "dead_letter":{...}; see
// AppendDeadLetter. The headers must be valid; see CheckHeaders.
func AppendEnvelope(dst []byte, b *buffer.Batch, i int) []byte {
	e := &b.Events[i]
	dst = append(dst, `{"id":"`...)
	dst = e.AppendIdentity(dst)
	dst = append(dst, `","topic":`...)
	dst = AppendJSONString(dst, e.Topic)
	if e.Key != nil {
		dst = append(dst, `,"key":`...)
		dst = AppendJSONString(dst, *e.Key)
	}
	if IsJSON(e, b.PayloadIsJSON) {
		dst = append(dst, `,"payload":`...)
		dst = append(dst, e.Payload...)
	} else {
		dst = append(dst, `,"payload_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, e.Payload)
		dst = append(dst, '"')
	}
	if e.Headers != nil {
		dst = append(dst, `,"headers":`...)
		dst = append(dst, e.Headers...)
	}
	dst = append(dst, `,"created_at":"`...)
	dst = AppendTime(dst, e.CreatedAt)
	dst = append(dst, '"')
	if d := b.DeadLetter(i); d != nil {
		dst = append(dst, `,"dead_letter":`...)
		dst = AppendDeadLetter(dst, d)
	}
	return append(dst, '}')
}

// IsJSON reports whether the payload is JSON and can be part of a JSON text as it is. payloadIsJSON is
// Batch.PayloadIsJSON; if it is false, IsJSON parses the payload.
func IsJSON(e *outbox.Event, payloadIsJSON bool) bool {
	return payloadIsJSON || json.Valid(e.Payload) && utf8.Valid(e.Payload)
}

// AppendTime appends a time as an envelope has it: in UTC, to the microsecond. time has a fast path for
// RFC3339 and none for a format with six digits.
func AppendTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	dst = t.AppendFormat(dst, time.RFC3339)
	micros := strconv.Itoa(1_000_000 + t.Nanosecond()/1000)
	dst = append(append(dst[:len(dst)-1], '.'), micros[1:]...)
	return append(dst, 'Z')
}

// AppendDeadLetter appends the reason for which an event became a dead letter, as JSON on one line:
//
//	{"pipeline":"...","group_id":"...","attempts":3,"error":"...","died_at":"2026-01-02T03:04:05.123456Z"}
//
// The error may be a server's text: invalid UTF-8 is replaced, and control characters are escaped.
func AppendDeadLetter(dst []byte, d *buffer.DeadLetter) []byte {
	dst = append(dst, `{"pipeline":`...)
	dst = AppendJSONString(dst, d.Pipeline)
	if d.Sink != "" {
		dst = append(dst, `,"sink":`...)
		dst = AppendJSONString(dst, d.Sink)
	}
	dst = append(dst, `,"group_id":"`...)
	dst = append(dst, d.GroupID.String()...)
	dst = append(dst, `","attempts":`...)
	dst = strconv.AppendInt(dst, int64(d.Attempts), 10)
	dst = append(dst, `,"error":`...)
	dst = AppendJSONString(dst, d.Error)
	dst = append(dst, `,"died_at":"`...)
	dst = AppendTime(dst, d.DiedAt)
	return append(dst, `"}`...)
}

// AppendIdentity appends the identity of event i of the batch. A dead letter has another one than its event,
// which may be replayed: ID:dead:<the group_id it died in>.
func AppendIdentity(dst []byte, b *buffer.Batch, i int) []byte {
	dst = b.Events[i].AppendIdentity(dst)
	if d := b.DeadLetter(i); d != nil {
		dst = append(append(dst, ":dead:"...), d.GroupID.String()...)
	}
	return dst
}

// EventName names event i of the batch among those of all pipelines: <pipeline>:<identity>. A database may hand
// out an id again, so it is no proof that two events are the same; see AppendDedupeID.
func EventName(b *buffer.Batch, i int) string {
	return string(AppendIdentity([]byte(b.Pipeline+":"), b, i))
}

// AppendDedupeID appends the id by which a broker may drop event i of the batch as a duplicate:
//
//	<pipeline>:<id>:<created_at in microseconds, base 36>:<group_id>
//
// The group_id is the one that the event was first sent under, so the id is the same whenever the event is sent
// again: by a retry, by another owner, in a part of its batch. It is never that of another event. A database
// hands ids out again after a failover or TRUNCATE RESTART IDENTITY, but those events are claimed under another
// group_id. If the batch is still in the ledger then, it finds new events by the ids of the old ones;
// created_at tells them apart. A projection may return another created_at each time, so it is left out there.
// A dead letter's identity has the group_id that it died in, and needs nothing else.
func AppendDedupeID(dst []byte, b *buffer.Batch, i int) []byte {
	dst = AppendIdentity(append(append(dst, b.Pipeline...), ':'), b, i)
	if b.DeadLetter(i) != nil {
		return dst
	}
	if at := b.Events[i].CreatedAt; !b.Projected && !at.IsZero() {
		dst = strconv.AppendInt(append(dst, ':'), at.UnixMicro(), 36)
	}
	first := b.GroupID
	if len(b.Origins) > 0 {
		first = b.Origins[0]
	}
	return append(append(dst, ':'), first.String()...)
}

// AppendLine appends the envelope as one line of NDJSON, with its line break. A payload, or headers, with line
// breaks between the tokens is compacted; JSON strings contain none. Everything else is the database's own text.
func AppendLine(dst []byte, b *buffer.Batch, i int) []byte {
	e := &b.Events[i]
	if isLine(e.Payload) && isLine(e.Headers) {
		return append(AppendEnvelope(dst, b, i), '\n')
	}
	one := b.Part([]int{i})
	if IsJSON(e, b.PayloadIsJSON) {
		one.Events[0].Payload = compact(e.Payload)
	}
	one.Events[0].Headers = compact(e.Headers)
	return append(AppendEnvelope(dst, one, 0), '\n')
}

func isLine(text []byte) bool {
	return bytes.IndexByte(text, '\n') < 0 && bytes.IndexByte(text, '\r') < 0
}

// compact returns JSON on one line, without blanks between the tokens if it had line breaks there.
func compact(text []byte) []byte {
	if isLine(text) {
		return text
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // deeper than encoding/json takes; blanks mean the same
		return bytes.Map(func(r rune) rune {
			if r == '\n' || r == '\r' {
				return ' '
			}
			return r
		}, text)
	}
	return line.Bytes()
}

// CheckHeaders returns an error that wraps ErrPermanent if the event's headers are not a JSON object: one
// such event would make the whole body invalid.
func CheckHeaders(e *outbox.Event) error {
	if e.Headers == nil {
		return nil
	}
	text := bytes.TrimLeft(e.Headers, " \t\r\n")
	if len(text) > 0 && text[0] == '{' && json.Valid(text) && utf8.Valid(text) {
		return nil
	}
	return Permanent(errHeaders)
}

var errHeaders = errors.New("headers are not a JSON object")

// AppendJSONString appends s quoted and escaped. Invalid UTF-8, which a database does not return, is
// replaced.
func AppendJSONString(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error says that something was replaced
	return dst
}
