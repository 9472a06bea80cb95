package config

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// oddSecret is a secret or a header of an http sink that is probably not what its author wants.
type oddSecret struct{ key, text, fix string }

var (
	// bareVariable matches a variable of a shell, which is not expanded.
	bareVariable = regexp.MustCompile(`(^|\s)\$[A-Z_][A-Z0-9_]*$`)
	// secretHeader matches names of headers whose values are secret.
	secretHeader = regexp.MustCompile(`(?i)authori[sz]ation|api-?key|token|secret|password`)
	// schemes are what remains of a header for authorization if its secret is empty.
	schemes = []string{"", "bearer", "basic", "token", "apikey"}
)

// noted is a scalar for a secret that is noted if it is odd.
func noted(s scalar, key string, odd *[]oddSecret) scalar {
	set := s.set
	s.set = func(in input) error {
		noteValue(odd, key, in.text, in.expanded() && in.text == "")
		return set(in)
	}
	return s
}

// noteValue notes a value that was not expanded, or is empty.
func noteValue(odd *[]oddSecret, key, value string, isEmpty bool) {
	switch {
	case bareVariable.MatchString(value):
		*odd = append(*odd, oddSecret{key, "is a variable without braces, and is sent as it is written", "write ${NAME}"})
	case isEmpty:
		*odd = append(*odd, oddSecret{key, "is empty, because its variable or file is: requests carry no credentials", "set it, or remove the key"})
	}
}

// noteHeader notes a header that is probably misspelt, or whose secret is odd. written is the value before its expansion.
func noteHeader(odd *[]oddSecret, name, written, value string) {
	key, lower := "headers."+name, strings.ToLower(name)
	add := func(text, fix string) { *odd = append(*odd, oddSecret{key, text, fix}) }
	if isKey := slices.Contains([]string{"Idempotency-Key", "X-Idempotency-Key"}, http.CanonicalHeaderKey(name)); isKey {
		add("takes the place of the key that the relay makes for each batch, or differs from it: an API that honours it drops further requests with the same value, and their events count as delivered",
			"remove it; if the API needs a value of yours, send it in the body or in another header")
		return
	}
	isExpanded, clear := strings.Contains(written, "${"), "its value is in clear text in the file"
	hasText := !isExpanded && !strings.Contains(written, "{") && !slices.Contains(schemes, strings.ToLower(strings.TrimSpace(written)))
	isMisspelt := lower == "authentication" || lower != "authorization" && buffer.Nearest(lower, []string{"authorization"}, 2) != ""
	switch {
	case bareVariable.MatchString(value), isExpanded && secretHeader.MatchString(name) && slices.Contains(schemes, strings.ToLower(strings.TrimSpace(value))):
		noteValue(odd, key, value, true)
	case isMisspelt && hasText:
		add("looks like a misspelt Authorization, and "+clear, "write Authorization: ${NAME}, or bearer")
	case isMisspelt:
		add("looks like a misspelt Authorization", "write Authorization, or bearer")
	case hasText && secretHeader.MatchString(name):
		add("looks like a secret, and "+clear, "write ${NAME} or ${file:/path}")
	}
}
