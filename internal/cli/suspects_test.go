package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
)

// deadlyAPI takes its time for every event, and kills the relay that sends it the poison one.
type deadlyAPI struct {
	url string

	mu       sync.Mutex
	relay    *relay
	deaths   int
	accepted map[string]int // by path and event
}

// apiTakes is long enough for all the workers of a relay to have sent an event before one is answered.
const apiTakes = time.Second

func newDeadlyAPI(t *testing.T, poison string) *deadlyAPI {
	api := &deadlyAPI{accepted: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Events []struct{ ID string } }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		for _, e := range body.Events {
			event := strings.TrimPrefix(r.URL.Path, "/") + " " + e.ID
			if event == poison {
				select { // others come meanwhile, if the relay sends any
				case <-time.After(apiTakes / 2):
				case <-r.Context().Done():
					return
				}
				api.mu.Lock()
				api.relay.signal(os.Kill)
				api.mu.Unlock()
				<-r.Context().Done()
				return
			}
			select {
			case <-time.After(apiTakes):
			case <-r.Context().Done():
				return
			}
			api.mu.Lock()
			api.accepted[event]++
			api.mu.Unlock()
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(server.Close)
	api.url = server.URL
	return api
}

// runUntilEmpty starts a relay again and again until all the tables are empty.
func (api *deadlyAPI) runUntilEmpty(t *testing.T, db *database, path string, tables ...string) {
	t.Helper()
	left := func() (n int) {
		for _, table := range append(tables, "outbox_batches") {
			n += db.count("SELECT count(*) FROM " + table)
		}
		return n
	}
	for ; api.deaths < 30; api.deaths++ {
		api.mu.Lock()
		api.relay = start(t, nil, "run", "-c", path)
		api.mu.Unlock()
		died := false
		wait(t, 2*time.Minute, func() error {
			select {
			case <-api.relay.ended:
				died = true
				return nil
			default:
			}
			if n := left(); n > 0 {
				return fmt.Errorf("%d rows are left in buffers and ledger", n)
			}
			return nil
		})
		if !died {
			api.relay.signal(syscall.SIGTERM)
			if code := api.relay.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			return
		}
		db.exec("UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp())") // the leases are over
	}
	t.Fatalf("%d relays died", api.deaths)
}

func wantDead(t *testing.T, db *database, want string) {
	t.Helper()
	var got string
	err := db.conn.QueryRow(t.Context(), "SELECT coalesce(string_agg(pipeline || ' ' || event_id, ', ' ORDER BY pipeline, event_id), '') FROM outbox_dead_letters").Scan(&got)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("dead letters are [%s], want [%s]", got, want)
	}
}

// Four workers send an event each, and one of these kills the relay. Its neighbours die with it, and are not guilty.
func TestSuspects_NeighboursAreNotBlamed(t *testing.T) {
	t.Parallel()
	db, api := newDatabase(t), newDeadlyAPI(t, "a 2")
	db.insert(4)
	path := write(t, onePipeline("a", db.url, api.url+"/a", "    batch_size: 1", "    workers: 4", "    lease: 1s"))
	api.runUntilEmpty(t, db, path, "outbox_events")
	wantDead(t, db, "a 2")
	for _, event := range []string{"a 1", "a 3", "a 4"} {
		if api.accepted[event] == 0 {
			t.Errorf("event %s was not delivered", event)
		}
	}
	if api.deaths != 7 {
		t.Errorf("%d relays died of the poison event; want 7: two in company, and five alone", api.deaths)
	}
}

// The poison event of one pipeline kills the process of two.
func TestSuspects_OtherPipelinesAreNotBlamed(t *testing.T) {
	t.Parallel()
	db, api := newDatabase(t), newDeadlyAPI(t, "a 1")
	path := write(t, fmt.Sprintf(`admin: {listen: ""}
pipelines:
  - {name: a, source: {url: %[1]q}, sink: {url: "%[2]s/a"}, batch_size: 1, lease: 1s}
  - {name: b, source: {url: %[1]q, table: other_events}, sink: {url: "%[2]s/b"}, batch_size: 1, lease: 1s}
`, db.url, api.url))
	do(t, nil, "migrate", "-c", path).want(t, 0, "b: applied", "")
	db.insert(1)
	db.exec("INSERT INTO other_events (topic, payload) VALUES ('orders', '{}')")
	api.runUntilEmpty(t, db, path, "outbox_events", "other_events")
	wantDead(t, db, "a 1")
	if api.accepted["b 1"] == 0 {
		t.Error("the event of the other pipeline was not delivered")
	}
}

// An event whose API is slow is in flight whenever somebody kills the relay, alone too.
func TestSuspects_KillsFromOutside(t *testing.T) {
	t.Parallel()
	arrived, answer := make(chan string), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil { // else the server does not notice that the relay died
			t.Error(err)
		}
		select {
		case arrived <- r.Header.Get("Idempotency-Key"):
		case <-r.Context().Done():
			return
		}
		select {
		case <-answer:
			w.WriteHeader(http.StatusOK)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	db := newDatabase(t)
	db.insert(1)
	path := write(t, onePipeline("a", db.url, server.URL, "    lease: 1s"))
	keys := map[string]bool{}
	for range 4 {
		r := start(t, nil, "run", "-c", path)
		keys[receive(t, arrived)] = true
		r.signal(os.Kill)
		r.exit()
		db.exec("UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp())") // the lease is over
	}
	r := start(t, nil, "run", "-c", path)
	keys[receive(t, arrived)] = true
	r.waitForLog("sending a batch alone that its last owners did not finish")
	close(answer)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"); n > 0 {
			return fmt.Errorf("%d rows are left", n)
		}
		return nil
	})
	wantDead(t, db, "")
	if len(keys) != 1 {
		t.Errorf("the event was sent with the idempotency keys %v; want one", keys)
	}
}

// A suspect cannot be settled, because the tables of its pipeline are locked. Another pipeline does not wait for that.
func TestSuspects_UnsettledHoldUpNobody(t *testing.T) {
	t.Parallel()
	arrived, answer, others := make(chan string), make(chan struct{}), make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/b" {
			others <- r.URL.Path
			return
		}
		select {
		case arrived <- r.URL.Path:
		case <-r.Context().Done():
			return
		}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	a, b := newDatabase(t), newDatabase(t)
	path := write(t, fmt.Sprintf(`admin: {listen: ""}
pipelines:
  - {name: a, source: {url: %q}, sink: {url: "%[3]s/a"}, lease: 1s}
  - {name: b, source: {url: %[2]q}, sink: {url: "%[3]s/b"}}
`, a.url, b.url, server.URL))
	a.insert(1)
	for range 2 { // then it is a suspect
		r := start(t, nil, "run", "-c", path)
		receive(t, arrived)
		r.signal(os.Kill)
		r.exit()
		a.exec("UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp())")
	}
	last := start(t, nil, "run", "-c", path)
	receive(t, arrived)
	a.exec("BEGIN; LOCK TABLE outbox_events, outbox_batches IN ACCESS EXCLUSIVE MODE")
	close(answer)
	last.waitForLog("settling a batch failed, will retry")
	b.insert(1)
	receive(t, others)
	a.exec("ROLLBACK")
}

func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing was sent")
		return ""
	}
}
