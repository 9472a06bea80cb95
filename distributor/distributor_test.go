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
				b := start(t, spec, &table{}, nil)
				at(10*time.Minute + 30*time.Second)
				b.stop()
				if got := b.table.counted(); !slices.Equal(got, want) {
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
		{"eager goes on until a batch is not full", true, 301, 31, 301},
		{"eager goes on until there is none", true, 300, 31, 300},
		{"eager without a full batch", true, 7, 1, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, "*/10 * * * *", &table{unclaimed: c.waiting}, func(conf *distributor.Config) {
					conf.Eager, conf.Workers = c.eager, 1
				})
				defer b.stop()
				at(10*time.Minute - time.Second)
				expect(t, "claims before the schedule", len(b.drain()), 0)
				at(10 * time.Minute)
				reports := b.drain()
				expect(t, "claims", len(reports), c.claims)
				expect(t, "events claimed", events(reports), c.events)
				at(20*time.Minute - time.Second)
				expect(t, "claims until the next distribution", len(b.drain()), 0)
				at(20 * time.Minute)
				expect(t, "events claimed then", events(b.drain()), min(50, c.waiting-c.events))
			})
		})
	}
}

func TestTickets_KeepAllWorkersBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &table{unclaimed: 1000}, func(c *distributor.Config) { c.Eager = true })
		defer b.stop()
		at(time.Second)
		out := b.waits()
		expect(t, "tickets for 4 workers", len(out), 4)
		for range 90 {
			b.use(out[0])
			out = append(out[1:], b.waits()...)
			expect(t, "tickets out", len(out), 4)
		}
	})
}

func TestDistribution_ContinuesAfterASmallBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1m", &table{unclaimed: 40}, func(c *distributor.Config) { c.Workers = 1 })
		defer b.stop()
		at(time.Minute)
		// Three late commits come first, as a batch of their own.
		late := b.waits()
		expect(t, "tickets", len(late), 1)
		b.table.claim(3)
		b.Done(distributor.Report{Ticket: late[0], Events: 3})
		expect(t, "events after it", events(b.drain()), 37)
	})
}

func TestDistribution_EndsWithAnEmptyClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1m", &table{unclaimed: 50}, func(c *distributor.Config) { c.Workers, c.Eager = 1, true })
		defer b.stop()
		at(time.Minute)
		b.table.set(func(b *table) { b.unclaimed = 0 }) // another process was quicker
		expect(t, "claims", len(b.drain()), 1)
	})
}

// A claim that began before a count may find nothing although the count found
// much.
func TestDistribution_OutlivesAnOlderEmptyClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1m", &table{unclaimed: 1}, func(c *distributor.Config) { c.Workers = 2 })
		defer b.stop()
		at(time.Minute)
		slow := b.waits()
		expect(t, "tickets", len(slow), 1)
		b.table.set(func(b *table) { b.unclaimed = 50 })
		at(2 * time.Minute)
		out := b.waits()
		expect(t, "tickets of the next distribution", len(out), 1)
		b.Done(distributor.Report{Ticket: slow[0]})
		b.use(out[0])
		expect(t, "events after it", events(b.drain()), 40)
	})
}

func TestTickets_DueBatchesHaveTheirOwnClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "0 2 * * *", &table{unclaimed: 500}, nil) // nightly
		defer b.stop()
		at(time.Minute)
		b.table.set(func(b *table) { b.due = 6 })
		at(time.Minute + time.Second)
		out := b.waits()
		expect(t, "due tickets within a second", dueOf(out), 4)
		expect(t, "tickets", len(out), 4)
		for _, ticket := range out {
			b.use(ticket)
		}
		out = b.waits()
		expect(t, "the rest, as workers come free", dueOf(out), 2)

		// One is put back: it is looked for when it is due.
		b.table.take()
		b.Done(distributor.Report{Ticket: out[0], Events: 10, PutBack: true, DueIn: 100 * time.Millisecond})
		b.use(out[1])
		at(sinceMidnight() + 99*time.Millisecond)
		b.table.set(func(b *table) { b.due = 1 })
		expect(t, "tickets before it is due", len(b.waits()), 0)
		at(sinceMidnight() + time.Millisecond)
		out = b.waits()
		expect(t, "tickets when it is due", dueOf(out), 1)

		// The parts of one that was halved are due at once.
		b.table.take()
		b.table.set(func(b *table) { b.due = 2 })
		b.Done(distributor.Report{Ticket: out[0], Events: 10, PutBack: true})
		expect(t, "tickets for the halves", dueOf(b.waits()), 2)
		if got := b.table.counted(); got != nil {
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
				b := start(t, "@every 1s", &table{}, func(conf *distributor.Config) { conf.Workers, conf.MaxBatches = c.workers, 1000 })
				defer b.stop()
				at(500 * time.Millisecond)
				b.table.set(func(b *table) { b.unclaimed, b.due, b.waiting = c.fresh, c.due, c.waits })
				at(time.Second)
				out := b.waits()
				expect(t, "tickets", len(out), c.tickets)
				expect(t, "due tickets", dueOf(out), c.dueOnes)
			})
		})
	}
}

func TestTickets_OneWorkerTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &table{}, func(c *distributor.Config) { c.Workers = 1 })
		defer b.stop()
		at(500 * time.Millisecond)
		b.table.set(func(b *table) { b.unclaimed, b.due = 50, 50 })
		at(time.Second)
		due := 0
		for range 8 {
			out := b.waits()
			due += dueOf(out)
			b.use(out[0])
		}
		expect(t, "due tickets of 8", due, 4)
	})
}

func TestBackpressure_StopsClaiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &table{unclaimed: 1000}, func(c *distributor.Config) { c.Workers, c.MaxWaiting, c.Eager = 1, 3, true })
		defer b.stop()
		at(time.Second)
		claims := 0
		for out := b.waits(); len(out) > 0 && claims < 100; out = b.waits() { // an outage: all are put back
			claims++
			b.table.set(func(b *table) { b.waiting++ })
			b.table.claim(10)
			b.Done(distributor.Report{Ticket: out[0], Events: 10, Full: true, PutBack: true, DueIn: time.Minute})
		}
		expect(t, "batches put back", claims, 3)
		at(10 * time.Second)
		expect(t, "tickets later", len(b.waits()), 0)
		b.table.set(func(b *table) { b.waiting = 2 })
		at(11 * time.Second)
		expect(t, "tickets when one is through", len(b.waits()), 1)
	})
}

func TestBackpressure_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var last lastCount
		b := start(t, "@every 1s", &table{}, func(c *distributor.Config) { c.MaxWaiting, c.Observer = 3, &last })
		defer b.stop()
		said := func(when time.Duration, unclaimed, waiting int, wanted bool, warnings, infos int) {
			t.Helper()
			b.table.set(func(b *table) { b.unclaimed, b.waiting = unclaimed, waiting })
			at(when + 500*time.Millisecond)
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
		b := start(t, never, &table{unclaimed: 30, due: 1}, func(c *distributor.Config) {
			c.Schedule = once(10 * time.Minute)
			c.Allow = func(context.Context) int {
				asked.Add(1)
				if open.CompareAndSwap(1, 0) { // a trial, and then none beside it
					return 1
				}
				return int(open.Load())
			}
		})
		defer b.stop()
		at(20 * time.Minute)
		expect(t, "tickets while the sink takes none", len(b.waits()), 0)
		if n := asked.Load(); n > 4*20*60+1 {
			t.Errorf("asked %d times in 20 minutes, four times a second was expected", n)
		}
		open.Store(1)
		at(20*time.Minute + time.Second)
		trial := b.waits()
		expect(t, "tickets for a trial", len(trial), 1)
		expect(t, "of them due, which goes first", dueOf(trial), 1)
		b.table.take()
		b.table.set(func(b *table) { b.due = 1 })
		b.Done(distributor.Report{Ticket: trial[0], Events: 10, PutBack: true}) // in vain
		at(20*time.Minute + 2*time.Second)
		expect(t, "tickets before the next", len(b.waits()), 0)
		open.Store(1)
		at(20*time.Minute + 3*time.Second)
		trial = b.waits()
		expect(t, "tickets for the next", len(trial), 1)
		expect(t, "of them due, although one is", dueOf(trial), 0)
		open.Store(100)
		got := b.use(trial[0]).Events
		at(20*time.Minute + 4*time.Second)
		expect(t, "events when it takes them again", got+events(b.drain()), 31)
		expect(t, "distributions", len(b.table.counted()), 1)
	})
}

func TestCount_RetriesAfterAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("connection refused")
		var last lastCount
		b := start(t, never, &table{unclaimed: 30}, func(c *distributor.Config) {
			c.Schedule, c.Observer = once(10*time.Minute), &last
		})
		defer b.stop()
		at(9 * time.Minute)
		b.table.set(func(b *table) { b.err = away })
		at(15*time.Minute + 500*time.Millisecond)
		expect(t, "observed", last.err, away)
		b.table.set(func(b *table) { b.err = nil })
		at(15*time.Minute + 1500*time.Millisecond)
		expect(t, "events when the database is back", events(b.drain()), 30)
		if n := strings.Count(b.log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings in 6 minutes, one was expected:\n%s", n, b.log)
		}
		at(30 * time.Minute)
		if n := len(b.table.counted()); n < 290 || n > 310 {
			t.Errorf("fresh events were counted %d times, every second of the outage was expected", n)
		}
	})
}

func TestCount_HangsWithoutBlocking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &table{unclaimed: 1000}, func(c *distributor.Config) { c.Eager = true })
		at(1500 * time.Millisecond)
		b.table.set(func(b *table) { b.hangs = true })
		at(5 * time.Second)
		expect(t, "events while a look hangs", events(b.drain()), 1000)
		looks := b.table.looked()
		at(31 * time.Second)
		expect(t, "looks while one hangs", b.table.looked(), looks)
		b.table.set(func(b *table) { b.hangs, b.unclaimed = false, 20 })
		at(34 * time.Second) // it had 30 seconds
		expect(t, "events after it", events(b.drain()), 20)

		b.table.set(func(b *table) { b.hangs = true })
		at(36 * time.Second)
		before := time.Now()
		b.stop()
		expect(t, "time to stop beside a look that hangs", time.Since(before), 0)
	})
}

func TestTickets_SurviveAFailedClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, never, &table{unclaimed: 50}, func(c *distributor.Config) { c.Schedule = once(time.Minute) })
		defer b.stop()
		at(time.Minute)
		claims := 0
		for sinceMidnight() < 2*time.Minute {
			for _, ticket := range b.waits() {
				claims++
				b.Done(distributor.Report{Ticket: ticket, Err: errors.New("connection refused")})
			}
			at(sinceMidnight() + 10*time.Millisecond)
		}
		if claims < 60 || claims > 4*62 {
			t.Errorf("%d claims in a minute without a database, at most one a second and worker was expected", claims)
		}
		at(3 * time.Minute)
		expect(t, "events when the database is back", events(b.drain()), 50)
		expect(t, "distributions", len(b.table.counted()), 1)
	})
}

func TestBackoff_AfterASingleFailedClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, never, &table{unclaimed: 500}, func(c *distributor.Config) { c.Eager, c.Schedule = true, once(time.Minute) })
		defer b.stop()
		at(time.Minute)
		for range 5 {
			out := b.waits()
			expect(t, "tickets", len(out), 4)
			b.Done(distributor.Report{Ticket: out[0], Err: errors.New("connection reset")})
			for _, ticket := range out[1:] {
				b.use(ticket)
			}
			at(sinceMidnight() + 50*time.Millisecond)
		}
	})
}

func TestIdleCost(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"@every 1s", "* * * * * *", "@every 10s", "0 2 * * *", never} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := start(t, spec, &table{}, func(c *distributor.Config) {
					c.Eager = true
					c.Allow = func(context.Context) int { t.Error("an idle distributor asks for the sink"); return 1 }
				})
				defer b.stop()
				at(10*time.Minute + time.Millisecond)
				if n := b.table.looked(); n < 600 || n > 660 {
					t.Errorf("%d looks in 10 minutes, about one a second was expected", n)
				}
			})
		})
	}
}

func TestStop_ClosesTicketsAndTakesReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, "@every 1s", &table{unclaimed: 1000}, nil)
		at(time.Second)
		out := b.waits()
		b.stop()
		if _, open := <-b.Tickets(); open {
			t.Error("a ticket was handed out after the stop")
		}
		for _, ticket := range out { // nobody reads them any more
			b.use(ticket)
		}
	})
}
