package natssink

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
)

// FuzzPlainAck: what is taken for a plain ack is JSON that says so, and what says
// so is judged alike with and without the short cut.
func FuzzPlainAck(f *testing.F) {
	for _, text := range []string{
		`{"stream":"ORDERS","seq":1}`, `{"stream":"ORDERS","seq":123,"duplicate":true}`,
		`{"stream":"","seq":1}`, `{"stream":"A","seq":0}`, `{"stream":"A","seq":01}`, `{"stream":"A\"","seq":1}`,
		`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"A","seq":0}`,
		`{"stream":"A","seq":1,"error":{"code":400}}`, `{"stream":"A","seq":}`, `{"stream":"A","seq":18446744073709551616}`, ``, `+OK`, `null`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !plainAck(text) {
			return
		}
		var ack struct {
			Stream    string          `json:"stream"`
			Sequence  json.Number     `json:"seq"`
			Duplicate bool            `json:"duplicate"`
			Error     json.RawMessage `json:"error"`
		}
		// A stream's name in invalid UTF-8 is for the server to answer for.
		if err := json.Unmarshal(text, &ack); err != nil && json.Valid(text) {
			t.Fatalf("%q: %v", text, err)
		}
		if ack.Stream == "" || ack.Sequence == "0" || ack.Duplicate || ack.Error != nil {
			t.Fatalf("%q is not a plain ack", text)
		}
	})
}

func TestJudge(t *testing.T) {
	t.Parallel()
	noResponders := nats.Header{"Status": {"503"}}
	for _, c := range []struct {
		text      string
		header    nats.Header
		duplicate bool
		verdict   string
	}{
		{text: `{"stream":"A","seq":7}`, verdict: "accepted"},
		{text: `{"stream":"A","seq":7, "domain":"hub"}`, verdict: "accepted"},
		{text: `{"stream":"A","seq":7,"duplicate":true}`, duplicate: true, verdict: "accepted"},
		{text: ``, header: noResponders, verdict: "outage"},
		{text: ``, verdict: "outage"},
		{text: `+OK`, verdict: "outage"},
		{text: `{}`, verdict: "outage"},
		{text: `{"seq":7}`, verdict: "outage"},
		{text: `{"stream":"A","seq":0}`, verdict: "outage"},
		{text: `{"type":"io.nats.jetstream.api.v1.stream_purge_response","success":true}`, verdict: "outage"},
		{text: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"A","seq":0}`, verdict: "refused"},
	} {
		duplicate, err := judge(&nats.Msg{Data: []byte(c.text), Header: c.header})
		if got := kind(err); got != c.verdict || duplicate != c.duplicate {
			t.Errorf("%q: got %s (%v), duplicate %v, want %s", c.text, got, err, duplicate, c.verdict)
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
		return "refused for good"
	}
	return "refused"
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    int
		errCode jetstream.ErrorCode
		want    string
	}{
		{503, 10077, "outage"},           // store failed: maximum messages or bytes exceeded
		{503, 10023, "outage"},           // insufficient resources
		{500, 10028, "outage"},           // memory
		{500, 10047, "outage"},           // storage
		{503, 10076, "outage"},           // JetStream not enabled
		{503, 10039, "outage"},           // for the account
		{503, 10008, "outage"},           // temporarily unavailable
		{429, 10167, "outage"},           // too many requests
		{400, 10002, "outage"},           // resource limits of the account
		{400, 10109, "outage"},           // sealed
		{400, 10120, "outage"},           // no limits
		{409, 10158, "outage"},           // duplicate in process
		{400, 10054, "refused for good"}, // larger than the stream's max_msg_size
		{400, 10097, "refused for good"}, // headers too large
		{400, 10071, "refused"},          // wrong last sequence
		{400, 10060, "refused"},          // expected stream
		{500, 10111, "refused"},          // roll-up failed
		{400, 10166, "refused"},          // TTL disabled
		{404, 65535, "refused"},          // unknown
		{500, 65535, "outage"},           // unknown
	} {
		err := classify(&jetstream.APIError{Code: c.code, ErrorCode: c.errCode})
		if got := kind(err); got != c.want {
			t.Errorf("%d %d: got %s, want %s", c.code, c.errCode, got, c.want)
		}
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`Permissions Violation for Publish to "a.b"`:                         "a.b",
		`Permissions Violation for Publish to "größe\"x"`:                    `größe"x`,
		`Permissions Violation for Subscription to "_INBOX.x.>" using queue`: "_INBOX.x.>",
		`Permissions Violation for Publish to`:                               "",
		`Permissions Violation for Publish to "half`:                         "",
	} {
		if got := quoted(fmt.Errorf("%w: %s", nats.ErrPermissionViolation, text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
