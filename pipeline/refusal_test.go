package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// dead are the ids in outbox_dead_letters, and the attempts of each.
func (d *database) dead(t testing.TB) (ids []int64, attempts []int) {
	t.Helper()
	rows, err := d.app.Query(t.Context(), "SELECT event_id, attempts FROM outbox_dead_letters ORDER BY event_id, died_at")
	testkit.NoError(t, err)
	type deadLetter struct {
		EventID  int64
		Attempts int
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadLetter])
	testkit.NoError(t, err)
	for _, l := range found {
		ids, attempts = append(ids, l.EventID), append(attempts, l.Attempts)
	}
	return ids, attempts
}

func without(ids []int64, bad ...int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(bad, id) })
}

// One event of a batch is refused by a server that says no more than 400.
func TestPoisonEvent_IsBuriedAloneAndSoon(t *testing.T) {
	t.Parallel()
	const batch = 250
	for name, at := range map[string]int{"first": 0, "in the middle": 101, "last": batch - 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			ids := d.insert(t, "orders", batch)
			poison := ids[at]
			ids = append(ids, d.insert(t, "orders", 1000)...)
			r.answers(func(ids []int64) int {
				if slices.Contains(ids, poison) {
					return http.StatusBadRequest
				}
				return http.StatusOK
			})
			start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) {
				// The other half may still be under way when the event is refused; nothing is sent again before it has arrived.
				c.BatchSize, c.Backoff = batch, delivery.Backoff{Initial: 10 * time.Second, Max: 10 * time.Second, Multiplier: 1}
			})
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), without(ids, poison))
			dead, attempts := d.dead(t)
			if !slices.Equal(dead, []int64{poison}) || attempts[0] != 1 {
				t.Errorf("buried %v after %v attempts, want %d alone after 1", dead, attempts, poison)
			}
			reason := queryValue[string](t, d, "SELECT error FROM outbox_dead_letters")
			if reason == "" {
				t.Error("the dead letter has no reason")
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			// Counted from the batch it was claimed in, whichever events that are: the
			// workers claim side by side.
			var claimed []int64
			n := 0
			for _, ids := range r.requests {
				if claimed == nil && slices.Contains(ids, poison) {
					claimed = ids
				}
				if slices.Contains(claimed, ids[0]) {
					n++
				}
			}
			if most := 2*bits.Len(uint(len(claimed)-1)) + 1; n > most {
				t.Errorf("%d requests for the batch of %d with the poison event; want at most %d", n, len(claimed), most)
			}
		})
	}
}

// Each batch has bad events, and the server says no more than 400. All others arrive, with few requests.
func TestPoisonEvents_InEachBatch(t *testing.T) {
	t.Parallel()
	const events, batch = 1500, 100
	isBad := func(id int64) bool { return id%20 == 7 }
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", ordered), func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			ids := d.insert(t, "orders", events)
			r.answers(func(ids []int64) int {
				if slices.ContainsFunc(ids, isBad) {
					return http.StatusBadRequest
				}
				return http.StatusOK
			})
			b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Ordered: ordered})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			start(t, b, to, func(c *pipeline.Config) { c.BatchSize, c.Ordered, c.MaxAttempts = batch, ordered, 1000 })
			d.expectDrained(t)
			good := slices.DeleteFunc(slices.Clone(ids), isBad)
			expectOnce(t, to.arrived(t, "orders"), good)
			dead, _ := d.dead(t)
			testkit.Equal(t, "dead letters", len(dead), events-len(good))
			r.mu.Lock()
			defer r.mu.Unlock()
			// At first each worker has a batch of its own.
			if n, most := len(r.requests), len(dead)*(2*bits.Len(batch-1)+1)+2*events/batch; n > most {
				t.Errorf("%d requests for %d bad events in batches of %d; want at most %d", n, len(dead), batch, most)
			}
		})
	}
}

// Single bad events come first, so that the sink seems to refuse everything; then each batch has bad ones, and none can be accepted as a whole. A single event
// is tried, and the search goes on.
func TestPoisonEvents_InEachBatchAfterSingleOnes(t *testing.T) {
	t.Parallel()
	const single, events, batch = 4, 1000, 100
	d, r := newDatabase(t), newReceiver(t)
	to := httpAt(t, r)
	bad := d.insert(t, "orders", single)
	isBad := func(id int64) bool { return id <= bad[single-1] || id%20 == 7 }
	r.answers(func(ids []int64) int {
		if slices.ContainsFunc(ids, isBad) {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	p := start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.BatchSize, c.MaxAttempts = batch, 1000 })
	expectClass(t, p, "refusing")
	ids := d.insert(t, "orders", events)
	d.expectDrained(t)
	good := slices.DeleteFunc(slices.Clone(ids), isBad)
	expectOnce(t, to.arrived(t, "orders"), good)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), single+events-len(good))
}

// TestPoisonEvents_WhileAllSearch: batches with many bad events are searched by all workers that search, for long. Fresh events do not wait for that.
func TestPoisonEvents_WhileAllSearch(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			t.Parallel()
			const batches, batch = 4, 500
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			r.answers(func(ids []int64) int {
				<-time.After(100 * time.Millisecond)
				if slices.ContainsFunc(ids, func(id int64) bool { return id <= batches*batch && id%10 == 7 }) {
					return http.StatusBadRequest
				}
				return http.StatusOK
			})
			burst := d.insert(t, "orders", batches*batch)
			start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.BatchSize, c.Workers = batch, workers })
			testserver.Eventually(t, func() error {
				if dead, _ := d.dead(t); len(dead) == 0 {
					return errors.New("no bad event was found")
				}
				return nil
			})
			for n := 1; n <= 3; n++ { // one after the other
				d.insert(t, "fresh", 1)
				to.expectArrivals(t, "fresh", n)
			}
			if dead, _ := d.dead(t); len(dead) == len(burst)/10 {
				t.Error("the fresh events have waited until the search was over")
			}
		})
	}
}

// A sink that answers 400 to everything, as to a wrong key: nothing dies, few requests are made, and readiness says why.
// When it is set up right, everything arrives.
func TestRefusingSink_BuriesNothing(t *testing.T) {
	t.Parallel()
	const events, batch = 5000, 1000
	for name, c := range map[string]postgres.Config{
		"range": {Claim: buffer.ClaimRange}, "stamp": {Claim: buffer.ClaimStamp}, "order": {Ordered: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			ids := d.insert(t, "orders", events)
			r.answers(func([]int64) int { return http.StatusBadRequest })
			c.URL, c.Pipeline, c.Owner = d.url, "orders", "relay"
			b, err := postgres.Open(c)
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			p := start(t, b, to, func(p *pipeline.Config) { p.BatchSize, p.Ordered, p.MaxAttempts = batch, c.Ordered, 1000 })
			expectClass(t, p, "refusing")
			// The search, one request of each other batch, and what was claimed while the search went on.
			r.mu.Lock()
			n := len(r.requests)
			r.mu.Unlock()
			if most := 2*bits.Len(batch-1) + 1 + 2*events/batch + 10; n > most {
				t.Errorf("%d requests until the sink was found to refuse everything; want at most %d", n, most)
			}
			testkit.Equal(t, "events", queryValue[int](t, d, "SELECT count(*) FROM outbox_events"), events)
			dead, _ := d.dead(t)
			testkit.Equal(t, "dead letters", len(dead), 0)
			r.answers(nil)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), ids)
			dead, _ = d.dead(t)
			testkit.Equal(t, "dead letters", len(dead), 0)
			p.expectReady(t)
		})
	}
}

// An API that starts to refuse everything just after it accepted events, as when a key expires, buries nothing, and
// what it refused arrives when it is set up right.
func TestRefusingSink_AfterASuccess(t *testing.T) {
	t.Parallel()
	for _, relays := range []int{1, 2} {
		t.Run(fmt.Sprint(relays), func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			var (
				ids       []int64
				processes []*process
				accepted  = make([]atomic.Int64, relays)
				to        destination
			)
			for i := range relays {
				to = httpAt(t, r)
				counts := &sendHook{to, func(_ context.Context, _ *buffer.Batch, next func() error) error {
					err := next()
					if err == nil {
						accepted[i].Add(1)
					}
					return err
				}}
				processes = append(processes, start(t, d.buffer(t, fmt.Sprint("relay", i)), counts, func(c *pipeline.Config) { c.MaxAttempts = 1000 }))
			}
			insertUntil := func(enough func(i int) error) {
				testserver.Eventually(t, func() error {
					ids = append(ids, d.insert(t, "orders", 1)...)
					for i := range relays {
						if err := enough(i); err != nil {
							return err
						}
					}
					return nil
				})
			}
			insertUntil(func(i int) error {
				if accepted[i].Load() == 0 {
					return fmt.Errorf("relay %d has sent nothing", i)
				}
				return nil
			})
			d.expectDrained(t)
			r.answers(func([]int64) int { return http.StatusBadRequest })
			ids = append(ids, d.insert(t, "orders", 1)...) // alone
			refused := ids[len(ids)-1]
			testserver.Eventually(t, func() error {
				r.mu.Lock()
				defer r.mu.Unlock()
				n := 0
				for _, ids := range r.requests {
					if slices.Contains(ids, refused) {
						n++
					}
				}
				if n < 3 {
					return fmt.Errorf("the event was asked about %d times", n)
				}
				return nil
			})
			insertUntil(func(i int) error {
				if err := processes[i].Ready(); err == nil {
					return fmt.Errorf("relay %d is ready", i)
				}
				return nil
			})
			r.answers(nil)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), ids)
			dead, _ := d.dead(t)
			testkit.Equal(t, "dead letters", len(dead), 0)
			for _, p := range processes {
				p.expectReady(t)
			}
		})
	}
}

// expectClass waits until the pipeline is not ready for a reason of that class, and returns the reason.
func expectClass(t *testing.T, p *process, class string) (reason string) {
	t.Helper()
	testserver.Eventually(t, func() error {
		err := p.Ready()
		if e, ok := errors.AsType[*pipeline.NotReady](err); !ok || e.Class() != class {
			return fmt.Errorf("readiness has another class than %s, or is good: %w", class, errors.Join(err, errTest))
		}
		reason = err.Error()
		return nil
	})
	return reason
}

// A program that fails on every batch is not the sink's fault.
func TestReady_ProgramFails(t *testing.T) {
	t.Parallel()
	for program, c := range map[string]httpsink.Config{
		"request": {Request: `error("no such field")`},
		"results": {Results: `error("no such field")`},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			f, r := newFile(t), newReceiver(t)
			c.URL = r.URL
			s, err := httpsink.New(c)
			testkit.NoError(t, err)
			closeSink(t, s)
			f.transaction(t, 1, true)
			p := start(t, f.buffer(t, "relay"), s, nil)
			reason := expectClass(t, p, "stalled")
			if why, ok := errors.AsType[*pipeline.NotReady](p.Ready()); ok && why.Kind() != map[string]string{"request": buffer.KindRequest, "results": buffer.KindAnswer}[program] {
				t.Errorf("the kind is %q", why.Kind())
			}
			for _, text := range []string{"a program of the sink fails", program, "no such field"} {
				if !strings.Contains(reason, text) {
					t.Errorf("the reason is %q; expected it to contain %q", reason, text)
				}
			}
		})
	}
}

// A projection that fails on every batch is not the sink's fault.
func TestReady_ProjectionFails(t *testing.T) {
	t.Parallel()
	f, r := newFile(t), newReceiver(t)
	_, err := f.app.ExecContext(t.Context(), "CREATE TABLE t (id INTEGER PRIMARY KEY, group_id TEXT); INSERT INTO t (id) VALUES (1)")
	testkit.NoError(t, err)
	b, err := sqlite.Open(sqlite.Config{
		URL: f.url, Pipeline: "orders", Owner: "relay", Table: "t",
		Custom: buffer.CustomTable{ID: "id", Project: "SELECT id + 1 AS id, '1' AS payload FROM {events}"},
	})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	_, err = sqlite.Migrate(t.Context(), f.url, sqlite.SchemaConfig{Table: "t", Custom: true})
	testkit.NoError(t, err)
	p := start(t, b, httpAt(t, r), nil)
	if reason := expectClass(t, p, "stalled"); !strings.Contains(reason, "projection failed") {
		t.Errorf("the reason is %q; it does not name the projection", reason)
	}
}

// One bad event in an empty pipeline may be a sink that refuses everything. It holds up nothing: the next good event
// passes, and proves that the bad one is to blame.
func TestRefusingSink_LetsAGoodEventPass(t *testing.T) {
	t.Parallel()
	f, r := newFile(t), newReceiver(t)
	to := httpAt(t, r)
	r.answers(func(ids []int64) int {
		if slices.Contains(ids, 1) {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	f.transaction(t, 1, true)
	p := start(t, f.buffer(t, "relay"), to, func(c *pipeline.Config) { c.MaxAttempts = 1000 })
	expectClass(t, p, "refusing")
	f.transaction(t, 1, true)
	p.expectReady(t)
	f.expectDrained(t)
	testkit.Equal(t, "events that arrived", to.count(t, "orders"), 1)
	testkit.Equal(t, "the dead letter", f.queryValue(t, "SELECT group_concat(event_id) FROM outbox_dead_letters"), 1)
}

// A burst of bad events stands before a good one in hundreds of batches. The good one is tried after few requests, and the bad ones are buried.
func TestRefusingSink_PassesABurst(t *testing.T) {
	t.Parallel()
	const bad, batch = 3000, 10
	for name, workers := range map[string]int{"one worker": 1, "several workers": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			ids := d.insert(t, "orders", bad)
			good := d.insert(t, "orders", 1)
			requests := 0
			r.answers(func(asked []int64) int {
				r.mu.Lock()
				defer r.mu.Unlock()
				if !slices.Contains(asked, good[0]) {
					requests++
				}
				if slices.ContainsFunc(asked, func(id int64) bool { return id <= ids[bad-1] }) {
					return http.StatusBadRequest
				}
				return http.StatusOK
			})
			start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) {
				c.BatchSize, c.Workers, c.MaxAttempts, c.MaxWaiting = batch, workers, 1000, 10*bad
			})
			testserver.Eventually(t, func() error {
				if len(to.arrived(t, "orders")) == 0 {
					return errors.New("the good event has not arrived")
				}
				return nil
			})
			r.mu.Lock()
			asked := requests
			r.mu.Unlock()
			if most := bad / batch / 4; asked > most {
				t.Errorf("%d requests about bad events before the good one arrived; want at most %d", asked, most)
			}
			for range 20 { // so are the next ones, one after the other, while most of the bad ones wait
				good = append(good, d.insert(t, "orders", 1)...)
				testserver.Eventually(t, func() error {
					if n := len(to.arrived(t, "orders")); n < len(good) {
						return fmt.Errorf("%d of %d good events have arrived", n, len(good))
					}
					return nil
				})
			}
			dead, _ := d.dead(t)
			if left := queryValue[int](t, d, "SELECT count(*) FROM outbox_events"); left < bad/2 {
				t.Errorf("%d events wait when the good ones have arrived; want most of the bad ones", left)
			}
			r.answers(nil)
			d.expectDrained(t)
			buried, _ := d.dead(t)
			t.Logf("%d requests about bad events before the first good one arrived; %d, later %d bad ones are buried", asked, len(dead), len(buried))
			expectOnce(t, to.arrived(t, "orders"), without(append(slices.Clone(ids), good...), buried...))
		})
	}
}

// A burst of more bad batches than may wait does not hide a good event behind it.
func TestRefusingSink_PassesABurstBeyondMaxWaiting(t *testing.T) {
	t.Parallel()
	const bad = 100
	f, r := newFile(t), newReceiver(t)
	to := httpAt(t, r)
	f.transaction(t, bad, true)
	f.transaction(t, 1, true)
	r.answers(func(ids []int64) int {
		if ids[0] <= bad {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	start(t, f.buffer(t, "relay"), to, func(c *pipeline.Config) {
		c.BatchSize, c.MaxWaiting, c.MaxAttempts = 1, 20, 1000
		c.Backoff.Max = 5 * time.Minute // ProbeFull remembers refusals for twice as long
	})
	testserver.Eventually(t, func() error {
		if len(to.arrived(t, "orders")) == 0 {
			return errors.New("the good event has not arrived")
		}
		return nil
	})
}

// Everything is refused for good until max_attempts: every event is buried, none is lost.
func TestPoisonBatch_IsBuriedWhole(t *testing.T) {
	t.Parallel()
	d, r := newDatabase(t), newReceiver(t)
	ids := d.insert(t, "orders", 20)
	r.answers(func([]int64) int { return http.StatusUnprocessableEntity })
	start(t, d.buffer(t, "relay"), httpAt(t, r), func(c *pipeline.Config) { c.BatchSize, c.MaxAttempts = 20, 3 })
	d.expectDrained(t)
	dead, attempts := d.dead(t)
	if slices.Max(attempts) > 3 || slices.Min(attempts) < 3 {
		t.Errorf("buried after %v attempts, want 3", attempts)
	}
	if !slices.Equal(dead, ids) {
		t.Errorf("buried %v, want %v", dead, ids)
	}
}

// An outage is not an attempt, however long it lasts.
func TestOutage_BuriesNothing(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusNotFound} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			d, r := newDatabase(t), newReceiver(t)
			to := httpAt(t, r)
			ids := d.insert(t, "orders", 250)
			r.answers(func([]int64) int { return status })
			p := start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.MaxAttempts = 2 })
			testserver.Eventually(t, func() error {
				n, err := queryValue[int](t, d, "SELECT coalesce(max(outages), 0) FROM outbox_batches"), error(nil)
				if n < 3 {
					err = fmt.Errorf("%d outages in a row; want more than max_attempts", n)
				}
				return err
			})
			p.expectNotReady(t)
			testkit.Equal(t, "attempts", queryValue[int](t, d, "SELECT max(attempts) FROM outbox_batches"), 0)
			testkit.Equal(t, "events", queryValue[int](t, d, "SELECT count(*) FROM outbox_events"), len(ids))
			r.answers(nil)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), ids)
			dead, _ := d.dead(t)
			testkit.Equal(t, "dead letters", len(dead), 0)
			p.expectReady(t)
		})
	}
}

// Refused again and again, with leave to try again: buried after max_attempts.
func TestMaxAttempts_BuriesTheEvent(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 300)
	bad := []int64{ids[0], ids[7], ids[150]}
	var asked atomic.Int64
	refuses := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		refused := &sink.BatchError{}
		rest := *b
		rest.Events = nil
		for i := range b.Events {
			if slices.Contains(bad, b.Events[i].ID) {
				asked.Add(1)
				refused.Events = append(refused.Events, sink.EventError{Index: i, Err: errTest})
			} else {
				rest.Events = append(rest.Events, b.Events[i])
			}
		}
		if len(refused.Events) == 0 {
			return next()
		}
		if len(rest.Events) > 0 {
			if err := to.Send(t.Context(), &rest); err != nil {
				return err
			}
		}
		return refused
	}}
	start(t, d.buffer(t, "relay"), refuses, func(c *pipeline.Config) { c.MaxAttempts = 4 })
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), without(ids, bad...))
	dead, attempts := d.dead(t)
	if !slices.Equal(dead, bad) || !slices.Equal(attempts, []int{4, 4, 4}) {
		t.Errorf("buried %v after %v attempts, want %v after 4 each", dead, attempts, bad)
	}
	testkit.Equal(t, "refusals", asked.Load(), 4*int64(len(bad)))
}

// One stream is a string. Its events wait; other topics' events are delivered.
func TestAddress_OutageHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		url := testserver.SharedRedis(t)
		d, to := newDatabase(t), redisAt(t, url)
		client := redisClient(t, url)
		testkit.NoError(t, client.Set(t.Context(), "taken", "by a string", 0).Err())
		testUnavailableAddress(t, d, to, func() { testkit.NoError(t, client.Del(t.Context(), "taken").Err()) })
	})
	t.Run("jetstream", func(t *testing.T) {
		t.Parallel()
		url := testserver.NATS(t).URL
		d, to := newDatabase(t), natsAt(t, url)
		addStream(t, url, "free")
		testUnavailableAddress(t, d, to, func() { addStream(t, url, "taken") })
	})
}

func testUnavailableAddress(t *testing.T, d *database, to destination, restore func()) {
	t.Helper()
	var free []int64
	taken := d.insert(t, "taken", 4000) // whole batches of them come first
	for range 20 {
		free = append(free, d.insert(t, "free", 55)...)
		taken = append(taken, d.insert(t, "taken", 35)...)
	}
	start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.MaxAttempts = 2 })
	to.expectArrivals(t, "free", len(free))
	free = append(free, d.insert(t, "free", 200)...) // other events are still delivered
	to.expectArrivals(t, "free", len(free))
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT coalesce(max(outages), 0) FROM outbox_batches"); n < 3 {
			return errors.New("the events of the other topic were not tried several times")
		}
		return nil
	})
	restore()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "free"), free)
	expectOnce(t, to.arrived(t, "taken"), taken)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), 0)
}

// The sink asks to be left alone: it is, as a whole.
func TestRetryAfter_IsObeyed(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 1000)
	var asked, early atomic.Int64
	until := make(chan time.Time, 1)
	busy := &sendHook{to, func(_ context.Context, _ *buffer.Batch, next func() error) error {
		switch asked.Add(1) {
		case 1:
			const pause = 1500 * time.Millisecond
			until <- time.Now().Add(pause)
			return &sink.UnavailableError{Err: errTest, RetryAfter: pause}
		default:
			over := <-until
			if time.Now().Before(over) {
				early.Add(1)
			}
			until <- over
			return next()
		}
	}}
	start(t, d.buffer(t, "relay"), busy, func(c *pipeline.Config) { c.Workers = 1 })
	d.expectDrained(t)
	testkit.Equal(t, "requests while the sink wanted to be left alone", early.Load(), 0)
	expectOnce(t, to.arrived(t, "orders"), ids)
}
