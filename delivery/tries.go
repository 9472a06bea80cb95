package delivery

import "time"

// tries paces those of a sink that refuses everything, as far as this process knows: one batch at a time is sent, so seldom that a wrong key
// costs it few requests. Which one it is matters: a burst of bad events may fill hundreds of batches ahead of the next good event. So due batches take turns,
// the newest and the oldest (buffer.DueNewest), with fresh events, of which the nth try passes over 2^n-1 batches: they are claimed and put back to wait,
// unsent, and no attempt is counted. A step that doubles finds the end of a burst after a logarithm of its length (Bentley and Yao, An almost optimal
// algorithm for unbounded searching, 1976).
//
// The owner locks it.
type tries struct {
	pace  Backoff   // of the sink, which may be quicker
	n     int       // since the sink refuses everything
	until time.Time // nothing is claimed before
	skip  int       // how many batches the next try still passes over
}

const (
	// tryTakes is how long a claim and its send are waited for before another is tried.
	tryTakes = time.Second
	// maxOnes is how many tries may cut an event off a batch: each leaves a row more in the ledger.
	maxOnes = 1000
	// maxSkip bounds what a try passes over: each costs a claim.
	maxSkip = 127
)

// tryPace is the time between two tries: a good event whose turn it is waits no longer.
var tryPace = Backoff{Initial: 200 * time.Millisecond, Max: 5 * time.Second, Multiplier: 2}

// refused notes that a try was.
func (t *tries) refused(now time.Time) {
	t.n++
	t.until = now.Add(t.pause())
	t.skip = min(1<<min(t.n, 16)-1, maxSkip)
}

// pause is the time between the last try and the next one. A batch that is passed over waits as long.
func (t *tries) pause() time.Duration { return min(tryPace.After(t.n), t.pace.After(t.n)) }

// allow returns how many batches may be claimed now: 0, or 1, which is the try or is passed over.
func (t *tries) allow(now time.Time) int {
	if now.Before(t.until) {
		return 0
	}
	t.until = now.Add(tryTakes)
	return 1
}

// passesOver reports whether a batch is passed over. more: there may be others behind it.
func (t *tries) passesOver(more bool) bool {
	if !more || t.skip == 0 {
		t.skip = 0
		return false
	}
	t.skip--
	t.until = time.Time{}
	return true
}

// now lets the next batch be a try.
func (t *tries) now() { t.until, t.skip = time.Time{}, 0 }

// end forgets the tries: the sink accepts events.
func (t *tries) end() { *t = tries{pace: t.pace} }
