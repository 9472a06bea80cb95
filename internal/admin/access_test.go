package admin

import (
	"net/http"
	"strings"
	"testing"
)

func TestAccess_RejectsOtherSites(t *testing.T) {
	t.Parallel()
	a := newDeadFixture(t, "a", 2)
	open := New([]Pipeline{a.pipeline()}, NewMetrics("1.2.3"), Config{})
	tokened := New([]Pipeline{a.pipeline()}, NewMetrics("1.2.3"), Config{Guard: guard("t0ken")})
	const body = `{"pipeline": "a", "ids": "all", "dry_run": true}`
	bearer := header("Authorization", "Bearer t0ken")
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for name, c := range map[string]struct {
		change []func(*http.Request)
		code   int // without a token; with one where it differs
		with   int
	}{
		"a script":                {nil, 200, 200},
		"our page":                {[]func(*http.Request){header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://127.0.0.1:7070")}, 200, 200},
		"the address bar":         {[]func(*http.Request){header("Sec-Fetch-Site", "none")}, 200, 200},
		"another site":            {[]func(*http.Request){header("Sec-Fetch-Site", "cross-site")}, 403, 403},
		"another host of a site":  {[]func(*http.Request){header("Sec-Fetch-Site", "same-site")}, 403, 403},
		"an old browser":          {[]func(*http.Request){header("Origin", "https://evil.example")}, 403, 403},
		"another port":            {[]func(*http.Request){header("Origin", "http://127.0.0.1:8080")}, 403, 403},
		"a sandbox":               {[]func(*http.Request){header("Origin", "null")}, 403, 403},
		"a form":                  {[]func(*http.Request){header("Content-Type", "text/plain")}, 415, 415},
		"another form":            {[]func(*http.Request){header("Content-Type", "application/x-www-form-urlencoded")}, 415, 415},
		"no content type":         {[]func(*http.Request){func(r *http.Request) { r.Header.Del("Content-Type") }}, 415, 415},
		"a charset":               {[]func(*http.Request){header("Content-Type", "application/json; charset=utf-8")}, 200, 200},
		"a name that is rebound":  {[]func(*http.Request){host("evil.example:7070"), header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://evil.example:7070")}, 403, 200},
		"localhost":               {[]func(*http.Request){host("localhost:7070")}, 200, 200},
		"localhost, no port":      {[]func(*http.Request){host("LOCALHOST")}, 200, 200},
		"a name of localhost's":   {[]func(*http.Request){host("relay.localhost:7070")}, 200, 200},
		"not of localhost's":      {[]func(*http.Request){host("localhost.evil.example")}, 403, 200},
		"an address of version 6": {[]func(*http.Request){host("[::1]:7070")}, 200, 200},
		"no host":                 {[]func(*http.Request){host("")}, 403, 200},
	} {
		for _, path := range []string{"/api/dead/replay", "/api/dead/discard"} {
			if w := post(t, open, path, body, c.change...); w.Code != c.code {
				t.Errorf("%s: without a token %s answers %d %s, want %d", name, path, w.Code, w.Body, c.code)
			}
			if w := post(t, tokened, path, body, append(c.change, bearer)...); w.Code != c.with {
				t.Errorf("%s: with the token %s answers %d %s, want %d", name, path, w.Code, w.Body, c.with)
			}
			if w := post(t, tokened, path, body, c.change...); w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden {
				t.Errorf("%s: without the token that is set %s answers %d", name, path, w.Code)
			}
		}
	}
	for _, path := range []string{"/api/status", "/api/dead"} {
		if w := get(t, open, path, host("evil.example:7070")); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "Refused") {
			t.Errorf("%s responds to a rebound name with %d %s", path, w.Code, w.Body)
		}
		if w := get(t, tokened, path); w.Code != http.StatusUnauthorized {
			t.Errorf("%s answers %d without the token", path, w.Code)
		}
	}
	for _, path := range []string{"/livez", "/metrics"} { // probes come by any name
		if w := get(t, open, path, host("relay.shop.svc:7070")); w.Code != http.StatusOK {
			t.Errorf("%s answers %d", path, w.Code)
		}
	}
}
