package redissink

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

type topology string

const (
	single    topology = "redis"
	tlsSingle topology = "rediss"
	cluster   topology = "redis+cluster"
	sentinel  topology = "redis+sentinel"
)

// address is a parsed URL.
type address struct {
	topology       topology
	hosts          []string // host:port
	user, password string
	master         string // sentinel only
	db             int
}

// parseURL parses Config.URL. Its errors quote nothing of it, because any part may contain
// a password that is not encoded.
func parseURL(text string) (address, error) {
	scheme, rest, found := strings.Cut(text, "://")
	a := address{topology: topology(scheme)}
	switch a.topology {
	case single, tlsSingle, cluster, sentinel:
	default:
		found = false
	}
	if !found {
		return a, errors.New("url has an unknown scheme; expected redis://, rediss://, redis+cluster:// or redis+sentinel://")
	}
	// net/url parses one host, so it gets the first of several.
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, path := rest[:end], rest[end:]
	at := strings.LastIndexByte(authority, '@') + 1
	hosts := strings.Split(authority[at:], ",")
	u, err := url.Parse("redis://" + authority[:at] + hosts[0] + path)
	if err != nil {
		return a, errors.New("url is not a URL; percent-encode special characters in user and password")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return a, errors.New("url has parameters after ? or #; expected none")
	}
	a.user = u.User.Username()
	a.password, _ = u.User.Password()
	if a.hosts, err = a.topology.withPorts(hosts); err != nil {
		return a, err
	}
	return a, a.parsePath(strings.Trim(u.Path, "/"))
}

func (t topology) withPorts(hosts []string) ([]string, error) {
	if len(hosts) > 1 && (t == single || t == tlsSingle) {
		return nil, errors.New("url has several hosts; expected one, or the scheme redis+cluster:// or redis+sentinel://")
	}
	port := "6379"
	if t == sentinel {
		port = "26379"
	}
	full := make([]string, len(hosts))
	for i, host := range hosts {
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host {
			return nil, errors.New("url has an invalid host; expected host or host:port")
		}
		full[i] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	}
	return full, nil
}

// parsePath parses "DB", or "MASTER/DB" for sentinel.
func (a *address) parsePath(path string) error {
	db := path
	if a.topology == sentinel {
		a.master, db, _ = strings.Cut(path, "/")
		if a.master == "" {
			return errors.New("url has no master name; expected redis+sentinel://host,host/MASTER")
		}
	}
	if db == "" {
		return nil
	}
	var err error
	if a.db, err = strconv.Atoi(db); err != nil || a.db < 0 {
		return errors.New("url has an invalid database; expected a number")
	}
	if a.topology == cluster && a.db != 0 {
		return errors.New("url names a database; expected none, because a Redis cluster has only database 0")
	}
	return nil
}
