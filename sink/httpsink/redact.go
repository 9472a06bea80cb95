package httpsink

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// redactor removes secrets from text of a server before it becomes part of an error: a server may repeat
// what it was sent.
type redactor struct {
	replacer *strings.Replacer
	longest  int // bytes of a form of a secret
	tokens   *recentTokens
}

// recentTokens are the last tokens that were fetched. A response may repeat one that has been renewed.
type recentTokens struct {
	mu    sync.Mutex
	forms [8][]string
	next  int
}

// maxQuote is how many bytes of a response an error quotes.
const maxQuote = 200

// newRedactor hides the user's credentials, the values of headers that may be secret, the URL's path and
// query, and these other secrets.
func newRedactor(t target, headers map[string]string, secrets ...string) redactor {
	if t.user != nil {
		secrets = append(secrets, userSecrets(t.user)...)
	}
	for name, value := range headers {
		if !MayBeSecret(name) {
			continue
		}
		// What is made of topic and key is not secret.
		secrets = append(secrets, strings.Split(placeholders.Replace(value), placeholderMark)...)
		if _, credentials, ok := strings.Cut(value, " "); ok { // Bearer ...
			secrets = append(secrets, credentials)
		}
	}
	secrets = append(secrets, PathSecrets(t.template.String())...)
	var forms []string
	for _, s := range secrets {
		forms = append(forms, formsOf(s)...)
	}
	// The longest first: one may be part of another.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	r := redactor{tokens: &recentTokens{}}
	var pairs []string
	for _, form := range forms {
		r.longest = max(r.longest, len(form))
		pairs = append(pairs, form, hidden)
	}
	r.replacer = strings.NewReplacer(pairs...)
	return r
}

// formsOf is a secret as a server may write it, or nil if it is too short.
func formsOf(secret string) []string {
	if secret = strings.TrimSpace(secret); len(secret) < minSecret {
		return nil
	}
	return []string{secret, url.QueryEscape(secret), url.PathEscape(secret), strings.Trim(strconv.Quote(secret), `"`)}
}

// addToken hides a token that was fetched.
func (r redactor) addToken(token string) {
	r.tokens.mu.Lock()
	defer r.tokens.mu.Unlock()
	r.tokens.forms[r.tokens.next] = formsOf(token)
	r.tokens.next = (r.tokens.next + 1) % len(r.tokens.forms)
}

func (r redactor) tokenForms() (forms []string) {
	r.tokens.mu.Lock()
	defer r.tokens.mu.Unlock()
	for _, token := range r.tokens.forms {
		forms = append(forms, token...)
	}
	return forms
}

// longestForm is how many bytes at the end of truncated text may be part of a secret.
func (r redactor) longestForm() int {
	longest := r.longest
	for _, form := range r.tokenForms() {
		longest = max(longest, len(form))
	}
	return longest
}

func (r redactor) redact(text string) string {
	for _, form := range r.tokenForms() {
		text = strings.ReplaceAll(text, form, hidden)
	}
	return r.replacer.Replace(text)
}

// quote makes a short line of the beginning of a response. isTruncated says that text is not the whole
// response.
func (r redactor) quote(text []byte, isTruncated bool) string {
	return r.line(string(text), isTruncated, maxQuote)
}

// line makes one line of at most maxBytes, and "...". The end of truncated text may be half a secret and is
// left out.
func (r redactor) line(text string, isTruncated bool, maxBytes int) string {
	if enough := 4*maxBytes + r.longest; len(text) > enough {
		text, isTruncated = text[:enough], true
	}
	if isTruncated {
		text = text[:max(0, len(text)-r.longestForm())]
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
