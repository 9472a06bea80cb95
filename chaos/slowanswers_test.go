//go:build unix

package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"time"
)

// slowAnswers: an API takes each request, and then answers some of them a byte at a time,
// for ever. A request that is sent again must have its key, or the API would take it twice.
func (x *trial) slowAnswers() {
	api := &slowAPI{x: x, taken: map[string][]int64{}}
	server := httptest.NewServer(api)
	x.Cleanup(server.Close)
	from := x.sqlite("shop")
	p := x.start("relay", pipeline(from, `{url: "`+server.URL+`", timeout: 500ms}`))
	for range x.rounds(1) {
		api.slow(4)
		from.during(200, api.count, func() {}, "orders")
		from.drained()
	}
	x.end(p)
	from.account(api.arrived(), false)
	if api.slowed == 0 {
		x.Error("no answer was slow")
	}
}

// slowAPI accepts requests of the default format, once for each key.
type slowAPI struct {
	x *trial

	mu     sync.Mutex
	left   int // slow answers still to give
	slowed int
	taken  map[string][]int64 // ids by Idempotency-Key
}

func (a *slowAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ Events []struct{ ID string } }
	err := json.NewDecoder(r.Body).Decode(&body)
	var ids []int64
	for _, e := range body.Events {
		id, bad := strconv.ParseInt(e.ID, 10, 64)
		if err == nil {
			err = bad
		}
		ids = append(ids, id)
	}
	if err != nil || len(ids) == 0 {
		a.x.Errorf("the request has %d events: %v", len(ids), err)
	}
	if way := a.take(r.Header.Get("Idempotency-Key"), ids); way > 0 {
		a.trickle(w, r, way)
	}
}

// take records the ids of a key. It returns how to answer: 0 at once, others slowly.
func (a *slowAPI) take(key string, ids []int64) (way int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if before, ok := a.taken[key]; ok {
		if !slices.Equal(before, ids) {
			a.x.Errorf("the key %s had the events %v, and now has %v", key, before, ids)
		}
		return 0
	}
	a.taken[key] = ids
	if a.left == 0 {
		return 0
	}
	a.left--
	a.slowed++
	return 1 + a.left%2
}

// trickle answers until the client gives up: within the header, or within the body.
func (a *slowAPI) trickle(w http.ResponseWriter, r *http.Request, way int) {
	conn, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		a.x.Error(err)
		return
	}
	defer conn.Close()
	text := "HTTP/1.1 200 OK\r\nX-Slow: "
	if way == 2 {
		text = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
	}
	for ticks := time.NewTicker(20 * time.Millisecond); err == nil; {
		if _, err = fmt.Fprint(buffered, text); err == nil {
			err = buffered.Flush()
		}
		text = " "
		select {
		case <-ticks.C:
		case <-r.Context().Done():
			return
		}
	}
}

func (a *slowAPI) slow(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = n
}

func (a *slowAPI) count() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(len(a.taken))
}

// arrived returns under how many keys each event was taken.
func (a *slowAPI) arrived() map[int64]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := map[int64]int{}
	for _, ids := range a.taken {
		for _, id := range ids {
			found[id]++
		}
	}
	return found
}
