package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"unicode"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// maxShownPayload is how many bytes of a payload a page shows.
const maxShownPayload = 256 << 10

func (s *Console) deadDetail(e *buffer.DeadEvent) deadDetail {
	d := deadDetail{
		deadRow: s.deadRow(e), Event: e, Notified: e.NotifiedAt, ClosedAt: e.ClosedAt, ClosedBy: e.ClosedBy, Reason: visible([]byte(e.ClosedReason)), FullError: s.config.Redact(e.Error),
	}
	if s.config.HidePayloads {
		return d
	}
	if d.Sink != buffer.Unrouted {
		d.Try = tryLink(e.Pipeline, d.Sink, d.ID)
	}
	d.Headers, d.EventRow, d.Cut = visible(e.Headers), visible(e.Row), len(e.Payload) > maxShownPayload
	if !utf8.Valid(e.Payload) {
		d.Raw = hex.Dump(e.Payload[:min(len(e.Payload), maxShownPayload/8)])
		return d
	}
	d.Raw = visible(e.Payload)
	if len(e.Payload) <= maxShownPayload {
		var pretty bytes.Buffer
		if json.Indent(&pretty, e.Payload, "", "  ") == nil {
			d.Pretty = visible(pretty.Bytes())
		}
	}
	return d
}

// visible is a text for a page: at most maxShownPayload bytes, and with a mark in place of each character that is not seen or changes the
// direction of the text.
func visible(text []byte) string {
	if len(text) > maxShownPayload {
		text = bytes.ToValidUTF8(text[:maxShownPayload], nil)
	}
	return string(bytes.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return '\uFFFD'
		}
		return r
	}, text))
}
