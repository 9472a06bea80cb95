package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// An outage is a line and a count, which the end of the process does not lose. A log with DEBUG has all lines.
func TestRun_RepeatedLogLines(t *testing.T) {
	t.Parallel()
	const failed = `msg="delivery failed, will retry"`
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(1)
			var sent atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
				if _, err := fmt.Fprintf(w, "request %d", sent.Add(1)); err != nil { // a new text is logged at once, a few times
					t.Log(err)
				}
			}))
			t.Cleanup(server.Close)
			r := start(t, nil, "run", "-c", write(t, "log: {level: "+level+"}\n"+onePipeline("orders", db.url, server.URL+"/events")))
			testserver.Eventually(t, func() error {
				if sent.Load() < 8 {
					return errors.New("the API got fewer than 8 requests")
				}
				if level == "debug" && strings.Count(r.stderr.String(), failed) < 3 {
					return errors.New("the log has fewer than 3 lines")
				}
				return nil
			})
			r.signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			log := r.stderr.String()
			if !strings.Contains(log, failed) {
				t.Errorf("the log has no line with %s:\n%s", failed, log)
			}
			if counted := strings.Contains(log, " repeated="); counted == (level == "debug") {
				t.Errorf("with level %s, that a line is counted is %t:\n%s", level, counted, log)
			}
		})
	}
}
