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
	text *string
	// written is the text of a URL with *** in the place of each expanded value; nil if all of it was expanded.
	written *string
	masked  string
}

func newSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text, masked: hidden}
}

// newSecretURL is a URL that shows its scheme, host and path, without what an expansion added. Of an http path it shows the
// plain parts. A URL that is one expansion shows them too, but an http URL no path.
func newSecretURL(in input) Secret {
	if in.whole {
		return Secret{text: &in.text, masked: maskURL(in.text, true)}
	}
	return Secret{text: &in.text, written: &in.masked, masked: maskURL(in.masked, false)}
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

// pathSecrets are the secrets in the path and the query of an http URL.
func (s Secret) pathSecrets() []string {
	written := ""
	if s.written != nil {
		written = *s.written
	}
	return redact.PathSecrets(s.Reveal(), written)
}

// maskURL masks the user, the query and, of an http URL, what may be secret in the path, as in that of a webhook: all
// of it if it is expanded. The URL must be valid.
func maskURL(url string, expanded bool) string {
	scheme, user, hosts, rest := redact.SplitURL(url)
	if hosts == "" && rest == "" {
		return url // stdout:
	}
	if user != "" {
		user = hidden + "@"
	}
	end := "?#"
	if strings.HasPrefix(scheme, "http") {
		if !expanded {
			return redact.MaskPath(scheme + "://" + user + hosts + rest)
		}
		end = "/?#"
	}
	if i := strings.IndexAny(rest, end); i >= 0 && rest[i:] != "/" {
		rest = rest[:i+1] + hidden
	}
	return scheme + "://" + user + hosts + rest
}
