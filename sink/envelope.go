package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox"
)

// AppendEnvelope appends the event's JSON envelope to dst, on one line where
// the payload is on one, and returns the extended slice:
//
//	{"id":"17","topic":"...","key":"...","payload":<JSON>,"headers":{...},"created_at":"2026-01-02T03:04:05.123456Z"}
//
// key and headers are absent when NULL. The payload is the database's own text,
// byte for byte; bytes that are not JSON travel as payload_base64. What is sent
// to a dead-letter hook ends in "dead_letter":{...}; see AppendDeadLetter.
// payloadIsJSON spares the look (Batch.PayloadIsJSON). Headers are taken to be
// JSON; CheckHeaders looks.
func AppendEnvelope(dst []byte, e *outbox.Event, payloadIsJSON bool) []byte {
	dst = append(dst, `{"id":"`...)
	dst = e.AppendIdentity(dst)
	dst = append(dst, `","topic":`...)
	dst = AppendJSONString(dst, e.Topic)
	if e.Key != nil {
		dst = append(dst, `,"key":`...)
		dst = AppendJSONString(dst, *e.Key)
	}
	if IsJSON(e, payloadIsJSON) {
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
	dst = e.CreatedAt.UTC().AppendFormat(dst, timeFormat)
	dst = append(dst, '"')
	if e.DeadLetter != nil {
		dst = append(dst, `,"dead_letter":`...)
		dst = AppendDeadLetter(dst, e.DeadLetter)
	}
	return append(dst, '}')
}

// IsJSON tells whether the payload is JSON, and so can stand within JSON as it is.
// payloadIsJSON spares the look.
func IsJSON(e *outbox.Event, payloadIsJSON bool) bool {
	return payloadIsJSON || json.Valid(e.Payload) && utf8.Valid(e.Payload)
}

// timeFormat is for times in UTC, to the microsecond.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// AppendDeadLetter appends why an event was buried, as JSON on one line:
//
//	{"pipeline":"...","group_id":"...","attempts":3,"error":"...","died_at":"2026-01-02T03:04:05.123456Z"}
//
// The error is somebody else's text, so what is not UTF-8 in it is replaced, and
// line breaks and control characters are escaped.
func AppendDeadLetter(dst []byte, d *outbox.DeadLetter) []byte {
	dst = append(dst, `{"pipeline":`...)
	dst = AppendJSONString(dst, d.Pipeline)
	dst = append(dst, `,"group_id":"`...)
	dst = append(dst, d.GroupID.String()...)
	dst = append(dst, `","attempts":`...)
	dst = strconv.AppendInt(dst, int64(d.Attempts), 10)
	dst = append(dst, `,"error":`...)
	dst = AppendJSONString(dst, d.Error)
	dst = append(dst, `,"died_at":"`...)
	dst = d.DiedAt.UTC().AppendFormat(dst, timeFormat)
	return append(dst, `"}`...)
}

// AppendLine appends the envelope as one line of NDJSON, its line break
// included. Summary breaks between the tokens of a payload or of headers become
// blanks, which mean the same; inside JSON strings there are none.
func AppendLine(dst []byte, e *outbox.Event, payloadIsJSON bool) []byte {
	start := len(dst)
	dst = AppendEnvelope(dst, e, payloadIsJSON)
	for _, lineBreak := range []byte{'\n', '\r'} {
		for line := dst[start:]; ; {
			i := bytes.IndexByte(line, lineBreak)
			if i < 0 {
				break
			}
			line[i] = ' '
			line = line[i+1:]
		}
	}
	return append(dst, '\n')
}

// CheckHeaders tells whether an envelope can carry the event's headers. The error
// wraps ErrPermanent: they are not a JSON object, and one such event would
// spoil the envelopes around it.
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

const hex = "0123456789abcdef"

// AppendJSONString appends s quoted and escaped; encoding/json has no appending
// form. Text from a database is UTF-8; what is not is replaced, as encoding/json
// does.
func AppendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
