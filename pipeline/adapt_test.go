package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/sink"
)

// knee is a sink that works on so many batches at once; more only queue there. A batch
// costs it a fixed time, and each event some.
type knee struct {
	at           int
	fixed, event time.Duration
	most         int // events it takes at once; 0: any number
	now          time.Time
}

func (k *knee) send(events, workers int) heard {
	took := time.Duration(float64(k.fixed+time.Duration(events)*k.event) * max(1, float64(workers)/float64(k.at)))
	h := heard{limit: events, events: events, claimed: k.now, sent: took, took: took + 2*time.Millisecond, busy: true, news: well}
	if k.most > 0 && events > k.most {
		h.news = tooLarge
	}
	k.now = k.now.Add(took / time.Duration(workers))
	h.ended = k.now
	return h
}

// settles sends batches and returns the workers of the second half of the time.
func (k *knee) settles(a *autoWorkers, batches int) (low, high int) {
	low = math.MaxInt
	for i := range batches {
		a.hear(k.send(100, a.now))
		if i > batches/2 && a.after == 0 { // a probe is not where it settles
			low, high = min(low, a.now), max(high, a.now)
		}
	}
	return low, high
}

func TestWorkersSettleWhereMoreOnlyQueue(t *testing.T) {
	t.Parallel()
	for at, want := range map[int][2]int{1: {1, 3}, 2: {2, 4}, 4: {4, 6}, 12: {12, 18}, 1000: {32, 32}} {
		k := knee{at: at, fixed: 10 * time.Millisecond, event: 10 * time.Microsecond, now: time.Now()}
		a := newAutoWorkers(32)
		if low, high := k.settles(&a, 20_000); low < want[0] || high > want[1] {
			t.Errorf("a sink that works on %d at once: %d to %d workers, want %v", at, low, high, want)
		}
	}
}

// What was worth it once is given back when it is no longer.
func TestWorkersAreGivenBack(t *testing.T) {
	t.Parallel()
	k := knee{at: 16, fixed: 10 * time.Millisecond, now: time.Now()}
	a := newAutoWorkers(32)
	k.settles(&a, 20_000)
	k.at = 2
	if low, high := k.settles(&a, 40_000); low < 2 || high > 4 {
		t.Errorf("%d to %d workers, want 2 to 4", low, high)
	}
}

func TestWorkersAreHalvedByAnOutageOnceAndComeBack(t *testing.T) {
	t.Parallel()
	k := knee{at: 16, fixed: 10 * time.Millisecond, now: time.Now()}
	a := newAutoWorkers(32)
	k.settles(&a, 20_000)
	before := max(a.now, a.after)
	for range before { // all that were in hand meet it
		a.hear(heard{limit: 100, events: 100, claimed: k.now.Add(-time.Millisecond), ended: k.now, busy: true, news: away})
	}
	if a.now != before/2 {
		t.Errorf("%d workers before an outage, %d after", before, a.now)
	}
	for range 10 { // it lasts
		k.now = k.now.Add(time.Second)
		a.hear(heard{limit: 100, events: 100, claimed: k.now, ended: k.now, busy: true, news: timedOut})
	}
	if a.now != 1 {
		t.Errorf("%d workers after a long outage, want 1", a.now)
	}
	if low, high := k.settles(&a, 20_000); low < 16 || high > 24 {
		t.Errorf("%d to %d workers after an outage, want 16 to 24", low, high)
	}
}

// A trickle says nothing of how many would be too many.
func TestWorkersDoNotRiseWithoutNeed(t *testing.T) {
	t.Parallel()
	k := knee{at: 16, fixed: 10 * time.Millisecond, now: time.Now()}
	a := newAutoWorkers(32)
	for range 1000 {
		idle, part := k.send(100, a.now), k.send(100, a.now)
		idle.busy, part.limit = false, 200
		a.hear(idle)
		a.hear(part)
	}
	if a.now != firstWorkers {
		t.Errorf("%d workers, want %d", a.now, firstWorkers)
	}
}

func TestBatchSizeSettlesWhereSendsAreQuick(t *testing.T) {
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
				a.hear(h)
				if i > 5000 {
					sizes = append(sizes, a.now)
					if h.news == tooLarge {
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
func TestBatchSizeIsHalvedByATimeOutAndNotByAnOutage(t *testing.T) {
	t.Parallel()
	a := newAutoSize(1000)
	k := knee{at: 1, event: time.Microsecond, now: time.Now()}
	for range 1000 {
		a.hear(k.send(a.now, 1))
	}
	for range 20 {
		h := k.send(a.now, 1)
		h.news = timedOut
		a.hear(h)
		h = k.send(a.now, 1)
		h.news = away
		a.hear(h)
	}
	if a.now != 500 {
		t.Errorf("%d events after an outage, want 500", a.now)
	}
	for range 1000 {
		a.hear(k.send(a.now, 1))
	}
	if a.now != 1000 {
		t.Errorf("%d events later, want 1000", a.now)
	}
}

// Whatever is heard, in whatever order.
func TestLimitsHaveBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newFlow(Config{
			BatchSize: rapid.IntRange(1, 20_000).Draw(t, "batch size"), AutoBatchSize: true,
			Workers: rapid.IntRange(1, 64).Draw(t, "workers"), AutoWorkers: true,
		}.withDefaults())
		now := time.Now()
		for range rapid.IntRange(1, 300).Draw(t, "batches") {
			size, hand := f.limits()
			f.hand = rapid.IntRange(0, hand).Draw(t, "in hand")
			h := heard{
				limit: size, events: size, claimed: now, sent: time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "sent")),
				news: rapid.SampledFrom([]news{nothing, well, well, well, tooLarge, away, timedOut}).Draw(t, "news"),
			}
			h.took = h.sent
			if rapid.Bool().Draw(t, "part") {
				h.events = rapid.IntRange(0, size).Draw(t, "events")
			}
			now = now.Add(h.sent + 1)
			h.ended = now
			for range rapid.IntRange(1, 20).Draw(t, "times") {
				f.hear(context.Background(), h)
			}
			if f.size.now < 1 || f.size.now > f.size.most || f.workers.now < 1 || f.workers.now > f.workers.most || f.slots.limit != f.workers.now {
				t.Fatalf("%d events of %d, %d workers of %d, %d slots", f.size.now, f.size.most, f.workers.now, f.workers.most, f.slots.limit)
			}
			if _, hand := f.limits(); hand > inHand(f.workers.most) {
				t.Fatalf("%d may be in hand, %d at the most", hand, inHand(f.workers.most))
			}
		}
	})
}

func TestWhatAnAnswerSaysOfLimits(t *testing.T) {
	t.Parallel()
	odd := errors.New("odd")
	for _, c := range []struct {
		err  error
		want news
	}{
		{nil, well},
		{odd, nothing},
		{sink.Permanent(odd), nothing},
		{sink.Permanent(sink.TooLarge(odd)), tooLarge},
		{&sink.SplitError{TooLarge: true}, tooLarge},
		{&sink.SplitError{}, nothing},
		{&sink.BatchError{}, nothing},
		{sink.Unavailable(odd), away},
		{sink.MaybePoison(odd), away},
		{&sink.UnavailableError{Err: odd, RetryAfter: time.Second}, away},
		{sink.MaybePoison(fmt.Errorf("posting: %w", context.DeadlineExceeded)), timedOut},
	} {
		if got := newsOf(c.err, true); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
	if newsOf(nil, false) != nothing {
		t.Error("a batch that was not sent says something")
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			s    = &slots{limit: 1}
			came []int
		)
		if !s.take(t.Context()) {
			t.Fatal("the first slot is taken")
		}
		gone, leave := context.WithCancel(t.Context())
		for i := range 4 {
			ctx := t.Context()
			if i == 1 {
				ctx = gone
			}
			go func() {
				if s.take(ctx) {
					came = append(came, i)
				} else {
					came = append(came, -i)
				}
			}()
			synctest.Wait()
		}
		step := func(what string, do func(), want ...int) {
			t.Helper()
			came = nil
			do()
			synctest.Wait()
			slices.Sort(came)
			if !slices.Equal(came, want) {
				t.Errorf("%s: %v came, want %v", what, came, want)
			}
		}
		step("nothing is free", func() {})
		step("one gives up", leave, -1)
		step("the first goes", s.give, 0)
		step("there is one more", func() { s.set(2) }, 2)
		step("there is one fewer", func() { s.set(1); s.give() })
		step("no more turns", s.close, -3)
		s.give()
		if !s.take(t.Context()) || s.take(t.Context()) {
			t.Error("of what is free nobody is sent away, and nobody waits")
		}
		s.give()
		if s.taken != 0 || len(s.waiting) != 0 {
			t.Errorf("%d are taken, %d wait", s.taken, len(s.waiting))
		}
	})
}

// A turn that comes at the moment its waiter gives up is not lost.
func TestASlotThatComesTooLateIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slots{limit: 1}
		for range 200 {
			s.take(t.Context())
			ctx, leave := context.WithCancel(t.Context())
			go func() {
				if s.take(ctx) {
					s.give()
				}
			}()
			synctest.Wait()
			leave() // it gives up, and has not said so yet
			s.give()
			synctest.Wait()
			if s.taken != 0 {
				t.Fatalf("%d slots are taken by nobody", s.taken)
			}
		}
	})
}
