package config

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/sink/httpsink"
)

// Redactor returns a function that replaces every secret of the configuration by
// ***, and a URL by what may be shown of it, for texts that others wrote: a server may echo in its error what it was
// sent. The packages that talk to servers take out what they know of; this is the
// second line. It may be called by several goroutines at once.
func (c *Config) Redactor() func(text string) string {
	var all []Secret
	all = append(all, c.Admin.Token)
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		all = append(all, p.Source.URL)
		all = append(all, p.Sink.secrets()...)
		if p.DeadLetter.Hook != nil {
			all = append(all, p.DeadLetter.Hook.secrets()...)
		}
	}
	var secrets []string
	shown := map[string]string{} // by the URL
	for _, s := range all {
		secrets = append(secrets, s.pieces()...)
		if s.shown != hidden {
			shown[s.Reveal()] = s.shown
		}
	}
	// The longest first: one may be part of another.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, s := range secrets {
		pairs = append(pairs, s, cmp.Or(shown[s], hidden))
		for _, form := range []string{url.QueryEscape(s), url.PathEscape(s), strings.Trim(strconv.Quote(s), `"`)} {
			pairs = append(pairs, form, hidden)
		}
	}
	return strings.NewReplacer(pairs...).Replace
}

// secrets are all that the sink has.
func (s *Sink) secrets() []Secret {
	h := &s.HTTP
	all := []Secret{
		s.URL, s.NATS.Credentials, s.NATS.NKey,
		h.Bearer, h.Basic.Password, h.OAuth2.TokenURL, h.OAuth2.ClientSecret, h.Sign.Secret, h.Proxy,
	}
	for name, value := range h.Headers {
		if httpsink.MayBeSecret(name) {
			all = append(all, value)
		}
	}
	return all
}

// shortest is the length below which text is not taken for a secret: replacing
// it would leave no error readable and keep nothing.
const shortest = 4

// pieces are the parts of a secret that a server may have seen and repeat.
func (s Secret) pieces() []string {
	text := s.Reveal()
	if text == s.shown { // a URL with nothing to hide, or no secret
		return nil
	}
	all := []string{text}
	if scheme, rest, isURL := strings.Cut(text, "://"); isURL {
		all = append(all, urlPieces(scheme, rest, strings.HasSuffix(s.shown, "/"+hidden))...)
	} else if _, credentials, found := strings.Cut(text, " "); found { // Authorization: Bearer ...
		all = append(all, credentials)
	}
	return slices.DeleteFunc(all, func(piece string) bool { return len(piece) < shortest })
}

// urlPieces are the secrets of a URL, as written and decoded.
func urlPieces(scheme, rest string, pathToo bool) []string {
	var all []string
	add := func(written string, decode func(string) (string, error)) {
		all = append(all, written)
		if decoded, err := decode(written); err == nil {
			all = append(all, decoded)
		}
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		user, password, found := strings.Cut(rest[:at], ":")
		switch {
		case found:
			add(password, url.PathUnescape)
		case !strings.HasPrefix(scheme, "postgres"): // a token, at NATS and many an API
			add(user, url.PathUnescape)
		}
		rest = rest[at+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	if _, path, found := strings.Cut(rest, "/"); found && pathToo {
		add(path, url.PathUnescape)
	}
	if strings.HasPrefix(scheme, "http") {
		for _, segment := range httpsink.SecretSegments(scheme + "://" + rest) {
			add(segment, url.PathUnescape)
		}
	}
	for parameter := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		if strings.HasPrefix(scheme, "http") || strings.Contains(name, "password") {
			add(value, url.QueryUnescape)
		}
	}
	return all
}
