package config

import (
	"log/slog"
	"strings"

	"github.com/outboxrelay/relay/internal/redact"
)

// hidden replaces secrets.
const hidden = redact.Hidden

// Secret is text that is masked when it is printed, logged or marshalled. A URL shows
// its harmless parts. Compare the results of Reveal, not Secrets.
type Secret struct {
	// A pointer, because even printing by reflection does not follow it.
	text   *string
	masked string
}

func newSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text, masked: hidden}
}

// newSecretURL is a URL that shows its scheme, host and, unless it is http, its path,
// without what an expansion added. A URL that is one expansion shows them too.
func newSecretURL(in input) Secret {
	masked := in.masked
	if in.whole {
		masked = in.text
	}
	return Secret{text: &in.text, masked: maskURL(masked)}
}

// Reveal returns the text; "" for the zero Secret.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String returns the masked text.
func (s Secret) String() string { return s.masked }

// GoString returns the masked text in quotes.
func (s Secret) GoString() string { return `"` + s.masked + `"` }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.masked) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.masked), nil }

// maskURL masks the user, the query and, of an http URL, the path: webhooks have
// secrets in their paths. The URL must be valid.
func maskURL(url string) string {
	scheme, user, hosts, rest := redact.SplitURL(url)
	if hosts == "" && rest == "" {
		return url // stdout:
	}
	if user != "" {
		user = hidden + "@"
	}
	end := "?#"
	if strings.HasPrefix(scheme, "http") {
		end = "/?#"
	}
	if i := strings.IndexAny(rest, end); i >= 0 && rest[i:] != "/" {
		rest = rest[:i+1] + hidden
	}
	return scheme + "://" + user + hosts + rest
}
