package console_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// answer is a response and its body.
type answer struct {
	*http.Response
	body string
}

// client follows no redirect and keeps no connection.
var client = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableKeepAlives: true},
}

func send(t *testing.T, r *http.Request, change ...func(*http.Request)) answer {
	t.Helper()
	for _, f := range change {
		f(r)
	}
	response, err := client.Do(r)
	testkit.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	testkit.NoError(t, err)
	testkit.NoError(t, response.Body.Close())
	return answer{response, string(body)}
}

func get(t *testing.T, url string, change ...func(*http.Request)) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	testkit.NoError(t, err)
	return send(t, r, change...)
}

func post(t *testing.T, to string, form url.Values, change ...func(*http.Request)) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(form.Encode()))
	testkit.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return send(t, r, change...)
}

// TestChange_ChosenWithoutID: a selection that names no dead letter selects none, and not all.
func TestChange_ChosenWithoutID(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.one", "1")
	s.expectDead(t, 1)
	for _, chosen := range []string{"orders ", "orders", " 1", ""} {
		form := url.Values{"action": {"discard"}, "confirmed": {"1"}, "chosen": {chosen}}
		got := post(t, s.url+"/dead/change", form, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
		testkit.Equal(t, "status of chosen="+chosen, got.StatusCode, http.StatusBadRequest)
	}
	testkit.Equal(t, "dead letters left", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"), 1)
}

// TestLogout: the cookie of a session that has ended is of no use.
func TestLogout(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	session := post(t, s.url+"/login", url.Values{"token": {token}}).Cookies()[0]
	with := func(r *http.Request) { r.AddCookie(session) }
	testkit.Equal(t, "status before", get(t, s.url+"/", with).StatusCode, http.StatusOK)
	testkit.Equal(t, "status of the logout", post(t, s.url+"/logout", nil, with).StatusCode, http.StatusSeeOther)
	if got := get(t, s.url+"/", with); got.StatusCode == http.StatusOK {
		t.Errorf("the cookie is valid after a logout: %d", got.StatusCode)
	}
}

// TestForgedRequests: another site changes nothing, and logs nobody in or out.
func TestForgedRequests(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	login := post(t, s.url+"/login", url.Values{"token": {token}})
	if login.StatusCode != http.StatusSeeOther || len(login.Cookies()) != 1 {
		t.Fatalf("the login answers %d with %v", login.StatusCode, login.Cookies())
	}
	session := login.Cookies()[0]
	if !session.HttpOnly || session.SameSite != http.SameSiteStrictMode {
		t.Errorf("the session's cookie is %v", session)
	}
	with := func(r *http.Request) { r.AddCookie(session) }
	forged := func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }
	change := url.Values{"action": {"discard"}, "pipeline": {"orders"}, "confirmed": {"1"}}
	for name, c := range map[string]struct {
		path   string
		change []func(*http.Request)
		want   int
	}{
		"ours":                       {"/dead/change", []func(*http.Request){with}, http.StatusSeeOther},
		"no session":                 {"/dead/change", nil, http.StatusUnauthorized},
		"forged":                     {"/dead/change", []func(*http.Request){with, forged}, http.StatusForbidden},
		"forged login":               {"/login", []func(*http.Request){forged}, http.StatusForbidden},
		"forged logout":              {"/logout", []func(*http.Request){with, forged}, http.StatusForbidden},
		"a session that was changed": {"/dead/change", []func(*http.Request){func(r *http.Request) { r.AddCookie(&http.Cookie{Name: session.Name, Value: "A" + session.Value}) }}, http.StatusUnauthorized},
	} {
		if got := post(t, s.url+c.path, change, c.change...); got.StatusCode != c.want {
			t.Errorf("%s: %d %s, want %d", name, got.StatusCode, got.body, c.want)
		}
	}
	for _, reason := range []string{"two\nlines", strings.Repeat("x", 501)} {
		bad := url.Values{"action": {"discard"}, "pipeline": {"orders"}, "confirmed": {"1"}, "reason": {reason}}
		if got := post(t, s.url+"/dead/change", bad, with); got.StatusCode != http.StatusBadRequest || !strings.Contains(got.body, "expected at most 500") {
			t.Errorf("the reason %.10q: %d %s", reason, got.StatusCode, got.body)
		}
	}
	if got := get(t, s.url+"/dead", with); got.StatusCode != http.StatusOK {
		t.Errorf("the session reads: %d", got.StatusCode)
	}
}
