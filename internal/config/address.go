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

// address is a URL taken apart. It may have several hosts, as clusters do, which
// net/url does not take.
type address struct {
	// hosts are in lower case and have a port, the scheme's default if need be.
	hosts []string
	user  string
	// path is decoded.
	path  string
	query url.Values
	// tail is path and query as they were written.
	tail string
}

// scheme is a kind of URL.
type scheme struct {
	prefix, driver, example, port string
	check                         func(address) error
	later                         bool
}

// parseURL takes a URL of one of the schemes. The scheme is returned beside an
// error too, if it is one of them.
func parseURL(in input, schemes []scheme) (scheme, address, error) {
	at := slices.IndexFunc(schemes, func(s scheme) bool { return strings.HasPrefix(in.text, s.prefix) })
	if at < 0 {
		return scheme{}, address{}, unknownScheme(in, schemes)
	}
	s := schemes[at]
	if s.later {
		return s, address{}, fmt.Errorf("%s is not there yet: remove it", s.prefix)
	}
	a, err := parseAddress(in, s)
	if err == nil {
		err = s.check(a)
	}
	if err != nil {
		err = fmt.Errorf("%w, %s was expected", err, s.example)
	}
	return s, a, err
}

var schemeName = regexp.MustCompile(`^[a-z][a-z0-9+.-]*$`)

func unknownScheme(in input, schemes []scheme) error {
	wrong := "is not a URL"
	switch name, _, ok := strings.Cut(in.text, "://"); {
	case ok && in.expanded():
		wrong = "has an unknown scheme"
	case ok && schemeName.MatchString(name):
		wrong = fmt.Sprintf("has the unknown scheme %q", clip(name))
	}
	var known []string
	for _, s := range schemes {
		if !s.later {
			known = append(known, s.prefix)
		}
	}
	return fmt.Errorf("%s, %s was expected", wrong, or(known))
}

// What can be wrong with a URL, worded to stand between the key's name and what
// was expected. None holds anything of the URL: a secret may be anywhere in it.
var (
	errNoHost   = errors.New("has no host")
	errHost     = errors.New("has an invalid host")
	errPort     = errors.New("has an invalid port")
	errOneHost  = errors.New("has several hosts")
	errPath     = errors.New("has an invalid path")
	errMore     = errors.New("has more than its scheme")
	errQuery    = errors.New("has a query (?)")
	errInvalid  = errors.New("is not a valid URL (special characters in a password are percent-encoded)")
	errExpanded = errors.New("is not a valid URL once expanded (an expanded value is percent-encoded in it, " +
		"so host and port need one each)")
)

// parseAddress takes scheme://[user[:password]@]host[:port][,host...][/path][?query].
func parseAddress(in input, s scheme) (address, error) {
	invalid := errInvalid
	if in.expanded() && !in.whole {
		invalid = errExpanded
	}
	rest := strings.TrimPrefix(in.text, s.prefix)
	if s.driver == "nats" { // whose users repeat the scheme for every server
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
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return address{}, errPort
		}
		a.hosts = append(a.hosts, strings.ToLower(h.Hostname())+":"+port)
	}
	return a, nil
}

// oneHost and someHosts want what they say.
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

// noPath wants none, or no more than a slash.
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
		return "", errors.New("has no absolute path (after three slashes)")
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

// databaseNumber wants a path that is one of Redis's, /0 when left out.
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
