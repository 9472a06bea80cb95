package natssink

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
)

// A text that isPlainAck accepts is a JSON PubAck, so that the short cut changes no result.
func FuzzIsPlainAck(f *testing.F) {
	for _, text := range []string{
		`{"stream":"ORDERS","seq":1}`, `{"stream":"ORDERS","seq":123,"duplicate":true}`,
		`{"stream":"","seq":1}`, `{"stream":"A","seq":0}`, `{"stream":"A","seq":01}`, `{"stream":"A\"","seq":1}`,
		`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"A","seq":0}`,
		`{"stream":"A","seq":1,"error":{"code":400}}`, `{"stream":"A","seq":}`, `{"stream":"A","seq":18446744073709551616}`, ``, `+OK`, `null`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !isPlainAck(text) {
			return
		}
		var ack struct {
			Stream    string          `json:"stream"`
			Sequence  json.Number     `json:"seq"`
			Duplicate bool            `json:"duplicate"`
			Error     json.RawMessage `json:"error"`
		}
		// The stream's name may be invalid UTF-8; that is the server's responsibility.
		if err := json.Unmarshal(text, &ack); err != nil && json.Valid(text) {
			t.Fatalf("%q: %v", text, err)
		}
		if ack.Stream == "" || ack.Sequence == "0" || ack.Duplicate || ack.Error != nil {
			t.Fatalf("%q is not a plain ack", text)
		}
	})
}

func TestClassifyAck(t *testing.T) {
	t.Parallel()
	noResponders := nats.Header{"Status": {"503"}}
	for _, c := range []struct {
		text   string
		header nats.Header
		result string
	}{
		{text: `{"stream":"A","seq":7}`, result: "accepted"},
		{text: `{"stream":"A","seq":7, "domain":"hub"}`, result: "accepted"},
		{text: `{"stream":"A","seq":7,"duplicate":true}`, result: "accepted"},
		{text: ``, header: noResponders, result: "outage"},
		{text: ``, result: "outage"},
		{text: `+OK`, result: "outage"},
		{text: `{}`, result: "outage"},
		{text: `{"seq":7}`, result: "outage"},
		{text: `{"stream":"A","seq":0}`, result: "outage"},
		{text: `{"type":"io.nats.jetstream.api.v1.stream_purge_response","success":true}`, result: "outage"},
		{text: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"A","seq":0}`, result: "rejected"},
	} {
		err := classifyAck(&nats.Msg{Data: []byte(c.text), Header: c.header})
		if got := kind(err); got != c.result {
			t.Errorf("%q: got %s (%v), want %s", c.text, got, err, c.result)
		}
	}
}

func kind(err error) string {
	switch {
	case err == nil:
		return "accepted"
	case errors.Is(err, sink.ErrUnavailable):
		return "outage"
	case errors.Is(err, sink.ErrPermanent):
		return "permanent"
	}
	return "rejected"
}

func TestClassifyAPIError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    int
		errCode jetstream.ErrorCode
		want    string
	}{
		{503, 10077, "outage"},    // store failed: maximum messages or bytes exceeded
		{503, 10023, "outage"},    // insufficient resources
		{500, 10028, "outage"},    // memory
		{500, 10047, "outage"},    // storage
		{503, 10076, "outage"},    // JetStream not enabled
		{503, 10039, "outage"},    // for the account
		{503, 10008, "outage"},    // temporarily unavailable
		{429, 10167, "outage"},    // too many requests
		{400, 10002, "outage"},    // resource limits of the account
		{400, 10109, "outage"},    // sealed
		{400, 10120, "outage"},    // no limits
		{409, 10158, "outage"},    // duplicate in process
		{400, 10054, "permanent"}, // larger than the stream's max_msg_size
		{400, 10097, "permanent"}, // headers too large
		{400, 10071, "rejected"},  // wrong last sequence
		{400, 10060, "rejected"},  // expected stream
		{500, 10111, "rejected"},  // roll-up failed
		{400, 10166, "rejected"},  // TTL disabled
		{404, 65535, "rejected"},  // unknown
		{500, 65535, "outage"},    // unknown
	} {
		err := classifyAPIError(&jetstream.APIError{Code: c.code, ErrorCode: c.errCode})
		if got := kind(err); got != c.want {
			t.Errorf("%d %d: got %s, want %s", c.code, c.errCode, got, c.want)
		}
		if full := errors.Is(err, sink.ErrFull); full != slices.Contains([]jetstream.ErrorCode{10002, 10047, 10077}, c.errCode) {
			t.Errorf("%d %d: full is %v", c.code, c.errCode, full)
		}
	}
}
