package access

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	anna  = Token{Name: "anna", Secret: "anna's secret"}
	guest = Token{Name: "guest", Secret: "guest's secret", ReadOnly: true}
)

// sessionOf logs in and returns the request of a browser after that.
func sessionOf(t *testing.T, g *Guard, secret string) *http.Request {
	t.Helper()
	u, ok := g.Login(secret)
	if !ok {
		t.Fatalf("the token is unknown")
	}
	w := httptest.NewRecorder()
	g.Begin(w, u, true)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, c := range w.Result().Cookies() {
		if !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
			t.Errorf("the cookie is %v", c)
		}
		r.AddCookie(c)
	}
	return r
}

// TestSession: it says who logged in, in every process with the same tokens, until it ends, a token changes or somebody changes it.
func TestSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(anna, guest)
		for _, token := range []Token{anna, guest} {
			r := sessionOf(t, g, token.Secret)
			for name, other := range map[string]*Guard{"this": g, "another": New(anna, guest)} {
				if u, ok := other.User(r); !ok || u != (User{Name: token.Name, ReadOnly: token.ReadOnly}) {
					t.Errorf("%s process takes %s for %v, %v", name, token.Name, u, ok)
				}
			}
			for name, other := range map[string]*Guard{
				"a token less": New(token), "a new token": New(anna, Token{Name: "guest", Secret: "new", ReadOnly: true}), "other rights": New(anna, Token{Name: "guest", Secret: guest.Secret}),
			} {
				if u, ok := other.User(r); ok {
					t.Errorf("%s: the session of %v is valid", name, u)
				}
			}
		}
		r := sessionOf(t, g, guest.Secret)
		c := r.Cookies()[0]
		admin := sessionOf(t, New(anna, Token{Name: "guest", Secret: "x"}), "x").Cookies()[0].Value
		text, _, _ := strings.Cut(admin, ".")
		_, signature, _ := strings.Cut(c.Value, ".")
		for _, value := range []string{"", ".", c.Value + "A", "A" + c.Value, text + "." + signature, admin} {
			forged := httptest.NewRequest(http.MethodGet, "/", nil)
			forged.AddCookie(&http.Cookie{Name: c.Name, Value: value})
			if u, ok := g.User(forged); ok {
				t.Errorf("%q is the session of %v", value, u)
			}
			forged.AddCookie(c) // that of another path comes first
			if _, ok := g.User(forged); !ok {
				t.Errorf("%q hides the session", value)
			}
		}
		<-time.After(SessionLasts)
		if u, ok := g.User(r); ok {
			t.Errorf("the session of %v does not end", u)
		}
	})
}

// TestSession_Ended: after a logout the cookie is of no use in this process, and no other session ends. The memory of ended sessions is bounded.
func TestSession_Ended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(anna, guest)
		ended, other := sessionOf(t, g, anna.Secret), sessionOf(t, g, anna.Secret) // in the same second
		g.End(httptest.NewRecorder(), ended)
		if u, ok := g.User(ended); ok {
			t.Errorf("the session of %v is valid after its end", u)
		}
		if _, ok := g.User(other); !ok {
			t.Error("another session has ended, too")
		}
		<-time.After(time.Second)
		for range maxEnded {
			g.End(httptest.NewRecorder(), sessionOf(t, g, anna.Secret))
		}
		last := sessionOf(t, g, anna.Secret)
		g.End(httptest.NewRecorder(), last)
		if _, ok := g.User(last); ok || len(g.ended.by) != maxEnded {
			t.Errorf("%d ended sessions are remembered; the last one is valid: %v", len(g.ended.by), ok)
		}
		<-time.After(SessionLasts)
		g.End(httptest.NewRecorder(), sessionOf(t, g, anna.Secret))
		if len(g.ended.by) != 1 {
			t.Errorf("%d ended sessions are remembered; want the only one that is not over", len(g.ended.by))
		}
	})
}

// TestProtectChange: what changes something needs a user who may, and is not asked for by another site.
func TestProtectChange(t *testing.T) {
	t.Parallel()
	answer := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	denied := Denied{Unknown: answer(401), ReadOnly: answer(403), OtherSite: answer(418)}
	request := func(change ...func(*http.Request)) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		for _, f := range change {
			f(r)
		}
		return r
	}
	bearer := func(secret string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) }
	}
	forged := func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }
	g := New(anna, guest)
	for name, c := range map[string]struct {
		request      *http.Request
		read, change int
	}{
		"nobody":        {request(), 401, 401},
		"anna":          {request(bearer(anna.Secret)), 200, 200},
		"guest":         {request(bearer(guest.Secret)), 200, 403},
		"a wrong token": {request(bearer("anna's secre")), 401, 401},
		"another site":  {request(bearer(anna.Secret), forged), 200, 418},
	} {
		for change, want := range map[bool]int{false: c.read, true: c.change} {
			h := g.Protect(answer(200), denied)
			if change {
				h = g.ProtectChange(answer(200), denied)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, c.request)
			if w.Code != want {
				t.Errorf("%s, change %v: %d, want %d", name, change, w.Code, want)
			}
		}
	}
}
