package httpsink

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/outboxrelay/relay/internal/redact"
)

const (
	hidden = redact.Hidden
	// maxQuote is how many bytes of a response an error quotes.
	maxQuote = 200
	// maxTokens is how many tokens stay hidden. A response may repeat one that has been renewed.
	maxTokens = 8
)

// MaskPath hides the user, the query, and what may be secret in the path of an HTTP URL, as in that of a webhook. Scheme and host stay
// visible.
func MaskPath(url string) string {
	scheme, _, host, tail := redact.SplitURL(url)
	return redact.MaskPath(scheme + "://" + host + tail)
}

// MayBeSecret reports whether the value of a header may be secret, which is true of all but a few standard
// headers.
func MayBeSecret(header string) bool {
	return !slices.Contains(publicHeaders, http.CanonicalHeaderKey(header))
}

var publicHeaders = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Language",
	"Content-Type", "Host", headerIdempotency, "Prefer", "User-Agent", "Webhook-Id", "Webhook-Timestamp",
}

// redactor removes secrets from text of a server before it becomes part of an error: a server may repeat
// what it was sent.
type redactor struct {
	configured []string

	mu     sync.Mutex
	tokens []string // the last ones that were fetched
	now    *redact.Redactor
}

// newRedactor hides the user's credentials, the values of headers that may be secret, the secrets of the URL's path and
// query, and these other secrets.
func newRedactor(t target, headers map[string]string, secrets ...string) *redactor {
	if t.user != nil {
		secrets = append(secrets, userSecrets(t.user)...)
	}
	for name, value := range headers {
		if !MayBeSecret(name) {
			continue
		}
		secrets = append(secrets, redact.Literals(value)...)
		if _, credentials, ok := strings.Cut(value, " "); ok { // Bearer ...
			secrets = append(secrets, credentials)
		}
	}
	secrets = append(secrets, redact.PathSecrets(t.template.String(), t.template.String())...)
	return &redactor{configured: secrets, now: redact.New(secrets, nil)}
}

// addToken hides a token that was fetched.
func (r *redactor) addToken(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens = append(r.tokens, token)
	r.tokens = r.tokens[max(0, len(r.tokens)-maxTokens):]
	r.now = redact.New(slices.Concat(r.configured, r.tokens), nil)
}

func (r *redactor) current() *redact.Redactor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *redactor) redact(text string) string { return r.current().Text(text) }

// quote makes a short line of the beginning of a response. isTruncated says that text is not the whole
// response.
func (r *redactor) quote(text []byte, isTruncated bool) string {
	return r.line(string(text), isTruncated, maxQuote)
}

// line makes one line of at most maxBytes, and "...". isTruncated says that text may end within a secret.
func (r *redactor) line(text string, isTruncated bool, maxBytes int) string {
	if enough := 4 * maxBytes; len(text) > enough {
		text, isTruncated = text[:enough], true
	}
	if isTruncated {
		text = r.current().Beginning(text)
	} else {
		text = r.redact(text)
	}
	line := strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, text)
	line = strings.Join(strings.Fields(line), " ")
	if len(line) <= maxBytes {
		return line
	}
	for !utf8.RuneStart(line[maxBytes]) {
		maxBytes--
	}
	return line[:maxBytes] + "..."
}
