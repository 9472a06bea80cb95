package delivery

import "time"

// tries paces those of a sink that refuses everything, as far as this process knows: one batch at a time is sent, so seldom that a wrong key
// costs it few requests. Which one it is matters: a burst of bad events may fill hundreds of batches ahead of the next good event. So the nth try
// passes over 2^n-1 batches, in the order in which they are due or claimed, and sends the next one. They wait for a moment, unsent, and no
// attempt is counted. A step that doubles finds the end of a burst after a logarithm of its length (Bentley and Yao, An almost optimal algorithm
// for unbounded searching, 1976).
//
// The owner locks it.
type tries struct {
	pace  Backoff   // of the sink, which may be quicker
	n     int       // since the sink refuses everything
	until time.Time // nothing is claimed before
	// skip is how many batches the next try still passes over, and out how many of them may be claimed already, the last one at outAt.
	skip, out int
	outAt     time.Time
	begun     bool // the next try, with its first claim
	passed    int  // batches that were passed over since the sink refuses everything
}

const (
	// tryTakes is how long a claim and its send are waited for before another is tried.
	tryTakes = time.Second
	// maxSkip bounds what a try passes over, and maxPassed what all of them do: each costs a lease.
	maxSkip, maxPassed = 127, 2000
	// inTurn batches are sent one after the other, without passing over any.
	inTurn = 8
)

// tryPace is the time between two tries: a good event whose turn it is waits no longer.
var tryPace = Backoff{Initial: 200 * time.Millisecond, Max: 5 * time.Second, Multiplier: 2}

// refused notes that a try was.
func (t *tries) refused(now time.Time) {
	t.n++
	t.until = now.Add(t.pause())
	if t.skip, t.out, t.begun = 0, 0, false; t.passed < maxPassed {
		t.skip = min(1<<min(t.n, 16)-1, maxSkip)
	}
}

// pause is the time between the last try and the next one. A batch that is passed over waits as long: others are due then, too.
func (t *tries) pause() time.Duration { return min(tryPace.After(t.n), t.pace.After(t.n)) }

// allow returns how many batches may be claimed now, if so many are ready: 0 or 1. It is passed over if another one is ready.
func (t *tries) allow(now time.Time, ready int) int {
	if t.out > 0 && now.Sub(t.outAt) > tryTakes { // there was nothing to claim
		t.out = 0
	}
	if !t.begun && !now.Before(t.until) { // each is passed over once at most, and few are sent in turn soon enough
		if t.begun, t.skip = true, min(t.skip, ready-1); ready <= inTurn {
			t.skip = 0
		}
	}
	switch {
	case now.Before(t.until), t.out > 0 && (t.out == t.skip || ready < 2):
		return 0
	case t.skip > 0 && ready > 1:
		t.out++
		t.outAt = now
		return 1
	}
	t.skip, t.until = 0, now.Add(tryTakes)
	return 1
}

// needsNone notes that a batch was claimed about which the sink need not be asked.
func (t *tries) needsNone() { t.out = max(t.out-1, 0) }

// passesOver reports whether the batch that was claimed is passed over. last: it must not be, so it is the try.
func (t *tries) passesOver(now time.Time, last bool) bool {
	if t.out == 0 {
		return false
	}
	t.out--
	if last {
		t.skip, t.until = t.out, now.Add(tryTakes)
		return false
	}
	t.skip--
	t.passed++
	return true
}

// now lets the next batch be a try.
func (t *tries) now() { t.until, t.skip, t.out = time.Time{}, 0, 0 }

// end forgets the tries: the sink accepts events.
func (t *tries) end() { *t = tries{pace: t.pace} }
