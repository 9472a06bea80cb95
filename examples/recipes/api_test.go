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

// fault is one fault of the API.
type fault int

const (
	busy      fault = iota + 1 // 429
	down                       // 503
	cutBefore                  // the connection is cut before the request is read
	cutAfter                   // it is accepted, and the connection is cut in the answer
	empty                      // 200 and no answer to anything, from something in between
	hang                       // it is accepted, and no answer comes until the relay gives up
)

// slowDay is a list of faults that a test needs.
var slowDay = []fault{busy, cutAfter, down, busy, cutBefore}

// api is the common part of the APIs' servers: their faults, and a record of the events
// that were accepted under each Idempotency-Key. answer is specific to the API.
type api struct {
	*httptest.Server
	t *testing.T
	// answer answers a request without a fault. It is called with the lock held.
	answer func(w http.ResponseWriter, r *http.Request, body []byte)
	// says are the answers of a busy API and of one that is down.
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

// cut closes the connection after the first bytes of the answer. Before them, net/http
// would repeat the request by itself, without the relay's knowledge.
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

// next returns the fault of the next request, 0 for none.
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

// read returns the uncompressed body of a request.
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

// accept records that an event was accepted with a request.
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

// later answers with a status, JSON and Retry-After.
func later(status int, body any) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "1")
		say(w, status, body)
	}
}

// want checks the result: each good event was accepted under one Idempotency-Key, each
// bad one and no other is a dead letter in the API's own words, and every fault occurred.
func (a *api) want(good []string, bad, dead map[string]string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.faults) > 0 {
		a.t.Errorf("%d faults did not occur", len(a.faults))
	}
	for _, id := range good {
		if n := len(a.accepted[id]); n != 1 {
			a.t.Errorf("event %s was accepted under %d Idempotency-Keys", id, n)
		}
	}
	for id := range a.accepted {
		if _, ok := bad[id]; ok {
			a.t.Errorf("event %s is bad but was accepted", id)
		}
	}
	if len(a.accepted) > len(good) {
		a.t.Errorf("%d events were accepted, %d were good", len(a.accepted), len(good))
	}
	sameDead(a.t, bad, dead)
}

// sameDead checks that exactly the bad events are dead letters, with errors that contain
// the expected words.
func sameDead(t *testing.T, bad, dead map[string]string) {
	t.Helper()
	for id, words := range bad {
		if got, ok := dead[id]; !ok {
			t.Errorf("event %s is not a dead letter", id)
		} else if !strings.Contains(got, words) {
			t.Errorf("event %s has the error %q; expected %q in it", id, got, words)
		}
	}
	for id, words := range dead {
		if _, ok := bad[id]; !ok {
			t.Errorf("event %s is a dead letter: %s", id, words)
		}
	}
}

// decode decodes JSON and keeps the text of numbers.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("the JSON is followed by more data")
	}
	return nil
}
