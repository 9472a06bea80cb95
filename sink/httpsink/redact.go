package httpsink

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	hidden = "***"
	// minSecret is the length below which text is not hidden: hiding it would make errors unreadable
	// and protect nothing.
	minSecret = 4
	// minSegment is the same for one segment of a URL's path, because shorter ones are often words, and
	// minToken for one with a digit or with letters of both cases.
	minSegment = 16
	minToken   = 5
	// maxQuote is how many bytes of a response an error quotes.
	maxQuote = 200
	// maxTokens is how many tokens stay hidden. A response may repeat one that has been renewed.
	maxTokens = 8
)

// MaskPath hides the path and the query of an HTTP URL as a whole: either can be a secret, as in the URL
// of a webhook. Scheme and host stay visible.
func MaskPath(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	host, tail := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		host, tail = rest[:end], rest[end:]
	}
	if tail != "" && tail != "/" {
		tail = "/" + hidden
	}
	return scheme + "://" + host + tail
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
	forms  []string // of all secrets, the longest first: one may be part of another
}

// newRedactor hides the user's credentials, the values of headers that may be secret, the URL's path and
// query, and these other secrets.
func newRedactor(t target, headers map[string]string, secrets ...string) *redactor {
	if t.user != nil {
		secrets = append(secrets, userSecrets(t.user)...)
	}
	for name, value := range headers {
		if !MayBeSecret(name) {
			continue
		}
		secrets = append(secrets, literals(value)...)
		if _, credentials, ok := strings.Cut(value, " "); ok { // Bearer ...
			secrets = append(secrets, credentials)
		}
	}
	r := &redactor{configured: append(secrets, PathSecrets(t.template.String())...)}
	r.update()
	return r
}

// addToken hides a token that was fetched.
func (r *redactor) addToken(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens = append(r.tokens, token)
	r.tokens = r.tokens[max(0, len(r.tokens)-maxTokens):]
	r.update()
}

// update sets forms: each secret as a server may write it. Short secrets are left out.
func (r *redactor) update() {
	forms := []string{}
	for _, s := range slices.Concat(r.configured, r.tokens) {
		if s = strings.TrimSpace(s); len(s) >= minSecret {
			forms = append(forms, s, url.QueryEscape(s), url.PathEscape(s), strings.Trim(strconv.Quote(s), `"`))
		}
	}
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	r.forms = slices.Compact(forms)
}

func (r *redactor) secretForms() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.forms
}

func (r *redactor) redact(text string) string {
	for _, form := range r.secretForms() {
		text = strings.ReplaceAll(text, form, hidden)
	}
	return text
}

// quote makes a short line of the beginning of a response. isTruncated says that text is not the whole
// response.
func (r *redactor) quote(text []byte, isTruncated bool) string {
	return r.line(string(text), isTruncated, maxQuote)
}

// line makes one line of at most maxBytes, and "...". The end of truncated text may be half a secret and is
// left out.
func (r *redactor) line(text string, isTruncated bool, maxBytes int) string {
	longest := 0
	if forms := r.secretForms(); len(forms) > 0 {
		longest = len(forms[0])
	}
	if enough := 4*maxBytes + longest; len(text) > enough {
		text, isTruncated = text[:enough], true
	}
	if isTruncated {
		text = text[:max(0, len(text)-longest)]
	}
	line := strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, r.redact(text))
	line = strings.Join(strings.Fields(line), " ")
	if len(line) <= maxBytes {
		return line
	}
	for !utf8.RuneStart(line[maxBytes]) {
		maxBytes--
	}
	return line[:maxBytes] + "..."
}

// PathSecrets are what a server may repeat of the path and the query of an HTTP URL, which may contain
// {topic} and {key}. A path counts with a slash only, from any segment on, because "/orders" is a path
// and "orders" is a word; a single segment counts if it looks like a token. Values of the query count
// always. Each is there as written and unescaped.
func PathSecrets(template string) (all []string) {
	add := func(secret string, minLength int) {
		for _, unescape := range []func(string) (string, error){keep, url.PathUnescape, url.QueryUnescape} {
			if form, err := unescape(secret); err == nil && len(form) >= minLength && !slices.Contains(all, form) {
				all = append(all, form)
			}
		}
	}
	_, rest, _ := strings.Cut(template, "://")
	start := strings.IndexAny(rest, "/?#")
	if start < 0 {
		return nil
	}
	path, query, _ := strings.Cut(rest[start:], "?")
	for _, literal := range literals(path) {
		literal = strings.TrimSuffix(literal, "/")
		for at := 0; at < len(literal); at++ {
			if literal[at] == '/' {
				add(literal[at:], minSecret)
				add(strings.ReplaceAll(literal[at:], "/", `\/`), minSecret)
				if suffix := literal[at+1:]; strings.Contains(suffix, "/") {
					add(suffix, minSecret)
					add(strings.ReplaceAll(suffix, "/", `\/`), minSecret)
				}
			}
		}
		for segment := range strings.SplitSeq(literal, "/") {
			if isToken(segment) {
				add(segment, minSecret)
			}
		}
	}
	for parameter := range strings.SplitSeq(query, "&") {
		name, value, found := strings.Cut(parameter, "=")
		if !found {
			value = name
		}
		for _, literal := range literals(value) {
			add(literal, minSecret)
		}
	}
	return all
}

func keep(s string) (string, error) { return s, nil }

// isToken reports whether a segment of a path looks like a token, and not like a word or a version.
func isToken(segment string) bool {
	mixedCase := func(s string) bool { return strings.ToLower(s) != s && strings.ToUpper(s) != s }
	return len(segment) >= minSegment || len(segment) >= minToken && (strings.ContainsAny(segment, "0123456789") || mixedCase(segment[1:]))
}

// literals are the parts of a template between its placeholders, which are not secret.
func literals(template string) []string {
	const mark = "\x00"
	return strings.Split(strings.NewReplacer("{topic}", mark, "{key}", mark).Replace(template), mark)
}
