package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// counted is an HTTP server that counts the arrivals of each event.
type counted struct {
	mu   sync.Mutex
	came map[string]int
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ Events []struct{ ID string } }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range body.Events {
		c.came[e.ID]++
	}
}

// expect waits until n events have arrived, each once.
func (c *counted) expect(t *testing.T, n int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for id, times := range c.came {
			if times > 1 {
				t.Fatalf("event %s arrived %d times", id, times)
			}
		}
		if len(c.came) != n {
			return fmt.Errorf("%d events arrived, want %d", len(c.came), n)
		}
		return nil
	})
}

// Batches that wait for the rate limit are released unsent on a signal, so that the process exits at once. The next
// process sends them, once.
func TestRun_SignalWhileRateLimited(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]string{"alone": "", "shared": ", shared: true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to := newDatabase(t), &counted{came: map[string]int{}}
			server := httptest.NewServer(to)
			t.Cleanup(server.Close)
			db.insert(8)
			config := func(sink string) string {
				return write(t, "shutdown_timeout: 30s\nadmin: {listen: ''}\npipelines:\n- name: orders\n  batch_size: 1\n  source: {url: '"+db.url+"'}\n  sink: {url: '"+server.URL+"'"+sink+"}\n")
			}
			r := start(t, nil, "run", "-c", config(", rate: {requests: 1, per: 1m"+rate+"}"))
			to.expect(t, 1)
			const settledAndLeased = "SELECT count(*) FROM outbox_batches WHERE state = 'leased' AND EXISTS (SELECT FROM outbox_events HAVING count(*) = 7)"
			testserver.Eventually(t, func() error {
				if n := db.count(settledAndLeased); n < 5 {
					return fmt.Errorf("%d batches are claimed, want more than the four in a Send", n)
				}
				return nil
			})
			r.signal(syscall.SIGTERM)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			to.expect(t, 1)
			if n := db.count("SELECT count(*) FROM outbox_batches WHERE state <> 'waiting' OR attempts + outages > 0 OR due_at > clock_timestamp()"); n != 0 {
				t.Errorf("%d batches were not released unchanged", n)
			}
			start(t, nil, "run", "-c", config(""))
			to.expect(t, 8)
		})
	}
}
