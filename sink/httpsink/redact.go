package httpsink

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// redactor cleans text that others wrote before it goes into an error: a server
// may echo what it was sent.
type redactor struct {
	replace *strings.Replacer
	longest int // in bytes
	later   *learnt
}

// learnt are the secrets that were learnt since: tokens, the last few, for an answer
// may come after its token was renewed.
type learnt struct {
	mu    sync.Mutex
	forms [8][]string
	at    int
}

const (
	hidden = "***"
	// shortest is the length below which text is not taken for a secret:
	// replacing it would leave no error readable, and keep nothing.
	shortest = 4
	// quoteBytes is how much of an answer an error quotes.
	quoteBytes = 200
)

var placeholder = strings.NewReplacer("{topic}", "\x00", "{key}", "\x00")

// harmless are the headers whose values are never secret.
var harmless = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Language",
	"Content-Type", "Host", headerIdempotency, "Prefer", "User-Agent", "Webhook-Id", "Webhook-Timestamp",
}

// MayBeSecret tells whether a header's value may be one: of all but a few standard names.
func MayBeSecret(header string) bool {
	return !slices.Contains(harmless, http.CanonicalHeaderKey(header))
}

// newRedactor knows the password, or the user name where there is none, the values of
// the headers that may hold one, those in the query, what looks like a token in the path,
// and the secrets beside them.
func newRedactor(t target, headers map[string]string, secrets ...string) redactor {
	if t.user != nil {
		password, ok := t.user.Password()
		if !ok {
			password = t.user.Username()
		}
		plain := t.user.Username() + ":" + password
		secrets = append(secrets, password, plain, base64.StdEncoding.EncodeToString([]byte(plain)))
	}
	for name, value := range headers {
		if !MayBeSecret(name) {
			continue
		}
		// What is made of topic and key is not secret.
		secrets = append(secrets, strings.Split(placeholder.Replace(value), "\x00")...)
		if _, credentials, ok := strings.Cut(value, " "); ok { // Bearer ...
			secrets = append(secrets, credentials)
		}
	}
	secrets = append(secrets, SecretSegments(t.template.String())...)
	if _, query, ok := strings.Cut(t.template.String(), "?"); ok {
		for parameter := range strings.SplitSeq(query, "&") {
			_, value, _ := strings.Cut(parameter, "=")
			secrets = append(secrets, value)
			if decoded, err := url.QueryUnescape(value); err == nil {
				secrets = append(secrets, decoded)
			}
		}
	}
	var forms []string
	for _, s := range secrets {
		forms = append(forms, formsOf(s)...)
	}
	// The longest first: one may be part of another.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	r := redactor{later: &learnt{}}
	var pairs []string
	for _, form := range forms {
		r.longest = max(r.longest, len(form))
		pairs = append(pairs, form, hidden)
	}
	r.replace = strings.NewReplacer(pairs...)
	return r
}

// formsOf is a secret as others may write it; nil where it is too short to be one.
func formsOf(secret string) []string {
	if secret = strings.TrimSpace(secret); len(secret) < shortest {
		return nil
	}
	return []string{secret, url.QueryEscape(secret), url.PathEscape(secret), strings.Trim(strconv.Quote(secret), `"`)}
}

// learn adds a secret.
func (r redactor) learn(secret string) {
	r.later.mu.Lock()
	defer r.later.mu.Unlock()
	r.later.forms[r.later.at] = formsOf(secret)
	r.later.at = (r.later.at + 1) % len(r.later.forms)
}

// learnt returns what was learnt.
func (r redactor) learnt() (forms []string) {
	r.later.mu.Lock()
	defer r.later.mu.Unlock()
	for _, secret := range r.later.forms {
		forms = append(forms, secret...)
	}
	return forms
}

// margin is how much of a text that was cut may be a part of a secret.
func (r redactor) margin() int {
	most := r.longest
	for _, form := range r.learnt() {
		most = max(most, len(form))
	}
	return most
}

func (r redactor) redact(text string) string {
	for _, form := range r.learnt() {
		text = strings.ReplaceAll(text, form, hidden)
	}
	return r.replace.Replace(text)
}

// quote makes a short line of the beginning of an answer. cut says that the text
// itself is only a beginning: its end may be half a secret.
func (r redactor) quote(text []byte, cut bool) string {
	return r.line(string(text), cut, quoteBytes)
}

// line makes a line of at most that many bytes, and "...".
func (r redactor) line(text string, cut bool, most int) string {
	if enough := 4*most + r.longest; len(text) > enough {
		text, cut = text[:enough], true
	}
	if cut {
		text = text[:max(0, len(text)-r.margin())]
	}
	line := strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, r.redact(text))
	line = strings.Join(strings.Fields(line), " ")
	if len(line) <= most {
		return line
	}
	for !utf8.RuneStart(line[most]) {
		most--
	}
	return line[:most] + "..."
}
