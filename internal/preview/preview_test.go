package preview_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/internal/testkit"
)

// TestParseEvents: a request's body, an array, and one envelope a line are events; anything else says what is wrong.
func TestParseEvents(t *testing.T) {
	t.Parallel()
	one, other := `{"id": 1, "topic": "a", "payload": {"n": 1}}`, `{"id": "0198c0de-0000-7000-8000-000000000001", "topic": "b", "payload_base64": "eA=="}`
	for name, text := range map[string]string{"body": `{"events": [` + one + "," + other + `]}`, "array": "[" + one + "," + other + "]", "lines": one + "\n" + other} {
		events, err := preview.ParseEvents([]byte(text))
		testkit.NoError(t, err)
		if len(events) != 2 || events[0].ID != 1 || string(events[1].Payload) != "x" || events[1].Identity() != "0198c0de-0000-7000-8000-000000000001" {
			t.Errorf("%s: %+v", name, events)
		}
	}
	for _, text := range []string{"", "[]", "{", `{"id": "x"}`, "12"} {
		if events, err := preview.ParseEvents([]byte(text)); err == nil {
			t.Errorf("%q is %+v", text, events)
		}
	}
}
