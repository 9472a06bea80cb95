package cli

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// The console changes the log's level for a while: an audit line that log.level hides is written then.
func TestRun_LogLevel(t *testing.T) {
	t.Parallel()
	at := freeAddress(t)
	path := write(t, "log: {level: warn}\n"+strings.Replace(onePipeline("orders", "sqlite://"+t.TempDir()+"/orders.db", "stdout:"), `{listen: ""}`, `{listen: "`+at+`", token: letmein}`, 1))
	do(t, nil, "migrate", "-c", path).want(t, 0, "applied", "")
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if got := do(t, nil, "health", "-c", path); got.code != 0 {
			return errors.New(got.stderr)
		}
		return nil
	})
	post := func(form string) (text string, code int) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at+"/level", strings.NewReader(form))
		testkit.NoError(t, err)
		request.Header.Set("Authorization", "Bearer letmein")
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		response, err := client.Do(request)
		testkit.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		testkit.NoError(t, err)
		testkit.NoError(t, response.Body.Close())
		return string(body), response.StatusCode
	}
	if text, code := post("level=trace&confirmed=1"); code != http.StatusBadRequest || !strings.Contains(text, "expected debug, info, warn or error") {
		t.Errorf("an unknown level answers %d %s", code, text)
	}
	if text, code := post("level=debug"); code != http.StatusOK || !strings.Contains(text, "goes back to warn by itself") {
		t.Errorf("unconfirmed, the level answers %d %s", code, text)
	}
	if text, _ := get(t, "http://"+at+"/activity", "letmein"); !strings.Contains(text, "<p>warn</p>") || !strings.Contains(text, "Nothing since") {
		t.Errorf("before, the page is %s", text)
	}
	if text, code := post("level=debug&confirmed=1"); code != http.StatusSeeOther {
		t.Errorf("the level answers %d %s", code, text)
	}
	r.waitForLog(`msg=audit who="admin, console, 127.0.0.1" action="log level" pipeline="" count=0 detail=debug`)
	if text, _ := get(t, "http://"+at+"/activity", "letmein"); !strings.Contains(text, "<p>debug until <time") || !strings.Contains(text, "then warn again") {
		t.Errorf("the page is %s", text)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
}
