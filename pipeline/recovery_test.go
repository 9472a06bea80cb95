package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// patient is a backoff longer than any test: batches that are sent in time were made due.
func patient(c *pipeline.Config) {
	c.Backoff = delivery.Backoff{Initial: time.Hour, Max: time.Hour, Multiplier: 1}
}

func (d *database) expectWaiting(t testing.TB, batches int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE state = 'waiting'"); n < batches {
			return fmt.Errorf("%d batches wait; want at least %d", n, batches)
		}
		return nil
	})
}

// The sink is back: what waits is sent at once, however long it was to wait.
func TestRecovery_OfASink(t *testing.T) {
	t.Parallel()
	t.Run("a server that is down", func(t *testing.T) {
		t.Parallel()
		server := testserver.Redis(t, "--appendfsync", "always")
		d, to := newDatabase(t), redisAt(t, server.URL)
		start(t, d.buffer(t, "relay"), to, patient).expectReady(t)
		testkit.NoError(t, server.Kill())
		ids := d.insert(t, "orders", 1000)
		d.expectWaiting(t, 2)
		testkit.NoError(t, server.Start(t.Context()))
		d.expectDrained(t)
		expectOnce(t, to.arrived(t, "orders"), ids)
	})
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusUnauthorized, http.StatusTooManyRequests} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			r.answers(func([]int64) int { return status })
			ids := d.insert(t, "orders", 1000)
			start(t, d.buffer(t, "relay"), to, patient)
			d.expectWaiting(t, 2)
			r.answers(nil)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), ids)
		})
	}
}

// One relay does not reach the sink, or is refused everything, and another one delivers all. Then the first has nothing to find out with that the sink
// is back.
func TestRecovery_ByAnotherRelay(t *testing.T) {
	t.Parallel()
	for class, answer := range map[string]error{"sink": sink.Unavailable(errTest), "refusing": sink.Permanent(errTest)} {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			to := redisAt(t, testserver.SharedRedis(t))
			soon := func(c *pipeline.Config) { c.MaxAttempts = 1000 }
			first := start(t, d.buffer(t, "first"), &sendHook{to, func(context.Context, *buffer.Batch, func() error) error { return answer }}, soon)
			ids := d.insert(t, "orders", 100)
			expectClass(t, first, class)
			d.expectWaiting(t, 1)
			start(t, d.buffer(t, "second"), to, soon)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), ids)
			first.expectReady(t)
		})
	}
}

// Batches for an unavailable address wait while others continue, and are sent as soon as it
// recovers.
func TestRecovery_OfAnAddress(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t).URL
	d, to := newDatabase(t), natsAt(t, url)
	addStream(t, url, "free")
	taken := d.insert(t, "taken", 1000)
	free := d.insert(t, "free", 500)
	for range 10 { // mixed batches too
		taken = append(taken, d.insert(t, "taken", 30)...)
		free = append(free, d.insert(t, "free", 30)...)
	}
	start(t, d.buffer(t, "relay"), to, patient)
	to.expectArrivals(t, "free", len(free))
	d.expectWaiting(t, 10)
	addStream(t, url, "taken")
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "taken"), taken)
	expectOnce(t, to.arrived(t, "free"), free)
}

// A process that begins knows of no outage: it asks the ledger what waits, and tries
// one of each.
func TestStartup_ProbesDeferredBatches(t *testing.T) {
	t.Parallel()
	d, r := newDatabase(t), newReceiver(t)
	to := httpAt(t, r)
	r.answers(func([]int64) int { return http.StatusBadGateway })
	ids := d.insert(t, "orders", 1000)
	first := start(t, d.buffer(t, "first"), to, patient)
	d.expectWaiting(t, 2)
	first.stop(t)
	r.answers(nil)
	start(t, d.buffer(t, "second"), to, patient)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// A 500 that keeps hitting the batch with one event, while others are accepted:
// that event is found and buried, and all the others are delivered.
func TestPoisonEvent_AnsweredWith500(t *testing.T) {
	t.Parallel()
	d, r := newDatabase(t), newReceiver(t)
	to := httpAt(t, r)
	ids := d.insert(t, "orders", 1000)
	poison := ids[333]
	r.answers(func(ids []int64) int {
		for _, id := range ids {
			if id == poison {
				return http.StatusInternalServerError
			}
		}
		return http.StatusOK
	})
	start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.MaxAttempts = 3 })
	testserver.Eventually(t, func() error { // others come all the while
		ids = append(ids, d.insert(t, "orders", 1)...)
		if dead, _ := d.dead(t); len(dead) == 0 {
			return fmt.Errorf("nothing was buried")
		}
		return nil
	})
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), without(ids, poison))
	dead, _ := d.dead(t)
	if len(dead) != 1 || dead[0] != poison {
		t.Errorf("buried %v, want %d alone", dead, poison)
	}
}

// TestPoisonEvent_LostResponses has an API that honours Idempotency-Key. Each event is accepted once, although the response to a batch
// is lost after two outages of it; and an event that makes the API close the connection each time is found.
func TestPoisonEvent_LostResponses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []int // to the requests with one event; the last one repeats
		dead    bool
	}{
		"fails twice, loses a response":        {[]int{500, 500, accepts, 200}, false},
		"loses a response, fails":              {[]int{accepts, 500, 500, 200}, false},
		"closes the connection for that event": {[]int{acceptsNothing}, true},
		"is at the request when asked again":   {[]int{accepts, 409, 409, 200}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			r.keys = map[string]bool{}
			to := httpAt(t, r)
			ids := d.insert(t, "orders", 20)
			special := ids[7]
			var n, others atomic.Int64
			r.answers(func(ids []int64) int {
				if !slices.Contains(ids, special) {
					others.Add(1)
					return http.StatusOK
				}
				for before := others.Load(); others.Load() < before+5 && t.Context().Err() == nil; { // so that the outage counts
					<-time.After(time.Millisecond)
				}
				return c.answers[min(int(n.Add(1)), len(c.answers))-1]
			})
			start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.MaxAttempts = 3 })
			testserver.Eventually(t, func() error { // others come all the while
				ids = append(ids, d.insert(t, "orders", 1)...)
				if left := queryValue[int](t, d, fmt.Sprintf("SELECT count(*) FROM outbox_events WHERE id <= %d", ids[19])); left > 0 {
					return fmt.Errorf("%d events of the first batch are left", left)
				}
				return nil
			})
			d.expectDrained(t)
			dead, _ := d.dead(t)
			if c.dead {
				testkit.Equal(t, "dead letters", dead, []int64{special})
				ids = without(ids, special)
			} else {
				testkit.Equal(t, "dead letters", len(dead), 0)
			}
			expectOnce(t, to.arrived(t, "orders"), ids)
		})
	}
}

// TestOutageOfOneBatch: an API answers each batch that contains one event with 403. The others of its batch are delivered; that
// event waits, and is not buried.
func TestOutageOfOneBatch(t *testing.T) {
	t.Parallel()
	d, r := newDatabase(t), newReceiver(t)
	to := httpAt(t, r)
	ids := d.insert(t, "orders", 50)
	bad := ids[33]
	var forbidden atomic.Bool
	forbidden.Store(true)
	r.answers(func(ids []int64) int {
		if forbidden.Load() && slices.Contains(ids, bad) {
			return http.StatusForbidden
		}
		return http.StatusOK
	})
	start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.MaxAttempts = 3 })
	testserver.Eventually(t, func() error { // others come all the while
		ids = append(ids, d.insert(t, "orders", 1)...)
		if left := queryValue[int](t, d, fmt.Sprintf("SELECT count(*) FROM outbox_events WHERE id <= %d", ids[49])); left > 1 {
			return fmt.Errorf("%d events of the first batch were not delivered", left)
		}
		return nil
	})
	forbidden.Store(false)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), 0)
}

// A sink panics at one event. The process goes on, and buries nothing else.
func TestPanic_OthersGoOn(t *testing.T) {
	t.Parallel()
	d, r := newDatabase(t), newReceiver(t)
	to := httpAt(t, r)
	ids := d.insert(t, "orders", 200)
	poison := ids[77]
	start(t, d.buffer(t, "relay"), &panics{to, poison}, func(c *pipeline.Config) { c.MaxAttempts = 2 })
	testserver.Eventually(t, func() error { // others come all the while
		ids = append(ids, d.insert(t, "orders", 1)...)
		if dead, _ := d.dead(t); len(dead) == 0 {
			return fmt.Errorf("nothing was buried")
		}
		return nil
	})
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), without(ids, poison))
	if dead, _ := d.dead(t); len(dead) != 1 || dead[0] != poison {
		t.Errorf("buried %v, want %d alone", dead, poison)
	}
}

// panics is a sink that panics at an event.
type panics struct {
	sink.Sink
	at int64
}

func (p *panics) Send(ctx context.Context, b *buffer.Batch) error {
	if slices.Contains(b.IDs(), p.at) {
		panic("assignment to entry in nil map")
	}
	return p.Sink.Send(ctx, b)
}

// tables are those of a database of one kind.
type tables struct {
	open   func(owner string) buffer.Buffer
	insert func(events int)
	due    func() // makes all batches due
	leased func() int
	empty  func() // waits until everything is delivered
}

// settled reports that no batch is leased.
func (d *tables) settled() error {
	if n := d.leased(); n > 0 {
		return fmt.Errorf("%d batches are leased", n)
	}
	return nil
}

// Every relay notices an operator's request, also one whose batches another relay has taken, or delivered, before it asks.
func TestRecovery_RequestReachesEveryRelay(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) tables{
		"postgres": func(t *testing.T) tables {
			d := newDatabase(t)
			return tables{
				open: func(owner string) buffer.Buffer { return d.buffer(t, owner) }, insert: func(n int) { d.insert(t, "orders", n) },
				due:    func() { d.exec(t, "UPDATE outbox_batches SET due_at = clock_timestamp()") },
				leased: func() int { return queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE state = 'leased'") },
				empty:  func() { t.Helper(); d.expectDrained(t) },
			}
		},
		"sqlite": func(t *testing.T) tables {
			f := newFile(t)
			return tables{
				open: func(owner string) buffer.Buffer { return f.buffer(t, owner) }, insert: func(n int) { f.transaction(t, n, true) },
				due:    func() { f.exec(t, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')") },
				leased: func() int { return int(f.queryValue(t, "SELECT count(*) FROM outbox_batches WHERE state = 'leased'")) },
				empty:  func() { t.Helper(); f.expectDrained(t) },
			}
		},
	} {
		run := func(of string, test func(t *testing.T, d tables, busy *atomic.Bool, at func(owner string) *process, retry func())) {
			t.Run(name+"/"+of, func(t *testing.T) {
				t.Parallel()
				d, to := open(t), redisAt(t, testserver.SharedRedis(t))
				var busy atomic.Bool
				busy.Store(true)
				at := func(owner string) *process {
					t.Helper()
					return start(t, d.open(owner), &sendHook{to, func(_ context.Context, _ *buffer.Batch, next func() error) error {
						if busy.Load() {
							return &sink.UnavailableError{Err: errTest, RetryAfter: time.Hour}
						}
						return next()
					}}, nil)
				}
				operator := d.open("operator")
				test(t, d, &busy, at, func() {
					t.Helper()
					_, err := operator.RetryAll(t.Context(), buffer.NewRetryRequest())
					testkit.NoError(t, err)
				})
			})
		}
		run("what another relay delivered", func(t *testing.T, d tables, busy *atomic.Bool, at func(string) *process, retry func()) {
			d.insert(1)
			first := at("first")
			expectClass(t, first, "sink")
			testserver.Eventually(t, d.settled)
			busy.Store(false)
			second := at("second")
			d.due()
			d.empty()
			second.stop(t)
			d.insert(1)
			retry()
			d.empty()
			first.expectReady(t)
		})
		run("what waits", func(t *testing.T, d tables, busy *atomic.Bool, at func(string) *process, retry func()) {
			relays := []*process{at("first"), at("second")}
			testserver.Eventually(t, func() error {
				if relays[0].Ready() == nil || relays[1].Ready() == nil {
					d.insert(1)
					return errors.New("a relay has not asked the sink")
				}
				return d.settled() // otherwise it would be put back after the request
			})
			busy.Store(false)
			retry()
			d.empty()
			relays[0].stop(t)
			d.insert(1)
			d.empty()
			relays[1].expectReady(t)
		})
	}
}
