package pipeline

import (
	"time"

	"github.com/outboxrelay/relay/delivery"
)

// autotune finds the limits of `batch_size: auto` and `workers: auto`: they rise by a step while all is well
// and are halved when it is not, which gives several relays that share one sink fair shares (additive
// increase, multiplicative decrease: Chiu and Jain, Analysis of the Increase and Decrease Algorithms, 1989).
// What "well" means for the workers is taken from TCP Vegas (Brakmo and Peterson, 1995), as Netflix's
// concurrency-limits applies it to servers: how much longer a batch takes than it did at the best shows how
// many of those in flight only queue.
//
// It is pure: it takes samples, one at a time, and reads no clock.
type autotune struct {
	size        autoSize
	workers     autoWorkers
	autoSize    bool
	autoWorkers bool
}

func newAutotune(c Config) autotune {
	a := autotune{size: newAutoSize(c.BatchSize), workers: newAutoWorkers(c.Workers), autoSize: c.AutoBatchSize, autoWorkers: c.AutoWorkers}
	if !a.autoSize {
		a.size.now = c.BatchSize
	}
	if !a.autoWorkers {
		a.workers.now = c.Workers
	}
	return a
}

// current are the limits now.
func (a *autotune) current() (batchSize, workers int) { return a.size.now, a.workers.now }

// record learns from a sample and reports whether a limit changed.
func (a *autotune) record(s sample) (changed bool) {
	resized := a.autoSize && a.size.record(s)
	if !a.autoWorkers {
		return resized
	}
	workers := a.workers.now
	a.workers.record(s)
	if resized {
		a.workers.reset(s.ended)
	}
	return resized || a.workers.now != workers
}

// sample is what one batch of fresh events showed.
type sample struct {
	// limit is the events it might hold, events those it had.
	limit, events int
	// claimed is when its claim began, ended when it was settled.
	claimed, ended time.Time
	// sent is how long the Send took; took is that with claim and settle, but without the wait for its slot.
	sent, took time.Duration
	// busy: more batches were in flight than are sent at once, so the limit kept others from being sent.
	busy bool
	// answer is what the Send said of the limits.
	answer delivery.Answer
}

const (
	firstBatchSize = 500
	// quick is what a send may take: beyond that a larger batch saves next to nothing, and
	// events wait longer for the others in it.
	quick = 100 * time.Millisecond
	// sizeSends is how many sends of one size are recorded before it changes.
	sizeSends = 4
	// maxCooldown bounds how many times as many it takes after larger ones were refused.
	maxCooldown = 256

	firstWorkers = 2
	// roundSends is how many batches a round has at least.
	roundSends = 8
	// probeEvery is after how many rounds a quarter as many batches are sent for half a round,
	// to measure again how long one takes when nothing queues.
	probeEvery = 64
)

// autoSize finds the events of a batch, 1 to upper: as many as the sink takes quickly.
type autoSize struct {
	now, upper int

	cooldown int // how many times sizeSends before it rises
	sends    int // recorded at this size
	took     time.Duration
	ok       bool // something was accepted since a time-out
}

func newAutoSize(upper int) autoSize {
	return autoSize{now: min(firstBatchSize, upper), upper: upper, cooldown: 1}
}

// record reports whether the size changed. Only a full batch of this very size says anything of it.
func (a *autoSize) record(s sample) bool {
	a.ok = a.ok || s.answer == delivery.Accepted
	switch {
	case s.limit != a.now || s.events < s.limit:
		return false
	case s.answer == delivery.TooLarge:
		a.cooldown = min(2*a.cooldown, maxCooldown)
		return a.set(a.now / 2)
	case s.answer == delivery.TimedOut && a.ok: // otherwise it is an outage
		a.ok = false
		return a.set(a.now / 2)
	case s.answer != delivery.Accepted:
		return false
	}
	a.sends++
	a.took += s.sent
	if a.sends%sizeSends != 0 {
		return false
	}
	// Smaller batches do not speed up a sink that is slow at any size.
	took, first := a.took/time.Duration(a.sends), min(firstBatchSize, a.upper)
	step := max(1, a.upper/20)
	if a.now < first {
		step = max(1, first/20)
	}
	switch next := time.Duration(float64(took) * float64(a.now+step) / float64(a.now)); {
	case took > quick && a.now > first:
		return a.set(max(first, a.now/2))
	case (next <= quick || a.now < first) && a.sends >= sizeSends*a.cooldown:
		return a.set(a.now + step)
	case a.sends >= sizeSends*a.cooldown:
		a.sends, a.took = 0, 0 // forget what was long ago
	}
	return false
}

func (a *autoSize) set(size int) bool {
	before := a.now
	a.now = min(max(1, size), a.upper)
	a.sends, a.took = 0, 0
	return a.now != before
}

// autoWorkers finds the batches that are sent at once, 1 to upper: as many as get more
// through. Batches that only queue slow the others down, and no more arrive.
type autoWorkers struct {
	now, upper int

	best   float64   // the nanoseconds an event took in the quickest round
	since  time.Time // the limit last changed
	halved time.Time // it was last halved
	sends  int       // recorded in this round
	took   float64   // nanoseconds an event, summed up
	rounds int       // since the last probe
	after  int       // in a probe: what comes after it; otherwise 0
}

func newAutoWorkers(upper int) autoWorkers {
	return autoWorkers{now: min(firstWorkers, upper), upper: upper}
}

// record reports whether the limit changed. An outage that meets all batches in flight counts
// once, and how long a batch took counts if it was claimed under this very limit.
func (a *autoWorkers) record(s sample) bool {
	switch {
	case s.answer == delivery.Unavailable || s.answer == delivery.TimedOut:
		if s.claimed.Before(a.halved) {
			return false
		}
		most := max(a.now, a.after)
		a.after, a.halved = 0, s.ended
		return a.set(most/2, s.ended)
	case s.claimed.Before(a.since), s.answer != delivery.Accepted || !s.busy || s.events < s.limit || s.events == 0:
		return false
	}
	a.sends++
	a.took += float64(s.took) / float64(s.events)
	round := max(roundSends, 2*a.now)
	if a.after > 0 {
		round /= 2
	}
	if a.sends < round {
		return false
	}
	took := a.took / float64(a.sends)
	if a.after > 0 {
		a.best = took
		back := a.after
		a.after = 0
		return a.set(back, s.ended)
	}
	if a.best == 0 || took < a.best {
		a.best = took
	}
	a.rounds++
	if a.rounds >= probeEvery && a.now > 1 {
		a.rounds, a.after = 0, a.now
		return a.set(a.now/4, s.ended)
	}
	queue := 0.0 // so many of those in flight only wait
	if took > 0 {
		queue = float64(a.now) * (1 - a.best/took)
	}
	switch at := float64(a.now); {
	case queue < max(1, at/5):
		return a.set(a.now+1, s.ended)
	case queue > max(2, at/3):
		return a.set(a.now-1, s.ended)
	}
	return a.set(a.now, s.ended)
}

// reset forgets how long batches took: they are of another size now.
func (a *autoWorkers) reset(at time.Time) {
	if a.after > 0 {
		a.now, a.after = a.after, 0
	}
	a.best = 0
	a.set(a.now, at)
}

// set begins a round.
func (a *autoWorkers) set(workers int, at time.Time) bool {
	before := a.now
	a.now = min(max(1, workers), a.upper)
	a.sends, a.took = 0, 0
	if a.now != before {
		a.since = at
	}
	return a.now != before
}
