package config

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxrelay/relay/sink/httpsink"
)

// Redactor returns a function that replaces every secret in a text by ***, and every URL by its masked form.
// It is the second line of defence, for texts of servers, which may echo what they received: sinks and
// buffers redact their own errors. The function is safe for concurrent use.
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
	masked := map[string]string{} // by URL
	for _, s := range all {
		secrets = append(secrets, s.pieces()...)
		if s.masked != hidden {
			masked[s.Reveal()] = s.masked
		}
	}
	// Longest first: a secret may be part of another.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, s := range secrets {
		pairs = append(pairs, s, cmp.Or(masked[s], hidden))
		for _, form := range []string{url.QueryEscape(s), url.PathEscape(s), strings.Trim(strconv.Quote(s), `"`)} {
			pairs = append(pairs, form, hidden)
		}
	}
	return strings.NewReplacer(pairs...).Replace
}

// secrets are all secrets of the sink.
func (s *Sink) secrets() []Secret {
	h := &s.HTTP
	all := []Secret{
		s.URL, s.Redis.SentinelPassword, s.NATS.Credentials, s.NATS.NKey,
		h.Bearer, h.Basic.Password, h.OAuth2.TokenURL, h.OAuth2.ClientSecret, h.Sign.Secret, h.Proxy,
	}
	for name, value := range h.Headers {
		if httpsink.MayBeSecret(name) {
			all = append(all, value)
		}
	}
	return all
}

// minSecret is the length of the shortest secret that is replaced. Replacing shorter ones
// would make errors unreadable and protect nothing.
const minSecret = 4

// pieces are the parts of a secret that a server may have seen and repeat.
func (s Secret) pieces() []string {
	text := s.Reveal()
	if text == s.masked { // not a secret, or a URL without one
		return nil
	}
	all := []string{text}
	if scheme, rest, isURL := strings.Cut(text, "://"); isURL {
		all = append(all, urlPieces(scheme, rest)...)
	} else if _, credentials, found := strings.Cut(text, " "); found { // Authorization: Bearer ...
		all = append(all, credentials)
	}
	return slices.DeleteFunc(all, func(piece string) bool { return len(piece) < minSecret })
}

// urlPieces are the secrets of a URL, as written and decoded.
func urlPieces(scheme, rest string) []string {
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
		case !strings.HasPrefix(scheme, "postgres"): // a token, as for NATS and many APIs
			add(user, url.PathUnescape)
		}
		rest = rest[at+1:]
	}
	if strings.HasPrefix(scheme, "http") {
		return append(all, httpsink.PathSecrets(scheme+"://"+rest)...)
	}
	_, query, _ := strings.Cut(rest, "?")
	for parameter := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(parameter, "="); strings.Contains(name, "password") {
			add(value, url.QueryUnescape)
		}
	}
	return all
}
