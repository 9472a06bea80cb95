package httpsink

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// target is the parsed URL.
type target struct {
	template sink.Template // without user and password
	scheme   string
	host     string // with its port
	user     *url.Userinfo
	// emptySegments are the empty segments that the template has of its own.
	emptySegments int
}

// parseURL parses Config.URL. Its errors quote no more of it than the host.
func parseURL(text string) (target, error) {
	u, err := parseTemplate(text)
	if err != nil { // url.Parse quotes the URL
		return target{}, errors.New("url is not a URL; expected https://host/path")
	}
	scheme, rest, _ := strings.Cut(text, "://")
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.Hostname() == "":
		return target{}, errors.New("url is not an HTTP URL; expected http://host/path or https://host/path")
	case strings.Contains(authority, "{"):
		return target{}, errors.New("url has a placeholder in its host; expected placeholders after the host only")
	case checkPath(text, emptySegments(text)) != nil:
		return target{}, fmt.Errorf("url of %s has . or .. in its path; expected a path without them", u.Host)
	case strings.Contains(text, "#"):
		return target{}, fmt.Errorf("url of %s has a fragment; expected nothing after #", u.Host)
	}
	at := strings.LastIndex(authority, "@") + 1
	t := target{scheme: u.Scheme, host: withPort(u), user: u.User}
	if t.template, err = sink.ParseURLTemplate(scheme + "://" + rest[at:]); err != nil {
		return target{}, fmt.Errorf("url of %s has another brace; expected only {topic} and {key}", u.Host)
	}
	t.emptySegments = emptySegments(t.template.String())
	return t, nil
}

func parseTemplate(text string) (*url.URL, error) {
	return url.Parse(strings.NewReplacer("{topic}", "x", "{key}", "x").Replace(text))
}

var (
	errDots  = errors.New("the topic or key makes . or .. a segment of the URL's path, which leads to another path; expected another value")
	errEmpty = errors.New("the topic or key makes an empty segment of the URL's path, which leads to another path; expected a value that is not empty")
)

// checkPath rejects an address in which a topic or key would lead to another path: as a segment of dots, beside a
// slash or a backslash too, or as an empty segment that the template does not have. The values are escaped in the
// address, but proxies and servers decode an address, some of them twice, before they resolve the dots.
func checkPath(address string, emptyInTemplate int) error {
	path, _, _ := strings.Cut(address, "?")
	if emptySegments(address) > emptyInTemplate {
		return sink.Permanent(errEmpty)
	}
	for decoded := path; ; {
		for segment := range strings.FieldsFuncSeq(decoded, func(c rune) bool { return c == '/' || c == '\\' }) {
			name, _, _ := strings.Cut(segment, ";") // some servers cut parameters off
			if name == "." || name == ".." {
				return sink.Permanent(errDots)
			}
		}
		next, err := url.PathUnescape(decoded)
		if err != nil || next == decoded {
			return nil
		}
		decoded = next
	}
}

func emptySegments(address string) (n int) {
	path, _, _ := strings.Cut(address, "?")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" {
			n++
		}
	}
	return n
}

// withPort is the URL's host with its port, or with the default port of the scheme.
func withPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// templatedHeader is a header whose value contains {topic} or {key}.
type templatedHeader struct {
	name     string
	template sink.Template
}

// headerTemplate reads a header's value. Braces that are not placeholders stay as they are.
func headerTemplate(value string) sink.Template {
	t, _ := sink.ParseTemplate(value, true) // accepts every value
	return t
}

// destination returns an event's URL and its templated headers, which are nil if there are none. The error
// wraps sink.ErrPermanent, and does not contain the text around the placeholders.
func (s *Sink) destination(e *outbox.Event) (url string, headers http.Header, err error) {
	if url, err = s.template.Address(e); err == nil && !s.template.Fixed() {
		err = checkPath(url, s.emptySegments)
	}
	if err != nil || len(s.templated) == 0 {
		return url, nil, err
	}
	headers = make(http.Header, len(s.templated))
	for _, h := range s.templated {
		value, err := h.template.Address(e)
		if err != nil {
			return "", nil, sink.Permanent(fmt.Errorf("the key is NULL; expected a key for the header %s", h.name))
		}
		if checkHeader(h.name, value) != nil {
			return "", nil, sink.Permanent(fmt.Errorf("the topic or key contains a line break or a control character; expected none for the header %s", h.name))
		}
		headers[h.name] = []string{value}
	}
	return url, headers, nil
}

// AddressOf implements sink.Addresser. The address is what {topic} and {key} make of the URL and the
// headers, and nothing else of them: a path, a query or a header may be secret.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	if _, _, err := s.destination(e); err != nil {
		return "", false
	}
	address, _ = s.template.Values(e)
	for _, h := range s.templated {
		values, _ := h.template.Values(e)
		address = strings.TrimPrefix(address+" "+values, " ")
	}
	return address, true
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.template.Fixed() && len(s.templated) == 0 }

// groupEvents groups the events by URL and by templated headers.
func (s *Sink) groupEvents(b *buffer.Batch) (groups []sink.Group, rejected []sink.EventError) {
	groups, rejected = sink.GroupByAddress(b, func(e *outbox.Event) (string, error) {
		address, headers, err := s.destination(e)
		for _, h := range s.templated {
			address += "\n" + headers.Get(h.name)
		}
		return address, err
	})
	for i := range groups { // a header may be secret
		groups[i].Address, _, _ = strings.Cut(groups[i].Address, "\n")
	}
	return groups, rejected
}
