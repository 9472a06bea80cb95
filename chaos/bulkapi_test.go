//go:build unix

package chaos

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

// bulkAPI takes batches of events once for each Idempotency-Key. It remembers keys over its restarts.
type bulkAPI struct {
	run     *run
	address string

	mu                          sync.Mutex
	server                      *http.Server // nil while it is down
	taken                       map[string]bool
	status                      int           // of all answers to new keys, 0 while it accepts them
	delay                       time.Duration // of each answer
	requests, repeated, refused int
}

func (r *run) startAPI() *bulkAPI {
	a := &bulkAPI{run: r, taken: map[string]bool{}, address: "127.0.0.1:0"}
	r.check(a.start())
	r.t.Cleanup(func() { r.check(a.stop()) })
	return a
}

func (a *bulkAPI) start() error {
	listener, err := net.Listen("tcp", a.address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.address, a.server = listener.Addr().String(), server
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.run.violation("the API: %v", err)
		}
	}()
	return nil
}

// stop closes the listener and all connections.
func (a *bulkAPI) stop() error {
	a.mu.Lock()
	server := a.server
	a.server = nil
	a.mu.Unlock()
	if server == nil {
		return nil
	}
	return server.Close()
}

// answers makes the API answer new keys with a status, 0 for as usual, and late.
func (a *bulkAPI) answers(status int, delay time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.delay = status, delay
}

func (a *bulkAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Events []struct {
			ID      string
			Payload struct{ Good int32 }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest) // it was cut, so nobody reads this
		return
	}
	key := r.Header.Get("Idempotency-Key")
	group, err := uuid.Parse(key)
	if err != nil || len(body.Events) == 0 {
		a.run.violation("the API got %d events with the Idempotency-Key %q", len(body.Events), key)
	}
	var arrivals []arrival
	accepted := true
	for _, e := range body.Events {
		id, err := parseID(e.ID)
		if err != nil {
			a.run.violation("the API got an event %q: %v", e.ID, err)
			continue
		}
		arrivals = append(arrivals, arrival{ID: id, GroupID: group, At: time.Now().UnixMilli()})
		accepted = accepted && e.Payload.Good&a.run.crm.bit != 0
	}
	status, delay := a.take(key, arrivals, accepted)
	pause(r.Context(), delay)
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
}

// take takes the events, if it accepts all of them and does not know their key. It returns the status of the answer and
// how long to wait before it.
func (a *bulkAPI) take(key string, events []arrival, accepted bool) (status int, delay time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	switch {
	case a.taken[key]:
		a.repeated++
	case a.status != 0:
		return a.status, a.delay
	case !accepted:
		a.refused++
		return http.StatusUnprocessableEntity, a.delay
	default:
		a.taken[key] = true
		for _, e := range events {
			a.run.crm.arrive(e)
		}
	}
	return http.StatusOK, a.delay
}
