package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// The way of docs/troubleshooting.md to remove a burst of bad events: the pipeline is paused, and the relays run on.
func TestRemoveBurst(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var (
		mu       sync.Mutex
		accepted = map[string]int{}
	)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var batch struct {
			Events []struct{ ID, Topic string }
		}
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil { // a check
			return
		}
		for _, e := range batch.Events {
			if e.Topic == "crm.contact" {
				http.Error(w, "no such contact", http.StatusUnprocessableEntity)
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range batch.Events {
			accepted[e.ID]++
		}
	}))
	t.Cleanup(api.Close)
	path := write(t, fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n    batch_size: 20\n    sink: {url: %q}\n", db.url, api.URL))
	do(t, nil, "migrate", "-c", path).want(t, 0, "orders: ", "")
	// Mixed, and then bad ones alone.
	db.exec("INSERT INTO outbox_events (topic, payload) SELECT CASE WHEN n % 10 = 0 AND n <= 1000 THEN 'orders.created' ELSE 'crm.contact' END, '1' FROM generate_series(1, 3000) n")
	relays := []*relay{start(t, nil, "run", "-c", path), start(t, nil, "run", "-c", path)}
	wait(t, time.Minute, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE state = 'waiting' AND attempts > 0"); n == 0 {
			return errors.New("nothing is refused")
		}
		return nil
	})
	do(t, nil, "pause", "-c", path, "--pipeline", "orders", "--reason", "bad events").want(t, 0, "orders: paused", "")
	for _, r := range relays {
		r.waitForLog("paused: nothing is claimed or sent until relay resume")
	}
	wait(t, time.Minute, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE state = 'leased'"); n > 0 {
			return fmt.Errorf("%d batches are leased", n)
		}
		return nil
	})
	db.exec("BEGIN; CREATE TABLE bad_events AS SELECT * FROM outbox_events WHERE topic = 'crm.contact'; DELETE FROM outbox_events e USING bad_events b WHERE e.id = b.id; COMMIT")
	do(t, nil, "resume", "-c", path, "--pipeline", "orders").want(t, 0, "orders: resumed\n", "")
	wait(t, time.Minute, func() error {
		if n := db.count("SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"); n > 0 {
			return fmt.Errorf("%d events and batches are left", n)
		}
		return nil
	})
	do(t, nil, "verify", "-c", path).want(t, 0, "agree", "")
	mu.Lock()
	defer mu.Unlock()
	for id, times := range accepted {
		if times != 1 {
			t.Errorf("event %s was accepted %d times", id, times)
		}
	}
	if len(accepted) != 100 {
		t.Errorf("%d good events were accepted, want 100", len(accepted))
	}
}
