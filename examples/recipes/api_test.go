package recipes_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// fault is what a request meets on a slow day.
type fault int

const (
	busy      fault = iota + 1 // 429
	down                       // 503
	cutBefore                  // the connection is cut before the request is read
	cutAfter                   // it is accepted, and the connection is cut in the answer
	empty                      // 200 and no answer to anything, from something in between
	hang                       // it is accepted, and no answer comes until the relay gives up
)

// slowDay is as much of it as a test needs, and it ends.
var slowDay = []fault{busy, cutAfter, down, busy, cutBefore}

// api is what the APIs' servers have in common: a slow day, and a memory of what was
// accepted under which Idempotency-Key. What an API does is answer's.
type api struct {
	*httptest.Server
	t *testing.T
	// answer answers a request that met no fault. It is called with the lock held.
	answer func(w http.ResponseWriter, r *http.Request, body []byte)
	// says are what the API answers when it is busy, and when it is down.
	says map[fault]func(http.ResponseWriter)

	mu       sync.Mutex
	faults   []fault         // still to come
	met      map[string]bool // the keys that met one: none meets two
	accepted map[string]map[string]int
}

func newAPI(t *testing.T, faults []fault, answer func(http.ResponseWriter, *http.Request, []byte), says map[fault]func(http.ResponseWriter)) *api {
	a := &api{
		t: t, answer: answer, says: says, faults: faults,
		met: map[string]bool{}, accepted: map[string]map[string]int{},
	}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := a.next(r.Header.Get("Idempotency-Key"))
	if f == cutBefore {
		panic(http.ErrAbortHandler)
	}
	body, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch f {
	case busy, down, empty:
		a.says[f](w)
	case hang:
		a.locked(httptest.NewRecorder(), r, body)
		<-r.Context().Done()
	case cutAfter:
		a.locked(httptest.NewRecorder(), r, body)
		a.cut(w)
	default:
		a.locked(w, r, body)
	}
}

// cut ends the connection behind the answer's first bytes. Before them, net/http would
// send the request again by itself, and the relay not know.
func (a *api) cut(w http.ResponseWriter) {
	conn, wire, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_, err = wire.WriteString("HTTP/1.1 2")
	}
	if err := errors.Join(err, wire.Flush(), conn.Close()); err != nil {
		a.t.Error(err)
	}
}

func (a *api) locked(w http.ResponseWriter, r *http.Request, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer(w, r, body)
}

// next is what a request meets, 0 for nothing.
func (a *api) next(key string) fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	if key == "" || len(a.faults) == 0 || a.met[key] { // "": a token is asked for
		return 0
	}
	a.met[key] = true
	f := a.faults[0]
	a.faults = a.faults[1:]
	return f
}

// read returns a request's body as it was before it was compressed.
func read(r *http.Request) ([]byte, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return io.ReadAll(r.Body)
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// accept notes that an event was accepted with a request.
func (a *api) accept(r *http.Request, id string) {
	if a.accepted[id] == nil {
		a.accepted[id] = map[string]int{}
	}
	a.accepted[id][r.Header.Get("Idempotency-Key")]++
}

// say answers with a status and JSON.
func say(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		panic(err)
	}
}

// later answers with a status and JSON, and with a time to come back after.
func later(status int, body any) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "1")
		say(w, status, body)
	}
}

// want holds what became of the events against what had to: each good one accepted, and
// under one Idempotency-Key; each bad one, and no other, dead in the API's own words;
// and the whole slow day over.
func (a *api) want(good []string, bad, dead map[string]string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.faults) > 0 {
		a.t.Errorf("%d faults of the slow day never came", len(a.faults))
	}
	for _, id := range good {
		if n := len(a.accepted[id]); n != 1 {
			a.t.Errorf("event %s was accepted under %d Idempotency-Keys", id, n)
		}
	}
	for id := range a.accepted {
		if _, ok := bad[id]; ok {
			a.t.Errorf("event %s is bad and was accepted", id)
		}
	}
	if len(a.accepted) > len(good) {
		a.t.Errorf("%d events were accepted, %d were good", len(a.accepted), len(good))
	}
	sameDead(a.t, bad, dead)
}

// sameDead wants the dead letters to be the bad events, in words that contain theirs.
func sameDead(t *testing.T, bad, dead map[string]string) {
	t.Helper()
	for id, words := range bad {
		if got, ok := dead[id]; !ok {
			t.Errorf("event %s is not dead", id)
		} else if !strings.Contains(got, words) {
			t.Errorf("event %s died of %q, %q was expected in it", id, got, words)
		}
	}
	for id, words := range dead {
		if _, ok := bad[id]; !ok {
			t.Errorf("event %s is dead: %s", id, words)
		}
	}
}

// decode reads JSON, and numbers as they are.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("something stands behind the JSON")
	}
	return nil
}
