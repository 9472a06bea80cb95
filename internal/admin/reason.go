package admin

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxReason is how many characters a reason may have.
const MaxReason = 500

// ParseReason reads why somebody replays or discards dead letters; "" if they do not say it. It is one line, because lists and logs show it.
func ParseReason(text string) (string, error) {
	text = strings.TrimSpace(text)
	if n := utf8.RuneCountInString(text); n > MaxReason {
		return "", fmt.Errorf("the reason has %d characters; expected at most %d", n, MaxReason)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return "", fmt.Errorf("the reason has a line break or another control character; expected at most %d characters on one line", MaxReason)
	}
	return text, nil
}
