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
	single   topology = "redis"
	tlsAlone topology = "rediss"
	cluster  topology = "redis+cluster"
	sentinel topology = "redis+sentinel"
)

// address is what a URL says.
type address struct {
	topology       topology
	hosts          []string // host:port
	user, password string
	master         string // sentinel only
	db             int
}

// parseURL reads a URL of Config. Its errors quote nothing of it: a password that
// is not encoded may turn up in any part.
func parseURL(text string) (address, error) {
	scheme, rest, found := strings.Cut(text, "://")
	a := address{topology: topology(scheme)}
	switch a.topology {
	case single, tlsAlone, cluster, sentinel:
	default:
		found = false
	}
	if !found {
		return a, errors.New("url has to begin with redis://, rediss://, redis+cluster:// or redis+sentinel://")
	}
	// net/url takes one host, so it sees the first of several.
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, path := rest[:end], rest[end:]
	at := strings.LastIndexByte(authority, '@') + 1
	hosts := strings.Split(authority[at:], ",")
	u, err := url.Parse("redis://" + authority[:at] + hosts[0] + path)
	if err != nil {
		return a, errors.New("url is not a URL; a user or password with special characters in it has to be percent-encoded")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return a, errors.New("url has parameters behind a ? or #, none are known")
	}
	a.user = u.User.Username()
	a.password, _ = u.User.Password()
	if a.hosts, err = a.topology.withPorts(hosts); err != nil {
		return a, err
	}
	return a, a.parsePath(strings.Trim(u.Path, "/"))
}

func (t topology) withPorts(hosts []string) ([]string, error) {
	if len(hosts) > 1 && (t == single || t == tlsAlone) {
		return nil, errors.New("url has several hosts, which goes with redis+cluster:// or redis+sentinel://")
	}
	usual := "6379"
	if t == sentinel {
		usual = "26379"
	}
	full := make([]string, len(hosts))
	for i, host := range hosts {
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host {
			return nil, errors.New("url has a host that is empty or not of the form host:port")
		}
		full[i] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), usual))
	}
	return full, nil
}

// parsePath reads "DB", or "MASTER/DB" for sentinel.
func (a *address) parsePath(path string) error {
	db := path
	if a.topology == sentinel {
		a.master, db, _ = strings.Cut(path, "/")
		if a.master == "" {
			return errors.New("url lacks the master's name: redis+sentinel://host,host/MASTER was expected")
		}
	}
	if db == "" {
		return nil
	}
	var err error
	if a.db, err = strconv.Atoi(db); err != nil || a.db < 0 {
		return errors.New("url ends in what is not the number of a database")
	}
	if a.topology == cluster && a.db != 0 {
		return errors.New("url names a database, but a Redis cluster has only number 0")
	}
	return nil
}
