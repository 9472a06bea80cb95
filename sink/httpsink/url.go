package httpsink

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/outboxrelay/relay/sink"
)

// target is the parsed URL.
type target struct {
	template sink.Template // without user and password
	scheme   string
	host     string // with its port
	user     *url.Userinfo
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
	case checkPath(text) != nil:
		return target{}, fmt.Errorf("url of %s has . or .. in its path; expected a path without them", u.Host)
	case strings.Contains(text, "#"):
		return target{}, fmt.Errorf("url of %s has a fragment; expected nothing after #", u.Host)
	}
	at := strings.LastIndex(authority, "@") + 1
	t := target{scheme: u.Scheme, host: withPort(u), user: u.User}
	if t.template, err = sink.ParseURLTemplate(scheme + "://" + rest[at:]); err != nil {
		return target{}, fmt.Errorf("url of %s has another brace; expected only {topic} and {key}", u.Host)
	}
	return t, nil
}

func parseTemplate(text string) (*url.URL, error) {
	return url.Parse(strings.NewReplacer("{topic}", "x", "{key}", "x").Replace(text))
}

// checkPath rejects an address in which a topic or key of ".." would lead to another path.
func checkPath(address string) error {
	path, _, _ := strings.Cut(address, "?")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return sink.Permanent(fmt.Errorf("the topic or key makes %q a segment of the URL's path; expected another value", segment))
		}
	}
	return nil
}

// withPort is the URL's host with its port, or with the default port of the scheme.
func withPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
