package config

import (
	"cmp"
	"encoding/base64"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/outboxrelay/relay/internal/redact"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// redaction is what hides the secrets of a file. Its parts are functions, because printing by reflection does not
// show what they hold. It may be zero.
type redaction struct {
	text     func(string) string // replaces the secrets
	expanded func() []string     // the expanded values that are secrets
}

// Redactor returns a function that replaces every secret in a text by ***, and every URL by its masked form:
// each value that was expanded from ${...} or that a program reads as $secret, and each value of a key that is
// for secrets. Texts of servers may repeat them. A part of a URL's path that equals one of the names shown is no secret. The function is
// safe for concurrent use.
func (c *Config) Redactor(shown ...string) func(text string) string {
	if c.redaction.text == nil || shown != nil {
		return newRedaction(c, c.redaction.values(), shown...).text
	}
	return c.redaction.text
}

func newRedaction(c *Config, expanded []string, shown ...string) redaction {
	var all []Secret
	for _, t := range c.Admin.AllTokens() {
		all = append(all, t.Token)
	}
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		all = append(all, p.Source.URL)
		for _, one := range p.PerSink() {
			all = append(all, one.Sink.secrets()...)
		}
		for _, h := range p.hooks() {
			all = append(all, h.sink.secrets()...)
		}
	}
	secrets := slices.Clone(expanded)
	masked := map[string]string{} // by URL
	for _, s := range all {
		secrets = append(secrets, s.pieces(shown)...)
		if s.masked != hidden && s.masked != s.Reveal() {
			masked[s.Reveal()] = s.masked
		}
	}
	// Longest first: one URL may begin as another does.
	urls := slices.SortedFunc(maps.Keys(masked), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var pairs []string
	for _, u := range urls {
		pairs = append(pairs, u, masked[u])
	}
	replacer, redactor := strings.NewReplacer(pairs...), redact.New(secrets, c.publicNames())
	return redaction{
		text:     func(text string) string { return redactor.Text(replacer.Replace(text)) },
		expanded: func() []string { return expanded },
	}
}

// values are the expanded secrets, for a sink that cuts the texts that it quotes.
func (r redaction) values() []string {
	if r.expanded == nil {
		return nil
	}
	return r.expanded()
}

// publicNames are the names that texts have to show: of pipelines, tables and servers.
func (c *Config) publicNames() (all []string) {
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		all = append(all, p.Name, p.Source.Schema)
		for _, table := range []string{p.Source.Table, p.Archive.Table} {
			schema, name, _ := buffer.SplitTable(table)
			all = append(all, schema, name)
		}
		var sinks []*Sink
		for _, one := range p.PerSink() {
			all = append(all, one.SinkName)
			sinks = append(sinks, &one.Sink)
		}
		for _, h := range p.hooks() {
			sinks = append(sinks, h.sink)
		}
		all = append(all, publicParts(p.Source.URL.Reveal())...)
		for _, s := range sinks {
			all = append(all, publicParts(s.URL.Reveal())...)
		}
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// publicParts are the parts of a URL that texts have to show: the hosts, and of a database its name and the user.
func publicParts(text string) []string {
	scheme, user, hosts, rest := redact.SplitURL(text)
	all := strings.FieldsFunc(hosts, func(c rune) bool { return c == ',' || c == ':' })
	if strings.HasPrefix(scheme, "http") {
		return all
	}
	if name, _, withPassword := strings.Cut(user, ":"); withPassword || strings.HasPrefix(scheme, "postgres") {
		all = append(all, name)
	}
	path, _, _ := strings.Cut(rest, "?")
	return append(all, strings.Trim(path, "/"))
}

// secrets are all secrets of the sink.
func (s *Sink) secrets() []Secret {
	h := &s.HTTP
	all := []Secret{
		s.URL, s.Redis.SentinelPassword, s.NATS.Credentials, s.NATS.NKey,
		h.Bearer, h.Basic.Password, h.OAuth2.TokenURL, h.OAuth2.ClientSecret, h.Proxy,
	}
	all = append(append(all, h.Sign.Secrets...), s.registeredSecrets...)
	for name, value := range h.Headers {
		if httpsink.MayBeSecret(name) && !h.isPlaceholder(value.Reveal()) {
			all = append(all, value)
		}
	}
	if user, password := h.Basic.User, h.Basic.Password.Reveal(); password != "" {
		all = append(all, newSecret(base64.StdEncoding.EncodeToString([]byte(user+":"+password))))
	}
	return all
}

// braced matches a name in braces. A secret of this form that was expanded is masked as such.
var braced = regexp.MustCompile(`^\{[A-Za-z_][A-Za-z0-9_.]*\}$`)

// isPlaceholder reports whether a header's value is only a placeholder, or written as one. Masked, it would be *** in each text that names it.
func (h *HTTPSink) isPlaceholder(value string) bool {
	return value == "{topic}" || value == "{key}" || slices.ContainsFunc(h.literal, func(b literalBrace) bool { return b.text == value })
}

// pieces are the parts of a secret that a server may have seen and repeat, without those of a URL's path that are shown.
func (s Secret) pieces(shown []string) []string {
	text := s.Reveal()
	if text == s.masked { // not a secret, or a URL without one
		return nil
	}
	if strings.Contains(text, "://") {
		return s.urlPieces(shown)
	}
	all := []string{text}
	if _, credentials, found := strings.Cut(text, " "); found && !braced.MatchString(credentials) { // Authorization: Bearer ...
		all = append(all, credentials)
	}
	return all
}

// urlPieces are the secrets of a URL, as written and decoded, without those of its path that are shown.
func (s Secret) urlPieces(shown []string) []string {
	var all []string
	add := func(written string, decode func(string) (string, error)) {
		all = append(all, written)
		if decoded, err := decode(written); err == nil {
			all = append(all, decoded)
		}
	}
	scheme, userinfo, _, rest := redact.SplitURL(s.Reveal())
	user, password, found := strings.Cut(userinfo, ":")
	switch {
	case found:
		add(password, url.PathUnescape)
		// A common word is replaced at least here.
		all = append(all, ":"+password+"@")
	case !strings.HasPrefix(scheme, "postgres"): // a token, as for NATS and many APIs
		add(user, url.PathUnescape)
	}
	if strings.HasPrefix(scheme, "http") {
		return append(all, slices.DeleteFunc(s.pathSecrets(), func(part string) bool { return slices.Contains(shown, part) })...)
	}
	_, query, _ := strings.Cut(rest, "?")
	for parameter := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(parameter, "="); strings.Contains(name, "password") {
			add(value, url.QueryUnescape)
		}
	}
	return all
}

// shown is what texts may show of an expanded value.
type shown int

const (
	_ shown = iota // texts show nothing of the value
	// showNames: the value is an address or an account, and texts show it unless it looks like a token.
	showNames
	// showAll: the value is a name that texts have to show.
	showAll
)

func (s scalar) showing(what shown) scalar {
	s.shown = what
	return s
}

// minExpanded is the length in bytes of the shortest expanded value that is a secret, unless its key is for secrets.
const minExpanded = 8

// hideExpansions makes the expanded values of a scalar secrets, whichever key it is.
func (r *reader) hideExpansions(s scalar, in input) {
	if s.kind != asText || s.shown == showAll {
		return
	}
	for _, value := range in.values {
		if len(value) < minExpanded || s.shown == showNames && isName(value) || s.url && isPublicPart(in, value) {
			continue
		}
		r.secrets = append(r.secrets, value)
		if s.hide && s.lines { // the content of a credentials file
			for line := range strings.Lines(value) {
				if line = strings.TrimSpace(line); len(line) >= 2*minExpanded && !strings.Contains(line, " ") {
					r.secrets = append(r.secrets, line)
				}
			}
		}
	}
}

// isPublicPart reports whether an expanded value is a public part of its URL, or the whole URL, whose parts are
// secrets of their own.
func isPublicPart(in input, value string) bool {
	return in.whole || slices.ContainsFunc(publicParts(in.text), func(part string) bool {
		return strings.Contains(part, value) || strings.Contains(part, percentEncode(value))
	})
}

// isName reports whether a value looks like a name, because each part of it is a word or a short number.
func isName(value string) bool {
	for part := range strings.FieldsFuncSeq(value, func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		letters := strings.TrimRight(part, "0123456789")
		mixedCase := letters != "" && strings.ToLower(letters[1:]) != letters[1:] && strings.ToUpper(letters) != letters
		if len(letters) > 16 || len(part)-len(letters) > 4 || mixedCase || strings.ContainsAny(letters, "0123456789") {
			return false
		}
	}
	return true
}
