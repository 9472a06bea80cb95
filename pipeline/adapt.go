package pipeline

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// `batch_size: auto` and `workers: auto` are two limits that find themselves: they
// rise by a step while all is well and are halved when it is not, which is what makes
// many who share one sink come to fair shares (additive increase, multiplicative
// decrease: Chiu and Jain, Analysis of the Increase and Decrease Algorithms, 1989).
// What "well" means for the workers is taken from TCP Vegas (Brakmo and Peterson,
// 1995), as Netflix's concurrency-limits applies it to servers: by how much a batch
// takes longer than it did at the best tells how many of those in hand only queue.
//
// Both are pure: they are told of batches, one at a time, and look at no clock.

// heard is what one batch of fresh events told.
type heard struct {
	// limit is the events it might hold, events those it had.
	limit, events int
	// claimed is when its claim began, ended when it was settled.
	claimed, ended time.Time
	// sent is how long the Send took; took is that with claim and settling, but without
	// the wait for its turn.
	sent, took time.Duration
	// busy: more batches were in hand than are sent at once, so it is the limit
	// that kept others from being sent.
	busy bool
	news news
}

// news is what a Send's answer says about limits.
type news int

const (
	nothing  news = iota // it was not sent, or refused for what is in it
	well                 // all of it was accepted
	tooLarge             // refused for its size, or divided because of it
	away                 // an outage, 429
	timedOut             // an outage that may be the size's doing
)

func newsOf(err error, sent bool) news {
	divide, isDivide := errors.AsType[*sink.SplitError](err)
	switch {
	case !sent:
		return nothing
	case err == nil:
		return well
	case errors.Is(err, sink.ErrTooLarge), isDivide && divide.TooLarge:
		return tooLarge
	case !errors.Is(err, sink.ErrUnavailable):
		return nothing
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return timedOut
	}
	return away
}

const (
	firstBatchSize = 500
	// quick is what a send may take: beyond, a larger batch saves next to nothing,
	// and events wait longer for those they share it with.
	quick = 100 * time.Millisecond
	// sizeSends is how many sends of one size are heard before it changes.
	sizeSends = 4
	// mostPatience bounds how many times as many it takes where larger ones were refused.
	mostPatience = 256

	firstWorkers = 2
	// roundSends is how many batches at least make a round.
	roundSends = 8
	// probeEvery is after how many rounds a quarter as many batches are sent for half a
	// round, to see anew how long one takes when nothing queues.
	probeEvery = 64
)

// autoSize finds the events of a batch, 1 to most: as many as the sink takes quickly.
type autoSize struct {
	now, most int

	patience int // how many times sizeSends before it rises
	sends    int // heard of this size
	took     time.Duration
	went     bool // something went through since a time-out
}

func newAutoSize(most int) autoSize {
	return autoSize{now: min(firstBatchSize, most), most: most, patience: 1}
}

// hear tells whether the limit changed. Only a full batch of this very size says
// anything of it.
func (a *autoSize) hear(h heard) bool {
	a.went = a.went || h.news == well
	switch {
	case h.limit != a.now || h.events < h.limit:
		return false
	case h.news == tooLarge:
		a.patience = min(2*a.patience, mostPatience)
		return a.set(a.now / 2)
	case h.news == timedOut && a.went: // else it is an outage
		a.went = false
		return a.set(a.now / 2)
	case h.news != well:
		return false
	}
	a.sends++
	a.took += h.sent
	if a.sends%sizeSends != 0 {
		return false
	}
	// A sink that is slow however small the batch is made no quicker by small ones.
	took, first := a.took/time.Duration(a.sends), min(firstBatchSize, a.most)
	step := max(1, a.most/20)
	if a.now < first {
		step = max(1, first/20)
	}
	switch next := time.Duration(float64(took) * float64(a.now+step) / float64(a.now)); {
	case took > quick && a.now > first:
		return a.set(max(first, a.now/2))
	case (next <= quick || a.now < first) && a.sends >= sizeSends*a.patience:
		return a.set(a.now + step)
	case a.sends >= sizeSends*a.patience:
		a.sends, a.took = 0, 0 // what was long ago counts no more
	}
	return false
}

func (a *autoSize) set(size int) bool {
	before := a.now
	a.now = min(max(1, size), a.most)
	a.sends, a.took = 0, 0
	return a.now != before
}

// autoWorkers finds the batches that are sent at once, 1 to most: as many as get more
// through. Batches that only queue make the others take longer and no more arrive.
type autoWorkers struct {
	now, most int

	best   float64   // the nanoseconds an event took in the quickest round
	since  time.Time // the limit last changed
	halved time.Time // it was last halved
	sends  int       // heard in this round
	took   float64   // nanoseconds an event, summed up
	rounds int       // since the last probe
	after  int       // in a probe: what comes after it; else 0
}

func newAutoWorkers(most int) autoWorkers {
	return autoWorkers{now: min(firstWorkers, most), most: most}
}

// hear tells whether the limit changed. An outage that meets all that is in hand is one,
// and how long a batch took counts when it was claimed under this very limit.
func (a *autoWorkers) hear(h heard) bool {
	switch {
	case h.news == away || h.news == timedOut:
		if h.claimed.Before(a.halved) {
			return false
		}
		most := max(a.now, a.after)
		a.after, a.halved = 0, h.ended
		return a.set(most/2, h.ended)
	case h.claimed.Before(a.since), h.news != well || !h.busy || h.events < h.limit || h.events == 0:
		return false
	}
	a.sends++
	a.took += float64(h.took) / float64(h.events)
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
		return a.set(back, h.ended)
	}
	if a.best == 0 || took < a.best {
		a.best = took
	}
	a.rounds++
	if a.rounds >= probeEvery && a.now > 1 {
		a.rounds, a.after = 0, a.now
		return a.set(a.now/4, h.ended)
	}
	queue := 0.0 // of those in hand, so many do nothing but wait
	if took > 0 {
		queue = float64(a.now) * (1 - a.best/took)
	}
	switch at := float64(a.now); {
	case queue < max(1, at/5):
		return a.set(a.now+1, h.ended)
	case queue > max(2, at/3):
		return a.set(a.now-1, h.ended)
	}
	return a.set(a.now, h.ended)
}

// rebase forgets how long batches took: they are of another size now.
func (a *autoWorkers) rebase(at time.Time) {
	if a.after > 0 {
		a.now, a.after = a.after, 0
	}
	a.best = 0
	a.set(a.now, at)
}

// set begins a round.
func (a *autoWorkers) set(workers int, at time.Time) bool {
	before := a.now
	a.now = min(max(1, workers), a.most)
	a.sends, a.took = 0, 0
	if a.now != before {
		a.since = at
	}
	return a.now != before
}
