package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Proxy is the reverse proxies in front of the endpoint. From other addresses their headers are ignored, because any client can send them.
type Proxy struct {
	// Trusted are the addresses of the proxies.
	Trusted []netip.Prefix
	// UserHeader has the name of the person who sends a request; "" if the proxies name nobody. It lets nobody in.
	UserHeader string
}

// maxPerson is how many characters of a person's name are kept.
const maxPerson = 100

// trusts reports whether a request comes from one of the proxies.
func (p Proxy) trusts(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	address = address.Unmap().WithZone("")
	return err == nil && slices.ContainsFunc(p.Trusted, func(one netip.Prefix) bool { return one.Contains(address) })
}

// person is who sends a request according to a trusted proxy. A header that is repeated is ignored: one of them may be the client's.
func (p Proxy) person(r *http.Request) string {
	values := r.Header.Values(p.UserHeader)
	if p.UserHeader == "" || len(values) != 1 || !utf8.ValidString(values[0]) || !p.trusts(r) {
		return ""
	}
	name := strings.TrimSpace(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return utf8.RuneError
		}
		return c
	}, values[0]))
	if c := []rune(name); len(c) > maxPerson {
		name = string(c[:maxPerson])
	}
	return name
}

// Secure reports whether the browser reaches the endpoint over TLS: here, or at a trusted proxy that says so.
func (g *Guard) Secure(r *http.Request) bool {
	return r.TLS != nil || g.proxy.trusts(r) && r.Header.Get("X-Forwarded-Proto") == "https"
}
