package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// hookServer is a dead-letter hook that responds with a status, at first 503.
type hookServer struct {
	url    string
	mu     sync.Mutex
	status int
	refuse string // the id of a dead letter that is answered with 400
	got    []string
}

func (h *hookServer) respond(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

func newHookServer(t *testing.T) *hookServer {
	h := &hookServer{status: http.StatusServiceUnavailable}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		var body struct {
			Events []struct {
				ID         string `json:"id"`
				DeadLetter struct {
					Error string `json:"error"`
				} `json:"dead_letter"`
			} `json:"events"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if h.status != http.StatusOK {
			w.WriteHeader(h.status)
			return
		}
		for _, e := range body.Events {
			if e.ID == h.refuse {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
		}
		for _, e := range body.Events {
			h.got = append(h.got, e.ID+" "+e.DeadLetter.Error)
		}
	}))
	t.Cleanup(s.Close)
	h.url = s.URL
	return h
}

// Nothing is replayed or discarded before the hook was notified. An unavailable hook blocks nothing, and a dead letter that
// the hook rejects for good is retried.
func TestRun_DeadLetterHook(t *testing.T) {
	t.Parallel()
	db, url, hook := newDatabase(t), testserver.SharedRedis(t), newHookServer(t)
	client := connect(t, url)
	path := write(t, onePipeline("p", db.url, url, "    retry: {initial: 10ms, max: 50ms}",
		"    dead_letter: {hook: {url: '"+hook.url+"/?key=planted-s3cret', headers: {X-Key: hook-s3cret}}}"))
	db.bury("p", [3]string{"1", "a", "first"}, [3]string{"2", "a", "second"})
	do(t, nil, "dead", "discard", "-c", path, "--all").want(t, 0, "p: discarded 0 dead letters; skipped 2: the dead-letter hook was not notified yet\n", "")
	do(t, nil, "dead", "replay", "-c", path, "--id", "2").want(t, 1, "p: replayed 0 dead letters; skipped 1", "relay: 2: the dead-letter hook was not notified yet")
	do(t, []string{"EDITOR=false"}, "dead", "replay", "-c", path, "--all", "--edit").want(t, 2, "",
		"no dead letter that can be replayed matches; the dead-letter hook was not notified of 2 yet; expected one event for --edit")
	do(t, nil, "dead", "list", "-c", path).want(t, 0, "  no        first\n", "")

	r := start(t, nil, "run", "-c", path)
	db.insert(10)
	arrive(t, client, 10)
	if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NOT NULL"); n != 0 {
		t.Errorf("an unavailable hook was notified of %d", n)
	}
	for _, text := range []string{"\np: 2 dead letters the hook was not notified of yet; replay and discard wait for that\n", "\np: dead-letter hook: ", "503"} {
		testserver.Eventually(t, func() error {
			if status := do(t, nil, "status", "-c", path); !strings.Contains(status.stdout, text) {
				return fmt.Errorf("the status does not say %q:\n%s", text, status.stdout)
			}
			return nil
		})
	}
	hook.respond(http.StatusBadRequest)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE attempts >= 2 AND events = 1"); n != 2 {
			return fmt.Errorf("%d rejected dead letters are retried", n)
		}
		return nil
	})
	hook.respond(http.StatusOK)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NOT NULL"); n != 2 {
			return fmt.Errorf("the hook was notified of %d", n)
		}
		return nil
	})
	hook.mu.Lock()
	if !slices.Contains(hook.got, "1 first") || !slices.Contains(hook.got, "2 second") {
		t.Errorf("the hook received %q", hook.got)
	}
	hook.mu.Unlock()
	do(t, nil, "dead", "list", "-c", path).want(t, 0, "  yes       first\n", "")
	do(t, nil, "dead", "discard", "-c", path, "--id", "1").want(t, 0, "p: discarded 1 dead letter\n", "")
	do(t, nil, "dead", "replay", "-c", path, "--all").want(t, 0, "p: replayed 1 dead letter\n", "")
	testserver.Eventually(t, func() error {
		if n := client.XLen(t.Context(), "a").Val(); n != 1 {
			return fmt.Errorf("%d events arrived", n)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// A dead letter that its hook rejects for good, while it accepts others, is never buried: it is retried beyond the 10 attempts of a hook, and stays visible as
// one that the hook was not notified of.
func TestRun_DeadLetterHook_RejectsOne(t *testing.T) {
	t.Parallel()
	db, url, hook := newDatabase(t), testserver.SharedRedis(t), newHookServer(t)
	path := write(t, onePipeline("p", db.url, url, "    retry: {initial: 10ms, max: 20ms}",
		"    dead_letter: {hook: {url: '"+hook.url+"'}}"))
	db.bury("p", [3]string{"1", "a", "first"}, [3]string{"2", "a", "second"}, [3]string{"3", "a", "third"})
	hook.mu.Lock()
	hook.refuse = "2"
	hook.mu.Unlock()
	hook.respond(http.StatusOK)
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		notified := db.count("SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NOT NULL")
		retried := db.count("SELECT count(*) FROM outbox_batches WHERE attempts > 12 AND events = 1")
		if notified != 2 || retried != 1 {
			return fmt.Errorf("the hook was notified of %d, and %d rejected dead letters are retried; want 2 and 1", notified, retried)
		}
		return nil
	})
	if n := db.count("SELECT count(*) FROM outbox_dead_letters"); n != 3 {
		t.Errorf("there are %d dead letters; want 3", n)
	}
	do(t, nil, "dead", "list", "-c", path).want(t, 0, "  no        second\n", "")
	hook.mu.Lock()
	hook.refuse = ""
	hook.mu.Unlock()
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NOT NULL"); n != 3 {
			return fmt.Errorf("the hook was notified of %d", n)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// TestDeadLetterHook_Refuses: a hook that refuses its dead letters is in status and doctor, with its answer, since when, and how many wait for it.
func TestDeadLetterHook_Refuses(t *testing.T) {
	t.Parallel()
	db, hook := newDatabase(t), newHookServer(t)
	hook.respond(http.StatusBadRequest)
	path := write(t, onePipeline("orders", db.url, "stdout:", "    dead_letter: {hook: {url: '"+hook.url+"'}}", "    retry: {initial: 100ms, max: 1s}"))
	db.bury("orders", [3]string{"5", "t", "refused"}, [3]string{"6", "t", "refused"})
	r := start(t, nil, "run", "-c", path)
	waitForCount(t, db, 1, "SELECT count(*) FROM outbox_relays WHERE notice LIKE 'dead_letter.hook has accepted nothing since 2%400%'")
	do(t, nil, "status", "-c", path).want(t, 0, ": dead_letter.hook has accepted nothing since 2", "")
	do(t, nil, "status", "-c", path).want(t, 0, "orders: 2 dead letters the hook was not notified of yet", "")
	testserver.Eventually(t, func() error { // between two tries nothing waits
		if got := do(t, nil, "doctor", "-q", "-c", path).stdout; !strings.Contains(got, "it takes nothing: 2 dead letters it was not notified of; ") || !strings.Contains(got, "400") {
			return fmt.Errorf("doctor says\n%s", got)
		}
		return nil
	})
	hook.respond(http.StatusOK)
	waitForCount(t, db, 0, "SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NULL")
	waitForCount(t, db, 0, "SELECT count(*) FROM outbox_relays WHERE notice <> ''")
	do(t, nil, "doctor", "-q", "-c", path).want(t, 0, "", "")
	r.signal(syscall.SIGTERM)
	r.exit()
}
