package pipeline

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/delivery"
)

// knee is a sink that works on so many batches at once; more only queue there. A batch
// costs it a fixed time, and each event some.
type knee struct {
	at           int
	fixed, event time.Duration
	most         int // events it takes at once; 0: any number
	now          time.Time
}

func (k *knee) send(events, workers int) sample {
	took := time.Duration(float64(k.fixed+time.Duration(events)*k.event) * max(1, float64(workers)/float64(k.at)))
	h := sample{limit: events, events: events, claimed: k.now, sent: took, took: took + 2*time.Millisecond, busy: true, answer: delivery.Accepted}
	if k.most > 0 && events > k.most {
		h.answer = delivery.TooLarge
	}
	k.now = k.now.Add(took / time.Duration(workers))
	h.ended = k.now
	return h
}

// settles sends batches and returns the workers of the second half of the time.
func (k *knee) settles(a *autoWorkers, batches int) (low, high int) {
	low = math.MaxInt
	for i := range batches {
		a.record(k.send(100, a.now))
		if i > batches/2 && a.after == 0 { // a probe is not where it settles
			low, high = min(low, a.now), max(high, a.now)
		}
	}
	return low, high
}

func TestAutoWorkers_SettleWhereMoreOnlyQueue(t *testing.T) {
	t.Parallel()
	for at, want := range map[int][2]int{1: {1, 3}, 2: {2, 4}, 4: {4, 6}, 12: {12, 18}, 1000: {32, 32}} {
		k := knee{at: at, fixed: 10 * time.Millisecond, event: 10 * time.Microsecond, now: time.Now()}
		a := newAutoWorkers(32)
		if low, high := k.settles(&a, 20_000); low < want[0] || high > want[1] {
			t.Errorf("a sink that works on %d at once: %d to %d workers, want %v", at, low, high, want)
		}
	}
}

// Concurrency that no longer helps is reduced again.
func TestTickets_WorkersAreReturned(t *testing.T) {
	t.Parallel()
	k := knee{at: 16, fixed: 10 * time.Millisecond, now: time.Now()}
	a := newAutoWorkers(32)
	k.settles(&a, 20_000)
	k.at = 2
	if low, high := k.settles(&a, 40_000); low < 2 || high > 4 {
		t.Errorf("%d to %d workers, want 2 to 4", low, high)
	}
}

func TestAutoWorkers_HalvedByAnOutageOnce(t *testing.T) {
	t.Parallel()
	k := knee{at: 16, fixed: 10 * time.Millisecond, now: time.Now()}
	a := newAutoWorkers(32)
	k.settles(&a, 20_000)
	before := max(a.now, a.after)
	for range before { // all that were in flight meet it
		a.record(sample{limit: 100, events: 100, claimed: k.now.Add(-time.Millisecond), ended: k.now, busy: true, answer: delivery.Unavailable})
	}
	if a.now != before/2 {
		t.Errorf("%d workers before an outage, %d after", before, a.now)
	}
	for range 10 { // it lasts
		k.now = k.now.Add(time.Second)
		a.record(sample{limit: 100, events: 100, claimed: k.now, ended: k.now, busy: true, answer: delivery.TimedOut})
	}
	if a.now != 1 {
		t.Errorf("%d workers after a long outage, want 1", a.now)
	}
	if low, high := k.settles(&a, 20_000); low < 16 || high > 24 {
		t.Errorf("%d to %d workers after an outage, want 16 to 24", low, high)
	}
}

// A trickle says nothing of how many would be too many.
func TestAutoWorkers_DoNotRiseWithoutNeed(t *testing.T) {
	t.Parallel()
	k := knee{at: 16, fixed: 10 * time.Millisecond, now: time.Now()}
	a := newAutoWorkers(32)
	for range 1000 {
		idle, part := k.send(100, a.now), k.send(100, a.now)
		idle.busy, part.limit = false, 200
		a.record(idle)
		a.record(part)
	}
	if a.now != firstWorkers {
		t.Errorf("%d workers, want %d", a.now, firstWorkers)
	}
}

func TestAutoSize_SettlesWhereSendsAreQuick(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		knee
		low, high int
	}{
		"quick":                       {knee{event: time.Microsecond}, 10_000, 10_000},
		"100 ms for 2000":             {knee{event: 50 * time.Microsecond}, 1000, 2000},
		"slow however small":          {knee{fixed: 300 * time.Millisecond}, 500, 500},
		"takes 3000 and not one more": {knee{event: time.Microsecond, most: 3000}, 1500, 3500},
		"takes 30 and not one more":   {knee{event: time.Microsecond, most: 30}, 15, 55},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAutoSize(10_000)
			c.at, c.now = 1, time.Now()
			var sizes []int
			refused := 0
			for i := range 20_000 {
				h := c.send(a.now, 1)
				a.record(h)
				if i > 5000 {
					sizes = append(sizes, a.now)
					if h.answer == delivery.TooLarge {
						refused++
					}
				}
			}
			if low, high := slices.Min(sizes), slices.Max(sizes); low < c.low || high > c.high {
				t.Errorf("%d to %d events, want %d to %d", low, high, c.low, c.high)
			}
			if refused > 30 { // of 15,000
				t.Errorf("%d batches were refused for their size", refused)
			}
		})
	}
}

// A time-out may be the size's doing, once; one after the other is an outage, which
// must not make single events of the batches.
func TestAutoSize_HalvedByATimeout(t *testing.T) {
	t.Parallel()
	a := newAutoSize(1000)
	k := knee{at: 1, event: time.Microsecond, now: time.Now()}
	for range 1000 {
		a.record(k.send(a.now, 1))
	}
	for range 20 {
		h := k.send(a.now, 1)
		h.answer = delivery.TimedOut
		a.record(h)
		h = k.send(a.now, 1)
		h.answer = delivery.Unavailable
		a.record(h)
	}
	if a.now != 500 {
		t.Errorf("%d events after an outage, want 500", a.now)
	}
	for range 1000 {
		a.record(k.send(a.now, 1))
	}
	if a.now != 1000 {
		t.Errorf("%d events later, want 1000", a.now)
	}
}

// The limits hold for all samples, in any order.
func TestAutotune_Bounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newLimiter(Config{
			BatchSize: rapid.IntRange(1, 20_000).Draw(t, "batch size"), AutoBatchSize: true,
			Workers: rapid.IntRange(1, 64).Draw(t, "workers"), AutoWorkers: true,
		}.withDefaults())
		now := time.Now()
		for range rapid.IntRange(1, 300).Draw(t, "batches") {
			size, most := f.limits()
			f.inFlight = rapid.IntRange(0, most).Draw(t, "in flight")
			h := sample{
				limit: size, events: size, claimed: now, sent: time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "sent")),
				answer: rapid.SampledFrom([]delivery.Answer{
					delivery.Nothing, delivery.Accepted, delivery.Accepted, delivery.Accepted, delivery.TooLarge, delivery.Unavailable, delivery.TimedOut,
				}).Draw(t, "answer"),
			}
			h.took = h.sent
			if rapid.Bool().Draw(t, "part") {
				h.events = rapid.IntRange(0, size).Draw(t, "events")
			}
			now = now.Add(h.sent + 1)
			h.ended = now
			for range rapid.IntRange(1, 20).Draw(t, "times") {
				f.record(context.Background(), h)
			}
			of, workers := &f.tune.size, &f.tune.workers
			if of.now < 1 || of.now > of.upper || workers.now < 1 || workers.now > workers.upper || f.slots.size != workers.now {
				t.Fatalf("%d events of %d, %d workers of %d, %d slots", of.now, of.upper, workers.now, workers.upper, f.slots.size)
			}
			if _, most := f.limits(); most > maxInFlight(workers.upper) {
				t.Fatalf("%d may be in flight, %d at the most", most, maxInFlight(workers.upper))
			}
		}
	})
}
