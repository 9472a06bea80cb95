package admin

import (
	"strings"
	"testing"
)

func TestParseReason(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "  tenant deleted ": "tenant deleted", strings.Repeat("ä", MaxReason): strings.Repeat("ä", MaxReason)} {
		if got, err := ParseReason(text); err != nil || got != want {
			t.Errorf("%.20q is %.20q, %v", text, got, err)
		}
	}
	for _, text := range []string{strings.Repeat("ä", MaxReason+1), "two\nlines", "a\x00b", "a\xff", "\x1b[31m"} {
		if got, err := ParseReason(text); err == nil || !strings.Contains(err.Error(), "expected at most 500") {
			t.Errorf("%.20q is %.20q, %v", text, got, err)
		}
	}
}
