package distributor_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/distributor"
)

// fakeListener listens as a database does: commits notify while it has the lock. Taking and
// releasing the lock take time.
type fakeListener struct {
	notifications chan struct{}
	takes         time.Duration // until the lock is taken, or released

	mu                sync.Mutex
	commits           int
	locked            bool // so that commits notify
	listening, lapsed bool
	paused            bool
	pauses            []bool
	running           sync.WaitGroup
}

func newListener() *fakeListener { return &fakeListener{notifications: make(chan struct{}, 1)} }

func (c *fakeListener) Notifications() <-chan struct{} { return c.notifications }

func (c *fakeListener) signal() {
	select {
	case c.notifications <- struct{}{}:
	default:
	}
}

func (c *fakeListener) Drain() (commits int, listening bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	commits, listening = c.commits, c.listening && !c.lapsed
	if c.listening && c.lapsed {
		c.signal()
	}
	c.commits, c.lapsed = 0, false
	return commits, listening
}

func (c *fakeListener) Pause(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses, c.paused = append(c.pauses, on), on
	if on {
		c.listening, c.lapsed = false, true
	}
	c.running.Go(func() {
		<-time.After(c.takes)
		c.lock(!on)
	})
}

// lock takes the lock or releases it; the listener listens from then on, or no longer.
func (c *fakeListener) lock(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused && on {
		return
	}
	c.locked, c.listening = on, on
	c.lapsed = c.lapsed || !on
	c.signal()
}

// commit commits events in one transaction.
func (b *harness) commit(c *fakeListener, events int) {
	b.buffer.set(func(t *fakeBuffer) { t.unclaimed += events })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locked {
		c.commits++
		c.signal()
	}
}

func (c *fakeListener) pausing() []bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.pauses)
}

// fakeWorkers works until the distributor stops: a claim sees events that were committed
// before it began. The claim and the time until its report have fixed lengths.
type fakeWorkers struct {
	mu     sync.Mutex
	claims []time.Duration
	events int
	out    int // tickets
	most   int
}

func (b *harness) startWorkers(workers int, claims, sends time.Duration) *fakeWorkers {
	c := &fakeWorkers{}
	for range workers {
		b.workers.Go(func() {
			for ticket := range b.Tickets() {
				n := b.buffer.claim(b.size)
				c.begin(n)
				<-time.After(claims)
				if n > 0 {
					<-time.After(sends)
				}
				c.end()
				b.Done(distributor.Report{Ticket: ticket, Events: n, Full: n == b.size, Took: claims})
			}
		})
	}
	return c
}

func (c *fakeWorkers) begin(events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims, c.events, c.out = append(c.claims, sinceMidnight()), c.events+events, c.out+1
	c.most = max(c.most, c.out)
}

func (c *fakeWorkers) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out--
}

// times is when claims began, and how many events they brought; it forgets them.
func (c *fakeWorkers) times() (at []time.Duration, events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, events = c.claims, c.events
	c.claims, c.events = nil, 0
	return at, events
}

// listening is a nightly schedule with a listener that listens; the first requests are over.
func listening(t *testing.T, change func(*distributor.Config)) (*harness, *fakeListener) {
	t.Helper()
	listener := newListener()
	listener.locked, listener.listening = true, true
	listener.signal()
	b := start(t, "0 2 * * *", &fakeBuffer{}, func(c *distributor.Config) {
		c.Poll, c.Listener, c.Eager = true, listener, true
		if change != nil {
			change(c)
		}
	})
	stop := b.stop
	b.stop = func() {
		stop()
		listener.running.Wait()
	}
	return b, listener
}

const ms = time.Millisecond

func expectTimes(t *testing.T, what string, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: at %v, want %v", what, got, want)
	}
}

func TestListener_NotificationIssuesATicket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, listener := listening(t, nil)
		defer b.stop()
		c := b.startWorkers(4, ms, ms)
		waitUntil(10 * time.Second)
		c.times()
		b.commit(listener, 1)
		waitUntil(12 * time.Second)
		claims, n := c.times()
		expect(t, "events", n, 1)
		// The second is for what committed late; it brings nothing, and is the last.
		expectTimes(t, "claims of one event", claims, 10*time.Second, 10*time.Second+252*ms)

		b.commit(listener, 95)
		waitUntil(13 * time.Second)
		_, n = c.times()
		expect(t, "events of a transaction larger than a batch", n, 95)
		if got := b.buffer.freshCounts(); len(got) > 1 {
			t.Errorf("fresh events were counted at %v", got)
		}
	})
}

func TestPoll_BacksOff(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{"every second": "@every 1s", "nightly": "0 2 * * *"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, spec, &fakeBuffer{}, func(c *distributor.Config) { c.Poll, c.Eager = true, true })
				defer b.stop()
				c := b.startWorkers(4, 0, 0)
				var back []time.Duration // each wait is longer by half, up to a second
				for wait, at := 5*ms, time.Duration(0); wait < time.Second; {
					wait += wait / 2
					at += wait
					back = append(back, at)
				}
				back = back[:len(back)-1]
				waitUntil(10*time.Second + 500*ms)
				claims, _ := c.times()
				expectTimes(t, "claims at the start", claims, append([]time.Duration{0}, back...)...)
				b.buffer.set(func(t *fakeBuffer) { t.unclaimed = 1 })
				waitUntil(20 * time.Second)
				claims, n := c.times()
				expect(t, "events", n, 1)
				expect(t, "claims", len(claims), 2+len(back))
				if first := claims[0]; first > 11500*ms {
					t.Errorf("the first claim was at %v; want within a second", first)
				}
				for i, after := range append([]time.Duration{0}, back...) {
					after += 5 * ms
					if got := claims[i+1] - claims[0]; got != after {
						t.Errorf("claim %d after one that brought an event came after %v, want %v", i+1, got, after)
					}
				}
				// One commit every 2 ms: a claim every 5.
				for range 500 {
					b.buffer.set(func(t *fakeBuffer) { t.unclaimed++ })
					waitUntil(sinceMidnight() + 2*ms)
				}
				claims, n = c.times()
				if len(claims) > 210 || n < 300 {
					t.Errorf("%d claims of %d events in a second", len(claims), n)
				}
			})
		})
	}
}

// TestPoll_Idle: with an interval for idle times polls never end.
func TestPoll_Idle(t *testing.T) {
	t.Parallel()
	for idle, want := range map[time.Duration]int{100 * ms: 100, 700 * ms: 14, time.Hour: 0} {
		t.Run(idle.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, "0 2 * * *", &fakeBuffer{}, func(c *distributor.Config) { c.Poll, c.Eager, c.IdlePoll = true, true, idle })
				defer b.stop()
				c := b.startWorkers(4, 0, 0)
				waitUntil(10 * time.Second)
				c.times()
				waitUntil(20 * time.Second)
				if claims, _ := c.times(); len(claims) < want-1 || len(claims) > want+1 {
					t.Errorf("%d claims in ten seconds, want %d", len(claims), want)
				}
			})
		})
	}
}

func TestListener_IdleCost(t *testing.T) {
	t.Parallel()
	for name, listens := range map[string]bool{"by polling": false, "by notifications": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, listener := listening(t, nil)
				defer b.stop()
				if !listens {
					listener.lock(false)
				}
				c := b.startWorkers(4, 0, 0)
				waitUntil(5 * time.Second)
				c.times()
				before := b.buffer.countCalls()
				waitUntil(605 * time.Second)
				claims, _ := c.times()
				expect(t, "claims in 10 minutes", len(claims), 0)
				most := 600 // one a second
				if listens {
					most = 150
				}
				if n := b.buffer.countCalls() - before; n > most {
					t.Errorf("%d counts in 10 minutes; want at most %d", n, most)
				}
				counts := len(b.buffer.freshCounts())
				if listens && counts > 12 || !listens && counts < 590 {
					t.Errorf("%d counts included fresh events", counts)
				}
			})
		})
	}
}

// TestListener_QuietCounts: while nothing happens and commits notify, counts are rare on the default schedule too. A batch, a
// lapse and work that waits make them frequent again.
func TestListener_QuietCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, listener := listening(t, func(c *distributor.Config) { c.Schedule = schedule(t, "@every 1s") })
		defer b.stop()
		b.startWorkers(4, 0, 0)
		counts := func(until time.Duration) int {
			before := b.buffer.countCalls()
			waitUntil(until)
			return b.buffer.countCalls() - before
		}
		counts(4*time.Second + 500*ms)
		if n := counts(64*time.Second + 500*ms); n < 11 || n > 15 { // 4 to 5 s apart
			t.Errorf("%d counts in 60 quiet seconds; want 11 to 15", n)
		}
		b.commit(listener, 1)
		if n := counts(66 * time.Second); n == 0 {
			t.Error("no count follows a claim")
		}
		counts(74*time.Second + 500*ms)
		b.buffer.set(func(f *fakeBuffer) { f.waiting = 1 })
		counts(80*time.Second + 500*ms)
		if n := counts(90*time.Second + 500*ms); n < 10 || n > 11 {
			t.Errorf("%d counts in 10 seconds while a batch waits; want one a second", n)
		}
		b.buffer.set(func(f *fakeBuffer) { f.waiting = 0 })
		counts(100*time.Second + 500*ms)
		listener.lock(false)
		if n := counts(110*time.Second + 500*ms); n < 10 || n > 11 {
			t.Errorf("%d counts in 10 seconds without notifications; want one a second", n)
		}
	})
}

// TestListener_Delayed: a delayed event is claimed when it is available. A quiet distributor learns of it by its commit, whose claim finds
// nothing.
func TestListener_Delayed(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{50 * ms, 700 * ms, 3 * time.Second, 3 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b, listener := listening(t, func(c *distributor.Config) { c.Schedule = schedule(t, "@every 1s") })
			defer b.stop()
			b.startWorkers(4, 0, 0)
			waitUntil(20*time.Second + 100*ms)
			b.buffer.set(func(f *fakeBuffer) { f.availableAt = time.Now().Add(delay) })
			b.commit(listener, 0)
			waitUntil(20*time.Second + 100*ms + max(delay, 300*ms) + 50*ms)
			b.buffer.set(func(f *fakeBuffer) {
				if f.unclaimed > 0 || !f.availableAt.IsZero() {
					t.Errorf("delayed by %v, and not claimed %v after its commit", delay, time.Since(midnight)-20*time.Second-100*ms)
				}
			})
		})
	}
}

// TestListener_NoNotificationIsLost: an event is claimed as soon as its commit
// notified, the listener listens again, or a poll is due.
func TestListener_NoNotificationIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		takes := time.Duration(rapid.IntRange(0, 300).Draw(r, "taking the lock, ms")) * ms
		lapse := time.Duration(rapid.IntRange(0, 3000).Draw(r, "lapse for, ms")) * ms
		commits := rapid.SliceOfN(rapid.IntRange(0, 4000), 1, 6).Draw(r, "commits, ms")
		hangs := time.Duration(rapid.IntRange(0, 200).Draw(r, "a count takes, ms")) * ms
		slices.Sort(commits)
		synctest.Test(t, func(t *testing.T) {
			b, listener := listening(t, nil)
			defer b.stop()
			b.buffer.set(func(t *fakeBuffer) { t.takes = hangs })
			c := b.startWorkers(4, ms, 0)
			waitUntil(time.Second)
			listener.mu.Lock()
			listener.takes = takes
			listener.mu.Unlock()
			// The lock is lost, and some time later taken again.
			listener.lock(false)
			listener.running.Go(func() {
				<-time.After(lapse)
				listener.lock(true)
			})
			c.times()
			for _, when := range commits {
				waitUntil(time.Second + time.Duration(when)*ms)
				b.commit(listener, 1)
			}
			// Two milliseconds after the last commit that rang, or the listener's return.
			waitUntil(max(sinceMidnight(), time.Second+lapse) + 2*ms)
			if _, n := c.times(); n != len(commits) {
				t.Errorf("%d of %d events were claimed (lapse for %v, commits at %v)", n, len(commits), lapse, commits)
			}
		})
	})
}

func TestListener_PausedByAStorm(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"at once": 0, "after a while": 80 * ms} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, listener := listening(t, func(c *distributor.Config) { c.BatchSize = 1000 })
				defer b.stop()
				listener.takes = takes
				c := b.startWorkers(4, ms, 3*ms)
				storm := func(every time.Duration, commits int) {
					for range commits {
						b.commit(listener, 1)
						waitUntil(sinceMidnight() + every)
					}
				}
				waitUntil(time.Second)
				storm(2*ms, 1500) // 500 a second for 3 seconds
				expect(t, "paused by 500 a second", len(listener.pausing()), 0)
				c.times()
				storm(200*time.Microsecond, 5000) // 5000 a second
				if got := listener.pausing(); !slices.Equal(got, []bool{true}) {
					t.Fatalf("paused %v by 5000 a second", got)
				}
				expect(t, "most tickets out at once", c.most, 4)
				c.times()
				storm(200*time.Microsecond, 5000)
				claims, n := c.times()
				if len(claims) > 250 || n < 4900 {
					t.Errorf("%d claims of %d events in a second of polling", len(claims), n)
				}
				waitUntil(sinceMidnight() + 400*ms)
				if got := listener.pausing(); !slices.Equal(got, []bool{true, false}) {
					t.Errorf("paused %v when the storm was over", got)
				}
				waitUntil(sinceMidnight() + 10*time.Second)
				c.times()
				now := sinceMidnight()
				b.commit(listener, 1)
				waitUntil(now + ms)
				claims, _ = c.times()
				expectTimes(t, "claims after it", claims, now)
			})
		})
	}
}

// While the sink is unavailable nothing is claimed, and notifications that slow down the application
// are paused all the same.
func TestListener_NotificationsDuringAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		allowed := 0
		b, listener := listening(t, func(c *distributor.Config) {
			c.Allow = func(context.Context) int {
				mu.Lock()
				defer mu.Unlock()
				return allowed
			}
		})
		defer b.stop()
		listener.takes = 150 * ms
		c := b.startWorkers(4, ms, ms)
		for range 10000 {
			b.commit(listener, 1)
			waitUntil(sinceMidnight() + ms/2)
		}
		waitUntil(20 * time.Second)
		claims, _ := c.times()
		expect(t, "claims", len(claims), 0)
		if got := listener.pausing(); !slices.Equal(got, []bool{true}) {
			t.Errorf("paused %v", got)
		}
		mu.Lock()
		allowed = 100
		mu.Unlock()
		waitUntil(25 * time.Second)
		_, n := c.times()
		expect(t, "events when it is back", n, 10000)
		if got := listener.pausing(); !slices.Equal(got, []bool{true, false}) {
			t.Errorf("paused %v in the end", got)
		}
	})
}

func TestListener_NotificationWaitsForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, listener := listening(t, func(c *distributor.Config) { c.MaxWaiting = 3 })
		defer b.stop()
		b.drain()
		b.buffer.set(func(t *fakeBuffer) { t.waiting = 3 })
		waitUntil(2 * time.Second)
		b.commit(listener, 1)
		waitUntil(4 * time.Second)
		expect(t, "tickets while too many batches wait", len(b.issued()), 0)
		b.buffer.set(func(t *fakeBuffer) { t.waiting = 2 })
		waitUntil(6 * time.Second)
		expect(t, "events when one is through", events(b.drain()), 1)

		// No worker is free, or only so many are taken.
		for range 20 {
			b.commit(listener, 1)
			synctest.Wait()
		}
		out := b.issued()
		expect(t, "tickets of a storm", len(out), 4)
		b.Done(distributor.Report{Ticket: out[0], Err: errors.New("connection reset")})
		for _, ticket := range out[1:] {
			b.use(ticket)
		}
		waitUntil(7 * time.Second)
		expect(t, "events left", events(b.drain()), 0)
		b.commit(listener, 1)
		out = b.issued()
		expect(t, "tickets of one notification", len(out), 1)
		b.Done(distributor.Report{Ticket: out[0], Err: errors.New("connection reset")})
		waitUntil(8 * time.Second)
		expect(t, "events of a ticket that was not used", events(b.drain()), 1)
	})
}

// At a sink that is tried again a claim that may find nothing is no probe.
func TestTickets_ProbeIsNotForANotification(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var probe atomic.Bool
		b, listener := listening(t, func(c *distributor.Config) {
			c.Allow = func(context.Context) int {
				if probe.CompareAndSwap(true, false) {
					return 1
				}
				return 0
			}
		})
		defer b.stop()
		waitUntil(time.Second)
		b.buffer.set(func(t *fakeBuffer) { t.due = 3 })
		b.commit(listener, 1)
		for n := range 3 {
			waitUntil(time.Duration(n+2) * time.Second)
			probe.Store(true)
			waitUntil(sinceMidnight() + time.Second/2)
			out := b.issued()
			expect(t, "tickets for a probe", len(out), 1)
			expect(t, "of them due", dueOf(out), 1)
			b.use(out[0])
		}
	})
}

func TestListener_UnusedWithoutPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, listener := listening(t, func(c *distributor.Config) { c.Poll = false })
		defer b.stop()
		b.commit(listener, 1)
		waitUntil(time.Hour)
		expect(t, "tickets before the schedule", len(b.issued()), 0)
		if got := b.buffer.freshCounts(); got != nil {
			t.Errorf("fresh events were counted at %v, before the schedule", got)
		}
	})
}
