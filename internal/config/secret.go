package config

import (
	"log/slog"
	"strings"

	"github.com/outboxrelay/relay/sink/httpsink"
)

// hidden stands for what must not be seen.
const hidden = "***"

// Secret is text that is not shown however it is printed, logged or marshalled;
// of a URL the harmless parts are. Compare what Reveal returns.
type Secret struct {
	// A pointer, because even printing by reflection does not follow one.
	text  *string
	shown string
}

func newSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{text: &text, shown: hidden}
}

// newSecretURL is a URL to be shown without userinfo, query and what an
// expansion put in. Of a URL that is an expansion as a whole, an http path is
// hidden too: webhooks carry their secret there. Of one that is written out, what
// looks like a token is.
func newSecretURL(in input) Secret {
	shown := in.shown
	if in.whole {
		shown = in.text
	}
	return Secret{text: &in.text, shown: redact(shown, in.whole)}
}

// Reveal returns the text itself; "" for the zero Secret.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String returns what may be shown.
func (s Secret) String() string { return s.shown }

// GoString is String in quotes.
func (s Secret) GoString() string { return `"` + s.shown + `"` }

// LogValue is what slog shows.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown) }

// MarshalText is what JSON and the like show.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown), nil }

// redact is for URLs that were found valid.
func redact(url string, hidePath bool) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url // stdout:
	}
	// Whatever stands before the last @ may belong to a password, even if the
	// rules of URLs say that it ended earlier.
	user := ""
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		user, rest = hidden+"@", rest[at+1:]
	}
	rest, _, query := cutAny(rest, "?#")
	if host, _, path := cutAny(rest, "/"); path && strings.HasPrefix(scheme, "http") {
		if hidePath {
			rest = host + "/" + hidden
		} else {
			rest = strings.TrimPrefix(httpsink.ShownPath(scheme+"://"+rest), scheme+"://")
		}
	}
	if query {
		rest += "?" + hidden
	}
	return scheme + "://" + user + rest
}

// cutAny is strings.Cut at the first of some characters.
func cutAny(s, chars string) (before, after string, found bool) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}
