package access

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// TestProxy: only a trusted proxy names the person, once, and says that the browser uses TLS.
func TestProxy(t *testing.T) {
	t.Parallel()
	const header = "X-Forwarded-User"
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.0.2.7/32")}
	for name, c := range map[string]struct {
		from   string
		values []string
		person string
		trusts bool
	}{
		"a proxy":             {"10.1.2.3:99", []string{"alice"}, "alice", true},
		"version 6":           {"[fd00::1]:99", []string{"alice"}, "alice", true},
		"4 in 6":              {"[::ffff:10.1.2.3]:99", []string{"alice"}, "alice", true},
		"one address":         {"192.0.2.7:99", []string{"alice"}, "alice", true},
		"names nobody":        {"10.1.2.3:99", nil, "", true},
		"appended":            {"10.1.2.3:99", []string{"root", "alice"}, "", true},
		"odd characters":      {"10.1.2.3:99", []string{" a\u202el\ti "}, "a\uFFFDl\uFFFDi", true},
		"no text":             {"10.1.2.3:99", []string{"\xff"}, "", true},
		"a long name":         {"10.1.2.3:99", []string{strings.Repeat("ä", 500)}, strings.Repeat("ä", 100), true},
		"a client":            {"192.0.2.8:99", []string{"alice"}, "", false},
		"a neighbour":         {"11.1.2.3:99", []string{"alice"}, "", false},
		"another version 6":   {"[fe80::1%eth0]:99", []string{"alice"}, "", false},
		"no address":          {"@", []string{"alice"}, "", false},
		"an address in words": {"localhost:99", []string{"alice"}, "", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.from
		r.Header[header] = c.values
		r.Header.Set("X-Forwarded-Proto", "https")
		r.Header.Set("X-Forwarded-For", "10.0.0.1")
		r.Header.Set("Authorization", "Bearer "+anna.Secret)
		for _, with := range []bool{true, false} {
			g, want := New(anna, guest), User{Name: "anna"}
			if with {
				g.SetProxy(Proxy{trusted, header})
				want.Person = c.person
			}
			if u, ok := g.User(r); !ok || u != want {
				t.Errorf("%s, proxies %v: the user is %v, %v; want %v", name, with, u, ok, want)
			}
			if got := g.Secure(r); got != (with && c.trusts) {
				t.Errorf("%s, proxies %v: secure is %v", name, with, got)
			}
		}
		g := New(anna)
		g.SetProxy(Proxy{Trusted: trusted})
		if u, ok := g.User(r); !ok || u.Person != "" {
			t.Errorf("%s: without a header in the configuration the user is %v", name, u)
		}
		r.Header.Del("Authorization")
		if u, ok := g.User(r); ok {
			t.Errorf("%s: the header lets %v in", name, u)
		}
	}
}

func TestUser_String(t *testing.T) {
	t.Parallel()
	for want, u := range map[string]User{
		"": {}, "anna": {Name: "anna"}, "alice": {Person: "alice"}, "alice via token anna": {Name: "anna", Person: "alice", ReadOnly: true},
	} {
		if got := u.String(); got != want {
			t.Errorf("%#v is %q, want %q", u, got, want)
		}
	}
}
