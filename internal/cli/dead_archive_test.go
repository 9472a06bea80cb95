package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// Migrate creates the archive, and delivered events are copied to it.
func TestArchive(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	path := write(t, onePipeline("orders", db.url, url, "    archive: {table: kept}"))
	do(t, nil, "migrate", "-c", path).want(t, 0, "orders: ", "")
	db.insert(25)
	start(t, nil, "run", "-c", path)
	arrive(t, client, 25)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM kept WHERE topic = 'orders' AND archived_at IS NOT NULL"); n != 25 {
			return fmt.Errorf("the archive has %d events, want 25", n)
		}
		return nil
	})
	do(t, nil, "doctor", "-c", path).want(t, 0, "0 problems", "")
}

// refused, unavailable and max_bytes in the configuration reach the sink.
func TestRun_StatusesAndMaxBytes(t *testing.T) {
	t.Parallel()
	var (
		mu      sync.Mutex
		largest int
	)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		largest = max(largest, len(body))
		mu.Unlock()
		switch {
		case strings.Contains(string(body), `"topic":"bad"`):
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.Contains(string(body), `"topic":"wait"`):
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(api.Close)
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, api.URL+`/{topic}", max_bytes: 1000, refused: [503], unavailable: [422], method: "POST`,
		"    retry: {max_attempts: 1, initial: 10ms, max: 20ms}"))
	db.insert(100)
	db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('bad', '{}'), ('wait', '{}')")
	start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_events"); n != 1 {
			return fmt.Errorf("%d events are left, want the one that waits", n)
		}
		if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE topic = 'bad'"); n != 1 {
			return fmt.Errorf("%d events are dead, want the bad one", n)
		}
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE outages > 1 AND attempts = 0 AND error LIKE '%422%'"); n != 1 {
			return fmt.Errorf("%d batches wait for an outage, want the one of 422", n)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if largest > 1000 || largest < 500 {
		t.Errorf("the largest body has %d bytes", largest)
	}
}
