package buffer_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, "no attempt", buffer.History(nil).String(), "")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	var h buffer.History
	for i := range 50 {
		before := len(h)
		longer := h.Plus(buffer.Attempt{At: at, Relay: strings.Repeat("host", 100), Error: "größe 🙂 \"\x00\xff" + [...]string{strings.Repeat("ü", 1000), strings.Repeat("\x01<\t", 1000), strings.Repeat("🙂", 1000)}[i%3], GroupID: buffer.NewGroupID(), Events: 1000})
		testkit.Equal(t, "attempts of the one before", len(h), before)
		h = longer
	}
	text := h.String()
	for _, c := range []byte(text) {
		if c >= utf8.RuneSelf || c < ' ' {
			t.Fatalf("the text has the byte %d: %s", c, text)
		}
	}
	if len(text) > 25_000 {
		t.Errorf("the text has %d bytes", len(text))
	}
	testkit.Equal(t, "it is read", buffer.ParseHistory(text), h)
	testkit.Equal(t, "attempts", []int{len(h), h[0].Omitted, h[1].Omitted, h[2].Omitted}, []int{buffer.MaxHistory, 0, 30, 0})
	if e := h[0].Error; !strings.HasPrefix(e, "größe 🙂") || !utf8.ValidString(e) || len(e) > buffer.MaxAttemptError {
		t.Errorf("the error is %q, %d bytes", e, len(e))
	}
}
