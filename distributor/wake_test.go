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

// chime is a bell as a database makes one: while the lock is held commits ring, and
// taking it and giving it back take a while.
type chime struct {
	rings chan struct{}
	takes time.Duration // until the lock is held, or given back

	mu            sync.Mutex
	commits       int
	held          bool // the lock, so that commits ring
	hears, lapsed bool
	muted         bool
	mutes         []bool
	running       sync.WaitGroup
}

func newChime() *chime { return &chime{rings: make(chan struct{}, 1)} }

func (c *chime) Rings() <-chan struct{} { return c.rings }

func (c *chime) signal() {
	select {
	case c.rings <- struct{}{}:
	default:
	}
}

func (c *chime) Heard() (commits int, hears bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	commits, hears = c.commits, c.hears && !c.lapsed
	if c.hears && c.lapsed {
		c.signal()
	}
	c.commits, c.lapsed = 0, false
	return commits, hears
}

func (c *chime) Mute(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mutes, c.muted = append(c.mutes, on), on
	if on {
		c.hears, c.lapsed = false, true
	}
	c.running.Go(func() {
		<-time.After(c.takes)
		c.hold(!on)
	})
}

// hold takes the lock or gives it back; the bell hears from then on, or since before
// not any more.
func (c *chime) hold(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.muted && on {
		return
	}
	c.held, c.hears = on, on
	c.lapsed = c.lapsed || !on
	c.signal()
}

// commit commits events in one transaction.
func (b *bench) commit(c *chime, events int) {
	b.table.set(func(t *table) { t.unclaimed += events })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		c.commits++
		c.signal()
	}
}

func (c *chime) muting() []bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.mutes)
}

// crew works until the distributor stops: a claim sees what is committed when it
// begins and takes so long, then so long goes by until the report.
type crew struct {
	mu     sync.Mutex
	claims []time.Duration
	events int
	out    int // tickets
	most   int
}

func (b *bench) crew(workers int, claims, sends time.Duration) *crew {
	c := &crew{}
	for range workers {
		b.crews.Go(func() {
			for ticket := range b.Tickets() {
				n := b.table.claim(b.size)
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

func (c *crew) begin(events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims, c.events, c.out = append(c.claims, sinceMidnight()), c.events+events, c.out+1
	c.most = max(c.most, c.out)
}

func (c *crew) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out--
}

// times is when claims began, and how many events they brought; it forgets them.
func (c *crew) times() (at []time.Duration, events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, events = c.claims, c.events
	c.claims, c.events = nil, 0
	return at, events
}

// hearing is a nightly schedule with a bell that hears; what was asked for at the
// start is over.
func hearing(t *testing.T, change func(*distributor.Config)) (*bench, *chime) {
	t.Helper()
	bell := newChime()
	bell.held, bell.hears = true, true
	bell.signal()
	b := start(t, "0 2 * * *", &table{}, func(c *distributor.Config) {
		c.Poll, c.Bell, c.Eager = true, bell, true
		if change != nil {
			change(c)
		}
	})
	stop := b.stop
	b.stop = func() {
		stop()
		bell.running.Wait()
	}
	return b, bell
}

const ms = time.Millisecond

func expectTimes(t *testing.T, what string, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: at %v, want %v", what, got, want)
	}
}

func TestARingIsWorthATicketAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, bell := hearing(t, nil)
		defer b.stop()
		c := b.crew(4, ms, ms)
		at(10 * time.Second)
		c.times()
		b.commit(bell, 1)
		at(12 * time.Second)
		claims, n := c.times()
		expect(t, "events", n, 1)
		// The second is for what committed late; it brings nothing, and is the last.
		expectTimes(t, "claims of one event", claims, 10*time.Second, 10*time.Second+5*ms)

		b.commit(bell, 95)
		at(13 * time.Second)
		_, n = c.times()
		expect(t, "events of a transaction larger than a batch", n, 95)
		if got := b.table.counted(); len(got) > 1 {
			t.Errorf("fresh events were counted at %v", got)
		}
	})
}

func TestPollsBackOff(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{"every second": "@every 1s", "nightly": "0 2 * * *"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, spec, &table{}, func(c *distributor.Config) { c.Poll, c.Eager = true, true })
				defer b.stop()
				c := b.crew(4, 0, 0)
				back := []time.Duration{10 * ms, 30 * ms, 70 * ms, 150 * ms, 310 * ms, 630 * ms, 1270 * ms}
				at(10*time.Second + 500*ms)
				claims, _ := c.times()
				expectTimes(t, "claims at the start", claims, append([]time.Duration{0}, back...)...)
				b.table.set(func(t *table) { t.unclaimed = 1 })
				at(20 * time.Second)
				claims, n := c.times()
				expect(t, "events", n, 1)
				expect(t, "claims", len(claims), 9)
				if first := claims[0]; first > 11500*ms {
					t.Errorf("the first claim was at %v, within a second was expected", first)
				}
				for i, after := range append([]time.Duration{5 * ms, 15 * ms}, back[1:]...) {
					if i >= 2 {
						after += 5 * ms
					}
					if got := claims[i+1] - claims[0]; got != after {
						t.Errorf("claim %d after one that brought an event came after %v, want %v", i+1, got, after)
					}
				}
				// One commit every 2 ms: a claim every 5.
				for range 500 {
					b.table.set(func(t *table) { t.unclaimed++ })
					at(sinceMidnight() + 2*ms)
				}
				claims, n = c.times()
				if len(claims) > 210 || n < 300 {
					t.Errorf("%d claims of %d events in a second", len(claims), n)
				}
			})
		})
	}
}

func TestIdleCostOfWakeUps(t *testing.T) {
	t.Parallel()
	for name, ears := range map[string]bool{"by polling": false, "by ringing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, bell := hearing(t, nil)
				defer b.stop()
				if !ears {
					bell.hold(false)
				}
				c := b.crew(4, 0, 0)
				at(2 * time.Second)
				c.times()
				looks := b.table.looked()
				at(602 * time.Second)
				claims, _ := c.times()
				expect(t, "claims in 10 minutes", len(claims), 0)
				if n := b.table.looked() - looks; n > 600 {
					t.Errorf("%d looks in 10 minutes, one a second was expected", n)
				}
				counts := len(b.table.counted())
				if ears && counts > 12 || !ears && counts < 590 {
					t.Errorf("%d of the looks counted fresh events", counts)
				}
			})
		})
	}
}

// TestNoRingIsLost: whatever comes in between, an event is claimed as soon as its commit
// rang, or the bell hears again, or a poll is due.
func TestNoRingIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		takes := time.Duration(rapid.IntRange(0, 300).Draw(r, "taking the lock, ms")) * ms
		deaf := time.Duration(rapid.IntRange(0, 3000).Draw(r, "deaf for, ms")) * ms
		commits := rapid.SliceOfN(rapid.IntRange(0, 4000), 1, 6).Draw(r, "commits, ms")
		hangs := time.Duration(rapid.IntRange(0, 200).Draw(r, "a look takes, ms")) * ms
		slices.Sort(commits)
		synctest.Test(t, func(t *testing.T) {
			b, bell := hearing(t, nil)
			defer b.stop()
			b.table.set(func(t *table) { t.takes = hangs })
			c := b.crew(4, ms, 0)
			at(time.Second)
			bell.mu.Lock()
			bell.takes = takes
			bell.mu.Unlock()
			// The lock is lost, and some time later taken again.
			bell.hold(false)
			bell.running.Go(func() {
				<-time.After(deaf)
				bell.hold(true)
			})
			c.times()
			for _, when := range commits {
				at(time.Second + time.Duration(when)*ms)
				b.commit(bell, 1)
			}
			// Two milliseconds after the last commit that rang, or the bell's return.
			at(max(sinceMidnight(), time.Second+deaf) + 2*ms)
			if _, n := c.times(); n != len(commits) {
				t.Errorf("%d of %d events were claimed (deaf for %v, commits at %v)", n, len(commits), deaf, commits)
			}
		})
	})
}

func TestAStormMutesTheBell(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"at once": 0, "after a while": 80 * ms} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, bell := hearing(t, func(c *distributor.Config) { c.BatchSize = 1000 })
				defer b.stop()
				bell.takes = takes
				c := b.crew(4, ms, 3*ms)
				storm := func(every time.Duration, commits int) {
					for range commits {
						b.commit(bell, 1)
						at(sinceMidnight() + every)
					}
				}
				at(time.Second)
				storm(2*ms, 1500) // 500 a second for 3 seconds
				expect(t, "muted by 500 a second", len(bell.muting()), 0)
				c.times()
				storm(200*time.Microsecond, 5000) // 5000 a second
				if got := bell.muting(); !slices.Equal(got, []bool{true}) {
					t.Fatalf("muted %v by 5000 a second", got)
				}
				expect(t, "most tickets out at once", c.most, 4)
				c.times()
				storm(200*time.Microsecond, 5000)
				claims, n := c.times()
				if len(claims) > 250 || n < 4900 {
					t.Errorf("%d claims of %d events in a second of polling", len(claims), n)
				}
				at(sinceMidnight() + 400*ms)
				if got := bell.muting(); !slices.Equal(got, []bool{true, false}) {
					t.Errorf("muted %v when the storm was over", got)
				}
				at(sinceMidnight() + 10*time.Second)
				c.times()
				now := sinceMidnight()
				b.commit(bell, 1)
				at(now + ms)
				claims, _ = c.times()
				expectTimes(t, "claims after it", claims, now)
			})
		})
	}
}

// A sink that is away: nothing is claimed, and what holds up the application is ended
// all the same, for as long.
func TestRingsWhileTheSinkIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		allowed := 0
		b, bell := hearing(t, func(c *distributor.Config) {
			c.Allow = func(context.Context) int {
				mu.Lock()
				defer mu.Unlock()
				return allowed
			}
		})
		defer b.stop()
		bell.takes = 150 * ms
		c := b.crew(4, ms, ms)
		for range 10000 {
			b.commit(bell, 1)
			at(sinceMidnight() + ms/2)
		}
		at(20 * time.Second)
		claims, _ := c.times()
		expect(t, "claims", len(claims), 0)
		if got := bell.muting(); !slices.Equal(got, []bool{true}) {
			t.Errorf("muted %v", got)
		}
		mu.Lock()
		allowed = 100
		mu.Unlock()
		at(25 * time.Second)
		_, n := c.times()
		expect(t, "events when it is back", n, 10000)
		if got := bell.muting(); !slices.Equal(got, []bool{true, false}) {
			t.Errorf("muted %v in the end", got)
		}
	})
}

func TestARingWaitsForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, bell := hearing(t, func(c *distributor.Config) { c.MaxWaiting = 3 })
		defer b.stop()
		b.drain()
		b.table.set(func(t *table) { t.waiting = 3 })
		at(2 * time.Second)
		b.commit(bell, 1)
		at(4 * time.Second)
		expect(t, "tickets while too many batches wait", len(b.waits()), 0)
		b.table.set(func(t *table) { t.waiting = 2 })
		at(6 * time.Second)
		expect(t, "events when one is through", events(b.drain()), 1)

		// No worker is free, or only so many are taken.
		for range 20 {
			b.commit(bell, 1)
			synctest.Wait()
		}
		out := b.waits()
		expect(t, "tickets of a storm", len(out), 4)
		b.Done(distributor.Report{Ticket: out[0], Err: errors.New("connection reset")})
		for _, ticket := range out[1:] {
			b.use(ticket)
		}
		at(7 * time.Second)
		expect(t, "events left", events(b.drain()), 0)
		b.commit(bell, 1)
		out = b.waits()
		expect(t, "tickets of one ring", len(out), 1)
		b.Done(distributor.Report{Ticket: out[0], Err: errors.New("connection reset")})
		at(8 * time.Second)
		expect(t, "events of a ticket that was not used", events(b.drain()), 1)
	})
}

// At a sink that is tried again a claim that may find nothing is no trial.
func TestATrialIsNotForARing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var trial atomic.Bool
		b, bell := hearing(t, func(c *distributor.Config) {
			c.Allow = func(context.Context) int {
				if trial.CompareAndSwap(true, false) {
					return 1
				}
				return 0
			}
		})
		defer b.stop()
		at(time.Second)
		b.table.set(func(t *table) { t.due = 3 })
		b.commit(bell, 1)
		for n := range 3 {
			at(time.Duration(n+2) * time.Second)
			trial.Store(true)
			at(sinceMidnight() + time.Second/2)
			out := b.waits()
			expect(t, "tickets for a trial", len(out), 1)
			expect(t, "of them due", dueOf(out), 1)
			b.use(out[0])
		}
	})
}

func TestWithoutPollNothingRings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, bell := hearing(t, func(c *distributor.Config) { c.Poll = false })
		defer b.stop()
		b.commit(bell, 1)
		at(time.Hour)
		expect(t, "tickets before the schedule", len(b.waits()), 0)
		if got := b.table.counted(); got != nil {
			t.Errorf("fresh events were counted at %v, before the schedule", got)
		}
	})
}
