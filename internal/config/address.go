package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// address is a parsed URL. It may have several hosts, which net/url rejects.
type address struct {
	// hosts are in lower case, each with a port (the scheme's default if it has none).
	hosts []string
	user  string
	// path is percent-decoded.
	path  string
	query url.Values
	// tail is the path and query as written.
	tail string
}

// scheme is a supported kind of URL.
type scheme struct {
	prefix, driver, example, port string
	check                         func(address) error
	planned                       bool
}

// parseURL parses a URL of one of the schemes. It returns a known scheme even with an error.
func parseURL(in input, schemes []scheme) (scheme, address, error) {
	at := slices.IndexFunc(schemes, func(s scheme) bool { return strings.HasPrefix(in.text, s.prefix) })
	if at < 0 {
		return scheme{}, address{}, unknownScheme(in, schemes)
	}
	s := schemes[at]
	if s.planned {
		return s, address{}, fmt.Errorf("has the scheme %s, which is not supported yet; expected %s", s.prefix, or(prefixes(schemes)))
	}
	a, err := parseAddress(in, s)
	if err == nil {
		err = s.check(a)
	}
	if err != nil {
		err = fmt.Errorf("%w; expected %s", err, s.example)
	}
	return s, a, err
}

var schemeName = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)

var (
	shellVariable = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*$`)
	// hostAndMore is a host with a port or a path.
	hostAndMore = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]+|/|:[0-9]+/.*|/.*)$`)
)

func unknownScheme(in input, schemes []scheme) error {
	wrong := "is not a URL"
	switch name, _, ok := strings.Cut(in.text, "://"); {
	case ok && in.expanded():
		wrong = "has an unknown scheme"
	case ok && schemeName.MatchString(name):
		wrong = fmt.Sprintf("has the unknown scheme %q", clip(name))
	case !in.expanded() && shellVariable.MatchString(in.text):
		wrong = "is not a URL (an environment variable is written ${NAME})"
	case !ok && !in.expanded() && hostAndMore.MatchString(in.text) && slices.ContainsFunc(schemes, func(s scheme) bool { return s.prefix == "http://" }):
		wrong = "is not a URL (that of an API begins with http:// or https://)"
	}
	return fmt.Errorf("%s; expected %s", wrong, or(prefixes(schemes)))
}

func prefixes(schemes []scheme) (all []string) {
	for _, s := range schemes {
		if !s.planned {
			all = append(all, s.prefix)
		}
	}
	return all
}

// The errors of a URL, to stand between the key and "; expected ...". They quote
// nothing of the URL, because any part may be secret.
var (
	errNoHost   = errors.New("has no host")
	errHost     = errors.New("has an invalid host")
	errPort     = errors.New("has an invalid port")
	errOneHost  = errors.New("has several hosts")
	errPath     = errors.New("has an invalid path")
	errMore     = errors.New("has more than a scheme")
	errQuery    = errors.New("has a query (?)")
	errInvalid  = errors.New("is not a valid URL (percent-encode special characters in a password)")
	errExpanded = errors.New("is not a valid URL after expansion (an expanded value is percent-encoded, " +
		"so host and port each need their own)")
)

// parseAddress takes scheme://[user[:password]@]host[:port][,host...][/path][?query].
func parseAddress(in input, s scheme) (address, error) {
	invalid := errInvalid
	if in.expanded() && !in.whole {
		invalid = errExpanded
	}
	rest := strings.TrimPrefix(in.text, s.prefix)
	if s.driver == "nats" { // NATS clients repeat the scheme for every server
		rest = strings.ReplaceAll(rest, ","+s.prefix, ",")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	hosts := authority[strings.LastIndex(authority, "@")+1:]
	u, err := url.Parse("x://" + strings.TrimSuffix(authority, hosts) + "host" + tail)
	if err != nil || u.Fragment != "" {
		return address{}, invalid
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return address{}, invalid
	}
	a := address{user: u.User.Username(), path: u.Path, query: query, tail: tail}
	if hosts == "" {
		return a, nil
	}
	for host := range strings.SplitSeq(hosts, ",") {
		h, err := url.Parse("x://" + host)
		switch {
		case err != nil && (strings.Contains(host, "%") || strings.Contains(tail, "@")):
			return address{}, invalid
		case err != nil || h.Host != host || h.Hostname() == "" || strings.ContainsAny(h.Hostname(), "{}"):
			return address{}, errHost
		}
		port := h.Port()
		if port == "" {
			port = s.port
		}
		if port == "" { // a registered scheme has no default
			a.hosts = append(a.hosts, strings.ToLower(h.Hostname()))
			continue
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return address{}, errPort
		}
		a.hosts = append(a.hosts, strings.ToLower(h.Hostname())+":"+port)
	}
	return a, nil
}

// oneHost requires exactly one host, someHosts at least one.
func (a address) oneHost() error {
	if len(a.hosts) > 1 {
		return errOneHost
	}
	return a.someHosts()
}

func (a address) someHosts() error {
	if len(a.hosts) == 0 {
		return errNoHost
	}
	return nil
}

// noPath allows no path except "/".
func (a address) noPath() error {
	if a.path != "" && a.path != "/" {
		return errPath
	}
	return nil
}

func (a address) noQuery() error {
	if strings.Contains(a.tail, "?") {
		return errQuery
	}
	return nil
}

// filePath is the absolute path in scheme:///path.
func (a address) filePath() (string, error) {
	switch {
	case len(a.hosts) > 0:
		return "", errors.New("has no absolute path (three slashes)")
	case !filepath.IsAbs(a.path) || strings.HasSuffix(a.path, "/") || strings.ContainsAny(a.path, "{}\x00"):
		return "", errPath
	}
	if err := a.noQuery(); err != nil {
		return "", err
	}
	return filepath.Clean(a.path), nil
}

func (a address) isEmpty() error {
	if len(a.hosts) > 0 || a.tail != "" {
		return errMore
	}
	return nil
}

func (a address) isFile() error { _, err := a.filePath(); return err }

// databaseNumber requires an empty path or the number of a Redis database.
func databaseNumber(path string) error {
	number := strings.TrimPrefix(path, "/")
	if number == "" {
		return nil
	}
	if _, err := strconv.ParseUint(number, 10, 16); err != nil {
		return errPath
	}
	return nil
}
