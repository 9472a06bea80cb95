package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// TestOutdated: a secret in a file is replaced while a relay runs. What it says of the sink, or the database, that refuses the old one names the
// file, and not its content.
func TestOutdated(t *testing.T) {
	t.Parallel()
	const (
		before, after = "first-t0ken-0123456789", "second-t0ken-0123456789"
		change        = " changed since the relay started at "
		fix           = "; restart the relay to use the new content"
	)
	files := func(t *testing.T) (token string, replace func(text string)) {
		t.Helper()
		token = filepath.Join(t.TempDir(), "token")
		replace = func(text string) {
			t.Helper()
			if err := os.WriteFile(token, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return token, replace
	}
	says := func(t *testing.T, where, text, want string) {
		t.Helper()
		if !strings.Contains(text, want) || !strings.Contains(text, fix) {
			t.Errorf("%s does not say %q:\n%s", where, want, text)
		}
		for _, secret := range []string{before, after} {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %s:\n%s", where, secret, text)
			}
		}
	}
	t.Run("Sink", func(t *testing.T) {
		t.Parallel()
		var both atomic.Bool
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.Header.Get("Authorization") != "Bearer "+after && !both.Load() {
				w.WriteHeader(http.StatusUnauthorized)
			}
		}))
		t.Cleanup(api.Close)
		db := newDatabase(t)
		token, replace := files(t)
		replace(before)
		path := write(t, "admin: {listen: '127.0.0.1:0', token: s3cret-admin}\npipelines:\n  - name: orders\n    source: {url: '"+db.url+"'}\n    sink: {url: '"+api.URL+"', bearer: '${file:"+token+"}'}\n")
		db.insert(3)
		r := start(t, nil, "run", "-c", path)
		waitForCount(t, db, 1, "SELECT count(*) FROM outbox_relays WHERE not_ready LIKE 'sink: %401%'")
		if log := r.stderr.String(); strings.Contains(log, change) {
			t.Errorf("nothing has changed, and the log is\n%s", log)
		}
		replace(after)
		r.waitForLog(token + change)
		waitForCount(t, db, 1, "SELECT count(*) FROM outbox_relays WHERE notice LIKE '"+token+change+"%'")
		says(t, "the log", r.stderr.String(), token+change)
		says(t, "status", do(t, nil, "status", "-c", path).stdout, ": "+token+change)
		says(t, "doctor", do(t, nil, "doctor", "-c", path).stdout, ": "+token+change)
		says(t, "/readyz", adminPage(t, r, "/readyz", "s3cret-admin"), "; "+token+change)
		if anybody := adminPage(t, r, "/readyz", ""); strings.Contains(anybody, token) {
			t.Errorf("without the token /readyz says\n%s", anybody)
		}
		both.Store(true) // it is ready, and still has the old one
		waitForCount(t, db, 1, "SELECT count(*) FROM outbox_relays WHERE not_ready = '' AND delivered = 3")
		says(t, "status", do(t, nil, "status", "-c", path).stdout, ": "+token+change)
		r.signal(os.Interrupt)
		r.exit()
		both.Store(false)
		db.insert(3)
		start(t, nil, "run", "-c", path)
		waitForCount(t, db, 0, "SELECT count(*) FROM outbox_events")
	})
	t.Run("Database", func(t *testing.T) {
		t.Parallel()
		password, replace := files(t)
		replace(before)
		path := write(t, "admin: {listen: '127.0.0.1:0', token: s3cret-admin}\npipelines:\n  - name: orders\n    source: {url: 'postgres://app:${file:"+password+"}@127.0.0.1:1/app'}\n    sink: {url: 'stdout:'}\n")
		r := start(t, nil, "run", "-c", path)
		r.waitForLog("waiting for the database")
		replace(after)
		r.waitForLog(password + change)
		says(t, "the log", r.stderr.String(), password+change)
		says(t, "/readyz", adminPage(t, r, "/readyz", "s3cret-admin"), "; "+password+change)
	})
}

// adminPage reads a page of the endpoint of a relay that runs.
func adminPage(t *testing.T, r *relay, path, token string) (text string) {
	t.Helper()
	testserver.Eventually(t, func() error {
		_, address, ok := strings.Cut(r.stderr.String(), "url=http://")
		if !ok {
			return fmt.Errorf("no endpoint yet: %s", r.stderr.String())
		}
		address, _, _ = strings.Cut(address, "/")
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		text = string(body)
		return err
	})
	return text
}
