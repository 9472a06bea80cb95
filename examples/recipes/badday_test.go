package recipes_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
)

// badDay is an API that accepts batches and stores its answers by Idempotency-Key, as
// Stripe does. Five in a hundred answers are 429. One in a hundred connections is cut,
// before the request is read or after it was accepted.
type badDay struct {
	*api
	requests     atomic.Int64
	limited      atomic.Int64
	lost, unread atomic.Int64
	kept         map[string]stripeAnswer
	times        map[string]int // that an event was accepted, by its id
}

func newBadDay(t *testing.T) *badDay {
	d := &badDay{kept: map[string]stripeAnswer{}, times: map[string]int{}}
	d.api = newAPI(t, nil, d.take, nil)
	d.Config.Handler = d // in place of the api's own slow day
	return d
}

func (d *badDay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := d.requests.Add(1) % 200
	if n == 33 {
		d.unread.Add(1)
		panic(http.ErrAbortHandler)
	}
	body, err := read(r)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case n%20 == 7:
		d.limited.Add(1)
		say(w, http.StatusTooManyRequests, "slow down")
	case n == 133:
		d.lost.Add(1)
		d.locked(httptest.NewRecorder(), r, body)
		d.cut(w)
	default:
		d.locked(w, r, body)
	}
}

func (d *badDay) take(w http.ResponseWriter, r *http.Request, body []byte) {
	key, hash := r.Header.Get("Idempotency-Key"), sha256.Sum256(body)
	kept, known := d.kept[key]
	if known && kept.parameters != hash {
		d.t.Errorf("the key %s was used with another body", key)
	}
	if !known {
		kept = stripeAnswer{hash, httptest.NewRecorder()}
		d.kept[key] = kept
		d.first(kept, r, body)
	}
	w.WriteHeader(kept.Code)
	if _, err := w.Write(kept.Body.Bytes()); err != nil {
		d.t.Log(err)
	}
}

// first answers a batch that was not seen before.
func (d *badDay) first(w http.ResponseWriter, r *http.Request, body []byte) {
	var batch struct {
		Events []struct {
			ID      string
			Payload struct{ Customer int }
		}
	}
	if err := decode(body, &batch); err != nil {
		d.t.Error(err)
	}
	refused := []any{}
	for _, e := range batch.Events {
		if e.Payload.Customer%50 == 0 {
			refused = append(refused, map[string]string{"id": e.ID, "reason": blocked(e.Payload.Customer)})
			continue
		}
		d.accept(r, e.ID)
		d.times[e.ID]++
	}
	say(w, http.StatusOK, map[string]any{"refused": refused})
}

func blocked(customer int) string { return fmt.Sprintf("E-4711: customer %d is blocked", customer) }

// TestRecipes_BadDay sends ten thousand events, two in a hundred of them bad. Each good
// one is accepted exactly once; each bad one becomes a dead letter in the API's own words.
func TestRecipes_BadDay(t *testing.T) {
	t.Parallel()
	const events = 10_000
	server := newBadDay(t)
	r := prepare(t, build(t), `pipelines:
  - name: orders
    source: {url: "${DATABASE_URL}"}
    batch_size: 20
    sink:
      url: ${API_URL}
      results: |
        [.body.refused[] | {id, error: .reason, retry: false}]
    retry: {initial: 100ms}
`, "", "API_URL="+server.URL+"/orders")
	r.exec(`INSERT INTO outbox_events (topic, key, payload)
		SELECT 'orders.created', 'customer-' || i, jsonb_build_object('customer', i) FROM generate_series(1, $1::int) i`, events)
	first := int(r.id("SELECT min(id) FROM outbox_events"))
	var good []string
	bad := map[string]string{}
	for i := range events {
		id := strconv.Itoa(first + i)
		if customer := i + 1; customer%50 == 0 {
			bad[id] = blocked(customer)
		} else {
			good = append(good, id)
		}
	}

	r.deliver()
	dead := r.dead()
	server.want(good, bad, dead)
	for id, words := range dead {
		if words != bad[id] {
			t.Errorf("event %s has the error %q; the API's words were %q", id, words, bad[id])
		}
	}
	for id, n := range server.times {
		if n != 1 {
			t.Errorf("event %s was accepted %d times", id, n)
		}
	}
	t.Logf("of %d requests %d were answered 429, %d cut unread and %d cut when they were accepted",
		server.requests.Load(), server.limited.Load(), server.unread.Load(), server.lost.Load())
	if server.limited.Load() < 20 || server.unread.Load() == 0 || server.lost.Load() == 0 {
		t.Error("it was no bad day")
	}
}
