package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// An answer that looks wrong is named in the log, with its events, and in status and doctor, also after a better one. The events count as delivered, as the status says.
func TestRun_AnswersThatLookWrong(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var good, errors atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if good.Load() {
			return
		}
		if errors.Load() {
			_, _ = w.Write([]byte(`{"errors": [{"index": 0, "message": "bad"}]}`))
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte("<!doctype html><title>Sign in</title>"))
	}))
	defer api.Close()
	path := write(t, onePipeline("orders", db.url, api.URL, "    batch_size: 1"))
	const says, errs = "the sink answers 200 with text/html: is the URL right?", `answers 200 with "errors" in the body, which no results program reads. The events count as delivered: 2 so far`
	noticed := func(says string) {
		t.Helper()
		testserver.Eventually(t, func() error {
			status, doctor := do(t, nil, "status", "-c", path), do(t, nil, "doctor", "-c", path)
			if !strings.Contains(status.stdout, says) || !strings.Contains(doctor.stdout, says) {
				return fmt.Errorf("status prints\n%s\ndoctor prints\n%s", status.stdout, doctor.stdout)
			}
			return nil
		})
	}
	delivered := func() {
		t.Helper()
		testserver.Eventually(t, func() error {
			if n := db.count(rowsLeft); n != 0 {
				return fmt.Errorf("%d rows are left", n)
			}
			return nil
		})
	}
	db.insert(3)
	r := start(t, nil, "run", "-c", path)
	r.waitForLog(says)
	noticed(says)
	delivered()
	errors.Store(true)
	db.insert(2)
	delivered()
	noticed(errs)
	good.Store(true)
	db.insert(1)
	delivered()
	noticed(says)
	noticed(errs)
	r.signal(syscall.SIGTERM)
	r.exit()
	noticed(" (ended): " + says) // somebody corrects the URL, and starts the relay again
	noticed(errs)
	r2 := start(t, nil, "run", "-c", path)
	r2.waitForLog("pipeline runs")
	noticed(says)
	r2.signal(syscall.SIGTERM)
	r2.exit()
	if !strings.Contains(r.stderr.String(), "The events count as delivered: 3 so far, first that with id ") {
		t.Errorf("the log does not say how many:\n%s", r.stderr.String())
	}
}
