package distributor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/distributor"
)

func TestCount_FollowsTheSchedule(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][]time.Duration{
		"*/5 * * * *":                       {5 * time.Minute, 10 * time.Minute},                                   // 5 fields
		"30 */4 * * * *":                    {30 * time.Second, 4*time.Minute + 30*time.Second, 510 * time.Second}, // 6, with seconds
		"@every 3m20s":                      {200 * time.Second, 400 * time.Second, 600 * time.Second},
		"0 0 30 2 *":                        nil,               // 30 February never comes
		"CRON_TZ=Asia/Kathmandu 50 5 * * *": {5 * time.Minute}, // UTC+5:45
	} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, spec, &fakeBuffer{}, nil)
				waitUntil(10*time.Minute + 30*time.Second)
				b.stop()
				if got := b.buffer.freshCounts(); !slices.Equal(got, want) {
					t.Errorf("counted at %v, want %v", got, want)
				}
			})
		})
	}
}

func TestTickets_OfADistribution(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		eager          bool
		waiting        int
		claims, events int // from one distribution
	}{
		{"exact", false, 20, 2, 20},
		{"rounded up", false, 21, 3, 21},
		{"none", false, 0, 0, 0},
		{"no more than max_batches", false, 300, 5, 50},
		{"eager until a batch is not full", true, 301, 31, 301},
		{"eager until no event is left", true, 300, 31, 300},
		{"eager without a full batch", true, 7, 1, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, "*/10 * * * *", &fakeBuffer{unclaimed: c.waiting}, func(conf *distributor.Config) {
					conf.Eager, conf.Workers = c.eager, 1
				})
				defer b.stop()
				waitUntil(10*time.Minute - time.Second)
				expect(t, "claims before the schedule", len(b.drain()), 0)
				waitUntil(10 * time.Minute)
				reports := b.drain()
				expect(t, "claims", len(reports), c.claims)
				expect(t, "events claimed", events(reports), c.events)
				waitUntil(20*time.Minute - time.Second)
				expect(t, "claims until the next distribution", len(b.drain()), 0)
				waitUntil(20 * time.Minute)
				expect(t, "events claimed then", events(b.drain()), min(50, c.waiting-c.events))
			})
		})
	}
}

// Batches that are small because their events are large do not end a distribution early.
func TestTickets_CutBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "*/10 * * * *", &fakeBuffer{unclaimed: 300}, nil)
		defer b.stop()
		b.size = 2
		waitUntil(10 * time.Minute)
		expect(t, "events claimed in 5 batches of 10, or more that are cut", events(b.drain()), 50)
	})
}

func TestTickets_KeepAllWorkersBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &fakeBuffer{unclaimed: 1000}, func(c *distributor.Config) { c.Eager = true })
		defer b.stop()
		waitUntil(time.Second)
		out := b.issued()
		expect(t, "tickets for 4 workers", len(out), 4)
		for range 90 {
			b.use(out[0])
			out = append(out[1:], b.issued()...)
			expect(t, "tickets out", len(out), 4)
		}
	})
}

func TestDistribution_ContinuesAfterASmallBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1m", &fakeBuffer{unclaimed: 40}, func(c *distributor.Config) { c.Workers = 1 })
		defer b.stop()
		waitUntil(time.Minute)
		// Three late commits come first, as a batch of their own.
		late := b.issued()
		expect(t, "tickets", len(late), 1)
		b.buffer.claim(3)
		b.Done(distributor.Report{Ticket: late[0], Events: 3})
		expect(t, "events after it", events(b.drain()), 37)
	})
}

func TestDistribution_EndsWithAnEmptyClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1m", &fakeBuffer{unclaimed: 50}, func(c *distributor.Config) { c.Workers, c.Eager = 1, true })
		defer b.stop()
		waitUntil(time.Minute)
		b.buffer.set(func(b *fakeBuffer) { b.unclaimed = 0 }) // another process was quicker
		expect(t, "claims", len(b.drain()), 1)
	})
}

// A claim that began before a count may find nothing although the count found
// much.
func TestDistribution_OutlivesAnOlderEmptyClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1m", &fakeBuffer{unclaimed: 1}, func(c *distributor.Config) { c.Workers = 2 })
		defer b.stop()
		waitUntil(time.Minute)
		slow := b.issued()
		expect(t, "tickets", len(slow), 1)
		b.buffer.set(func(b *fakeBuffer) { b.unclaimed = 50 })
		waitUntil(2 * time.Minute)
		out := b.issued()
		expect(t, "tickets of the next distribution", len(out), 1)
		b.Done(distributor.Report{Ticket: slow[0]})
		b.use(out[0])
		expect(t, "events after it", events(b.drain()), 40)
	})
}

func TestTickets_DueBatchesHaveTheirOwnClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0 2 * * *", &fakeBuffer{unclaimed: 500}, nil) // nightly
		defer b.stop()
		waitUntil(time.Minute)
		b.buffer.set(func(b *fakeBuffer) { b.due = 6 })
		waitUntil(time.Minute + time.Second)
		out := b.issued()
		expect(t, "due tickets within a second", dueOf(out), 4)
		expect(t, "tickets", len(out), 4)
		for _, ticket := range out {
			b.use(ticket)
		}
		out = b.issued()
		expect(t, "the rest, as workers come free", dueOf(out), 2)

		// One batch is put back. The distributor counts again when it is due.
		b.buffer.take()
		b.Done(distributor.Report{Ticket: out[0], Events: 10, PutBack: true, DueIn: 100 * time.Millisecond})
		b.use(out[1])
		waitUntil(sinceMidnight() + 99*time.Millisecond)
		b.buffer.set(func(b *fakeBuffer) { b.due = 1 })
		expect(t, "tickets before it is due", len(b.issued()), 0)
		waitUntil(sinceMidnight() + time.Millisecond)
		out = b.issued()
		expect(t, "tickets when it is due", dueOf(out), 1)

		// The parts of one that was halved are due at once.
		b.buffer.take()
		b.buffer.set(func(b *fakeBuffer) { b.due = 2 })
		b.Done(distributor.Report{Ticket: out[0], Events: 10, PutBack: true})
		expect(t, "tickets for the halves", dueOf(b.issued()), 2)
		if got := b.buffer.freshCounts(); got != nil {
			t.Errorf("fresh events were counted at %v, before the schedule", got)
		}
	})
}

func TestTickets_DueBatchesGetHalfOfTheWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		workers           int
		fresh, due, waits int
		tickets, dueOnes  int
	}{
		{"half each", 4, 1000, 1000, 10, 4, 2},
		{"an odd number", 5, 1000, 1000, 10, 5, 2},
		{"a few are due", 4, 1000, 1, 10, 4, 1},
		{"few are fresh", 4, 10, 1000, 10, 4, 3},
		{"none is fresh", 4, 0, 1000, 10, 4, 4},
		{"none is due", 4, 1000, 0, 10, 4, 0},
		{"too many wait: nothing fresh is claimed", 4, 1000, 2, 100, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, "@every 1s", &fakeBuffer{}, func(conf *distributor.Config) { conf.Workers, conf.MaxBatches = c.workers, 1000 })
				defer b.stop()
				waitUntil(500 * time.Millisecond)
				b.buffer.set(func(b *fakeBuffer) { b.unclaimed, b.due, b.waiting = c.fresh, c.due, c.waits })
				waitUntil(time.Second)
				out := b.issued()
				expect(t, "tickets", len(out), c.tickets)
				expect(t, "due tickets", dueOf(out), c.dueOnes)
			})
		})
	}
}

// Retries get no more than half of the workers while batches wait in the queue that no worker has leased yet.
func TestTickets_RetriesGetHalfOfTheWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                       string
		workers, due, unsent, want int
		elsewhere                  bool // fresh events wait
		tickets                    int
	}{
		{"half each", 4, 1000, 500, 2, false, 4},
		{"an odd number", 5, 1000, 500, 3, false, 5},
		{"one is unsent", 4, 1000, 1, 1, false, 4},
		{"none is unsent", 4, 1000, 0, 0, false, 4},
		{"no retries: the one that has been due longest comes first", 4, 1000, 1000, 0, false, 4},
		{"none is unsent, and fresh ones wait elsewhere", 4, 1000, 0, 0, true, 2},
		{"half each, and fresh ones wait elsewhere", 4, 1000, 500, 2, true, 4},
		{"few retries, and fresh ones wait elsewhere", 4, 1, 0, 0, true, 1},
		{"fresh ones wait elsewhere, and a single worker", 1, 1000, 0, 0, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, never, &fakeBuffer{due: c.due, unsent: c.unsent}, func(conf *distributor.Config) {
					conf.Workers, conf.FreshWaits = c.workers, func() bool { return c.elsewhere }
				})
				defer b.stop()
				out := b.issued()
				expect(t, "due tickets", dueOf(out), c.tickets)
				expect(t, "of these, for unsent batches", unsentOf(out), c.want)
			})
		})
	}
	t.Run("one worker takes turns", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := start(t, never, &fakeBuffer{due: 50, unsent: 25}, func(conf *distributor.Config) { conf.Workers = 1 })
			defer b.stop()
			unsent := 0
			for range 8 {
				out := b.issued()
				unsent += unsentOf(out)
				b.use(out[0])
			}
			expect(t, "tickets for unsent batches of 8", unsent, 4)
		})
	})
	t.Run("another process was quicker", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := start(t, never, &fakeBuffer{due: 50, unsent: 25}, nil)
			defer b.stop()
			for _, ticket := range b.issued() {
				r := distributor.Report{Ticket: ticket, Events: 1}
				if ticket.Unsent {
					r.Events = 0
				}
				b.Done(r)
			}
			out := b.issued()
			expect(t, "due tickets", dueOf(out), 4)
			expect(t, "of these, for unsent batches", unsentOf(out), 0)
		})
	})
}

func TestTickets_OneWorkerTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &fakeBuffer{}, func(c *distributor.Config) { c.Workers = 1 })
		defer b.stop()
		waitUntil(500 * time.Millisecond)
		b.buffer.set(func(b *fakeBuffer) { b.unclaimed, b.due = 50, 50 })
		waitUntil(time.Second)
		due := 0
		for range 8 {
			out := b.issued()
			due += dueOf(out)
			b.use(out[0])
		}
		expect(t, "due tickets of 8", due, 4)
	})
}

// The end of a search lets the next batch be claimed at once.
func TestTickets_AfterASearch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		allowed := 1
		b := start(t, "@every 1s", &fakeBuffer{}, func(c *distributor.Config) {
			c.Workers, c.Allow = 2, func(context.Context) int { return allowed }
		})
		defer b.stop()
		waitUntil(500 * time.Millisecond)
		b.buffer.set(func(b *fakeBuffer) { b.unclaimed = 1000 })
		waitUntil(time.Second)
		out := b.issued()
		expect(t, "tickets", len(out), 1)
		allowed = 0
		waitUntil(3 * time.Second)
		expect(t, "tickets during the search", len(b.issued()), 0)
		waitUntil(3*time.Second + time.Millisecond)
		allowed = 1
		b.Done(distributor.Report{Ticket: out[0], Events: 10, PutBack: true, DueIn: time.Minute, Searched: true})
		expect(t, "tickets at the end of the search", len(b.issued()), 1)
	})
}

func TestTickets_SuspectsGetOneAtATime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ workers, due, fresh int }{
		"none waits but they":       {4, 0, 0},
		"due batches and others":    {4, 20, 0},
		"fresh events":              {4, 0, 500},
		"one worker and all others": {1, 20, 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, "@every 1s", &fakeBuffer{}, func(conf *distributor.Config) { conf.Workers = c.workers })
				defer b.stop()
				waitUntil(500 * time.Millisecond)
				b.buffer.set(func(b *fakeBuffer) { b.unclaimed, b.due, b.suspects = c.fresh, c.due, 8 })
				waitUntil(time.Second)
				suspects, others := 0, 0
				for suspects < 8 {
					out := b.issued()
					if len(out) == 0 || suspectsOf(out) > 1 {
						t.Fatalf("%d tickets, %d of them for suspects, after %d suspects", len(out), suspectsOf(out), suspects)
					}
					suspects += suspectsOf(out)
					others += len(out) - suspectsOf(out)
					for _, ticket := range out {
						b.use(ticket)
					}
				}
				if c.due+c.fresh > 0 && others < 5 {
					t.Errorf("%d other tickets beside those of 8 suspects; want that they take turns", others)
				}
			})
		})
	}
}

// While the sink takes one batch only, as a probe, that is none which may kill the relay.
func TestTickets_SuspectIsTheLastProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &fakeBuffer{}, func(c *distributor.Config) { c.Allow = func(context.Context) int { return 1 } })
		defer b.stop()
		waitUntil(500 * time.Millisecond)
		b.buffer.set(func(b *fakeBuffer) { b.due, b.suspects = 1, 1 })
		waitUntil(time.Second)
		out := b.issued()
		expect(t, "first tickets, for suspects", suspectsOf(out[:1]), 0)
		for _, ticket := range out {
			b.use(ticket)
		}
		out = append(out, b.issued()...)
		expect(t, "tickets for suspects in the end", suspectsOf(out), 1)
	})
}

func TestBackpressure_StopsClaiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &fakeBuffer{unclaimed: 1000}, func(c *distributor.Config) { c.Workers, c.MaxWaiting, c.Eager = 1, 3, true })
		defer b.stop()
		waitUntil(time.Second)
		claims := 0
		for out := b.issued(); len(out) > 0 && claims < 100; out = b.issued() { // an outage: all are put back
			claims++
			b.buffer.set(func(b *fakeBuffer) { b.waiting++ })
			b.buffer.claim(10)
			b.Done(distributor.Report{Ticket: out[0], Events: 10, Full: true, PutBack: true, DueIn: time.Minute})
		}
		expect(t, "batches put back", claims, 3)
		waitUntil(10 * time.Second)
		expect(t, "tickets later", len(b.issued()), 0)
		b.buffer.set(func(b *fakeBuffer) { b.waiting = 2 })
		waitUntil(11 * time.Second)
		expect(t, "tickets when one is through", len(b.issued()), 1)
	})
}

// What waits for its own data stops no claims for ever: one batch is claimed after 5 s, 10 s, ... and at last every 30 s.
func TestBackpressure_Probes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		own := false
		b := start(t, "@every 1s", &fakeBuffer{unclaimed: 1000, waiting: 3}, func(c *distributor.Config) {
			c.Workers, c.MaxWaiting, c.Eager, c.ProbeFull = 2, 3, true, func() bool { return own }
		})
		defer b.stop()
		claimed := func() (n int) {
			for _, ticket := range b.issued() {
				n++
				b.Done(distributor.Report{Ticket: ticket, Events: 10, Full: true, PutBack: true, DueIn: time.Minute})
			}
			return n
		}
		waitUntil(time.Minute + time.Second/2)
		expect(t, "probes while the sink is away", claimed(), 0)
		own = true
		total := 0
		for second := 61; second <= 61+300; second++ {
			waitUntil(time.Duration(second)*time.Second + time.Second/2)
			n := claimed()
			if total += n; n > 1 {
				t.Fatalf("%d probes at once", n)
			}
		}
		if total < 11 || total > 12 { // at 0, 5, 15, 35, 65, 95, ...
			t.Errorf("%d probes in five minutes", total)
		}
		// One that is delivered is followed by the next at once, until another one has to wait.
		waitUntil(395 * time.Second)
		delivered := 0
		for range 50 {
			for _, ticket := range b.issued() {
				delivered++
				b.Done(distributor.Report{Ticket: ticket, Events: 10, Full: true})
			}
		}
		if delivered < 40 {
			t.Errorf("%d probes that were delivered, of 50", delivered)
		}
		waitUntil(396 * time.Second)
		expect(t, "a probe that has to wait", claimed(), 1)
		waitUntil(398 * time.Second)
		expect(t, "another one soon after it", claimed(), 0)
		b.buffer.set(func(b *fakeBuffer) { b.waiting = 2 })
		waitUntil(404 * time.Second)
		if claimed() == 0 {
			t.Error("nothing is claimed when fewer wait")
		}
	})
}

func TestBackpressure_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var last lastCount
		b := start(t, "@every 1s", &fakeBuffer{}, func(c *distributor.Config) { c.MaxWaiting, c.Observer = 3, &last })
		defer b.stop()
		said := func(when time.Duration, unclaimed, waiting int, wanted bool, warnings, infos int) {
			t.Helper()
			b.buffer.set(func(b *fakeBuffer) { b.unclaimed, b.waiting = unclaimed, waiting })
			waitUntil(when + 500*time.Millisecond)
			expect(t, "backpressure", last.backpressure != nil, wanted)
			expect(t, "warnings", strings.Count(b.log.String(), "level=WARN"), warnings)
			expect(t, "infos", strings.Count(b.log.String(), "level=INFO"), infos)
		}
		said(2*time.Second, 0, 3, false, 0, 0) // there is nothing to claim
		said(4*time.Second, 10, 2, false, 0, 0)
		said(6*time.Second, 10, 3, true, 1, 0)
		if want := "claiming stopped: 3 batches wait for a retry or a delete, max_waiting is 3"; last.backpressure.Error() != want {
			t.Errorf("backpressure is %q, want %q", last.backpressure, want)
		}
		if log := b.log.String(); !strings.Contains(log, "batches=3 max_waiting=3") {
			t.Errorf("the log does not say how many: %s", log)
		}
		said(time.Hour, 10, 7, true, 1, 0)
		said(time.Hour+2*time.Second, 10, 2, false, 1, 0) // one is being tried
		said(time.Hour+4*time.Second, 10, 3, true, 1, 0)
		said(time.Hour+20*time.Second, 10, 2, false, 1, 1)
		said(2*time.Hour, 10, 2, false, 1, 1)
		said(3*time.Hour, 10, 3, true, 2, 1)
	})
}

func TestTickets_WaitForTheSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var open, asked atomic.Int64
		b := start(t, never, &fakeBuffer{unclaimed: 30, due: 1}, func(c *distributor.Config) {
			c.Schedule = once(10 * time.Minute)
			c.Allow = func(context.Context) int {
				asked.Add(1)
				if open.CompareAndSwap(1, 0) { // a probe, and no other batch meanwhile
					return 1
				}
				return int(open.Load())
			}
		})
		defer b.stop()
		waitUntil(20 * time.Minute)
		expect(t, "tickets while the sink takes none", len(b.issued()), 0)
		if n := asked.Load(); n > 4*20*60+1 {
			t.Errorf("Allow was called %d times in 20 minutes; want four times a second", n)
		}
		open.Store(1)
		waitUntil(20*time.Minute + time.Second)
		probe := b.issued()
		expect(t, "tickets for a probe", len(probe), 1)
		expect(t, "of them due, which goes first", dueOf(probe), 1)
		b.buffer.take()
		b.buffer.set(func(b *fakeBuffer) { b.due = 1 })
		b.Done(distributor.Report{Ticket: probe[0], Events: 10, PutBack: true}) // in vain
		waitUntil(20*time.Minute + 2*time.Second)
		expect(t, "tickets before the next", len(b.issued()), 0)
		open.Store(1)
		waitUntil(20*time.Minute + 3*time.Second)
		probe = b.issued()
		expect(t, "tickets for the next", len(probe), 1)
		expect(t, "of them due, in turn", dueOf(probe), 0)
		open.Store(100)
		got := b.use(probe[0]).Events
		waitUntil(20*time.Minute + 4*time.Second)
		expect(t, "events after the recovery", got+events(b.drain()), 31)
		expect(t, "distributions", len(b.buffer.freshCounts()), 1)
	})
}

func TestCount_RetriesAfterAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		var last lastCount
		b := start(t, never, &fakeBuffer{unclaimed: 30}, func(c *distributor.Config) {
			c.Schedule, c.Observer = once(10*time.Minute), &last
		})
		defer b.stop()
		waitUntil(9 * time.Minute)
		b.buffer.set(func(b *fakeBuffer) { b.err = down })
		waitUntil(15*time.Minute + 500*time.Millisecond)
		expect(t, "observed", last.err, down)
		b.buffer.set(func(b *fakeBuffer) { b.err = nil })
		waitUntil(15*time.Minute + 1500*time.Millisecond)
		expect(t, "events when the database is back", events(b.drain()), 30)
		if n := strings.Count(b.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings in 6 minutes; want one:\n%s", n, b.log)
		}
		waitUntil(30 * time.Minute)
		if n := len(b.buffer.freshCounts()); n < 290 || n > 310 {
			t.Errorf("fresh events were counted %d times; want every second of the outage", n)
		}
	})
}

func TestCount_HangsWithoutBlocking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &fakeBuffer{unclaimed: 1000}, func(c *distributor.Config) { c.Eager = true })
		waitUntil(1500 * time.Millisecond)
		b.buffer.set(func(b *fakeBuffer) { b.hangs = true })
		waitUntil(5 * time.Second)
		expect(t, "events while a count hangs", events(b.drain()), 1000)
		counts := b.buffer.countCalls()
		waitUntil(31 * time.Second)
		expect(t, "counts while one hangs", b.buffer.countCalls(), counts)
		b.buffer.set(func(b *fakeBuffer) { b.hangs, b.unclaimed = false, 20 })
		waitUntil(34 * time.Second) // it had 30 seconds
		expect(t, "events after it", events(b.drain()), 20)

		b.buffer.set(func(b *fakeBuffer) { b.hangs = true })
		waitUntil(36 * time.Second)
		before := time.Now()
		b.stop()
		expect(t, "time to stop during a hanging count", time.Since(before), 0)
	})
}

func TestTickets_SurviveAFailedClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, never, &fakeBuffer{unclaimed: 50}, func(c *distributor.Config) { c.Schedule = once(time.Minute) })
		defer b.stop()
		waitUntil(time.Minute)
		claims := 0
		for sinceMidnight() < 2*time.Minute {
			for _, ticket := range b.issued() {
				claims++
				b.Done(distributor.Report{Ticket: ticket, Err: errors.New("connection refused")})
			}
			waitUntil(sinceMidnight() + 10*time.Millisecond)
		}
		if claims < 60 || claims > 4*62 {
			t.Errorf("%d claims in a minute without a database; want at most one a second and worker", claims)
		}
		waitUntil(3 * time.Minute)
		expect(t, "events when the database is back", events(b.drain()), 50)
		expect(t, "distributions", len(b.buffer.freshCounts()), 1)
	})
}

func TestBackoff_AfterASingleFailedClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, never, &fakeBuffer{unclaimed: 500}, func(c *distributor.Config) { c.Eager, c.Schedule = true, once(time.Minute) })
		defer b.stop()
		waitUntil(time.Minute)
		for range 5 {
			out := b.issued()
			expect(t, "tickets", len(out), 4)
			b.Done(distributor.Report{Ticket: out[0], Err: errors.New("connection reset")})
			for _, ticket := range out[1:] {
				b.use(ticket)
			}
			waitUntil(sinceMidnight() + 50*time.Millisecond)
		}
	})
}

func TestIdleCost(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"@every 1s", "* * * * * *", "@every 10s", "0 2 * * *", never} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, spec, &fakeBuffer{}, func(c *distributor.Config) {
					c.Eager = true
					c.Allow = func(context.Context) int { t.Error("an idle distributor calls Allow"); return 1 }
				})
				defer b.stop()
				waitUntil(10*time.Minute + time.Millisecond)
				if n := b.buffer.countCalls(); n < 600 || n > 660 {
					t.Errorf("%d counts in 10 minutes; want about one a second", n)
				}
			})
		})
	}
}

func TestStop_ClosesTicketsAndTakesReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &fakeBuffer{unclaimed: 1000}, nil)
		waitUntil(time.Second)
		out := b.issued()
		b.stop()
		if _, open := <-b.Tickets(); open {
			t.Error("a ticket was issued after the stop")
		}
		for _, ticket := range out { // after Run has returned
			b.use(ticket)
		}
	})
}
