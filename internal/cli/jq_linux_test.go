package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// receipts counts how often each event arrived.
type receipts struct {
	mu  sync.Mutex
	of  map[string]int
	url string
}

func serveReceipts(t *testing.T) *receipts {
	t.Helper()
	r := &receipts{of: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var events []struct{ ID string }
		if err := json.NewDecoder(req.Body).Decode(&events); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, e := range events {
			r.of[e.ID]++
		}
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *receipts) wantOnce(t *testing.T, events int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, n := range r.of {
		if n != 1 {
			t.Errorf("event %s arrived %d times", id, n)
		}
	}
	if len(r.of) != events {
		t.Errorf("%d events arrived; expected %d", len(r.of), events)
	}
}

// children returns the processes that run the relay's programs.
func (r *relay) children() (pids []int) {
	r.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		name, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); strings.HasSuffix(name, "(relay-jq") && fields[1] == strconv.Itoa(r.cmd.Process.Pid) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				r.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestPrograms_HostileEvent has one event for which one step of the program takes a minute.
func TestPrograms_HostileEvent(t *testing.T) {
	t.Parallel()
	const events = 1000
	db, api := newDatabase(t), serveReceipts(t)
	db.exec(fmt.Sprintf(`INSERT INTO outbox_events (topic, payload)
		SELECT 't', CASE WHEN n = 321 THEN (SELECT json_build_object('a', json_agg(i), 'b', json_agg(i + 200000)) FROM generate_series(1, 200000) i) ELSE '{}' END
		FROM generate_series(1, %d) n`, events))
	r := start(t, nil, "run", "-c", write(t, fmt.Sprintf(`admin: {listen: ""}
pipelines:
  - name: orders
    source: {url: %q}
    sink: {url: %q, request: '[.events[] | {id, n: ((.payload.a // []) - (.payload.b // []) | length)}]'}
    retry: {max_attempts: 2, initial: 10ms, max: 10ms}
`, db.url, api.url)))
	wait(t, 5*time.Minute, func() error {
		if n := db.count(rowsLeft); n != 0 {
			return fmt.Errorf("%d rows are left", n)
		}
		return nil
	})
	api.wantOnce(t, events-1)
	if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE attempts = 2 AND error LIKE '%the program did not end within 5s%'"); n != 1 {
		t.Errorf("%d dead letters with the reason and two attempts; expected one", n)
	}
	if peak := r.peakMemory(); peak > 256<<20 {
		t.Errorf("the relay took %d MiB of memory", peak>>20)
	}
	r.signal(os.Interrupt)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// TestPrograms_ProcessKilled kills each process of a program that it sees, and then ends the relay.
func TestPrograms_ProcessKilled(t *testing.T) {
	t.Parallel()
	const (
		events = 20_000
		kills  = 10
	)
	db, api := newDatabase(t), serveReceipts(t)
	db.exec(fmt.Sprintf("INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, %d)", events))
	r := start(t, nil, "run", "-c", write(t, fmt.Sprintf(`admin: {listen: ""}
pipelines:
  - name: orders
    source: {url: %q}
    sink: {url: %q, request: 'last(range(3e5)) as $slow | [.events[] | {id}]'}
    retry: {initial: 10ms, max: 10ms}
`, db.url, api.url)))
	killed := map[int]bool{}
	wait(t, 5*time.Minute, func() error {
		for _, pid := range r.children() {
			if len(killed) < kills {
				killed[pid] = true
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		if n := db.count(rowsLeft); n != 0 {
			return fmt.Errorf("%d rows are left", n)
		}
		return nil
	})
	if len(killed) == 0 {
		t.Error("no process was seen")
	}
	children := r.children()
	if len(children) == 0 {
		t.Error("no process waits for another run")
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	api.wantOnce(t, events)
	if n := db.count("SELECT count(*) FROM outbox_dead_letters"); n != 0 {
		t.Errorf("%d events became dead letters", n)
	}
	wait(t, time.Minute, func() error {
		for _, pid := range children {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(text), ") Z ") {
				return fmt.Errorf("process %d is still there", pid)
			}
		}
		return nil
	})
}
