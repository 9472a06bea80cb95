package delivery

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait before a retry: Initial, and Multiplier times as long each time after, up to
// Max. Half of it is left to chance, so that batches which failed together do not come back together ("equal
// jitter", Exponential Backoff And Jitter, AWS Architecture Blog, 2015).
type Backoff struct {
	Initial, Max time.Duration
	Multiplier   float64
}

// After is the wait after the nth failure in a row, n from 1. It never overflows, however large n is.
func (b Backoff) After(n int) time.Duration {
	full := float64(b.Initial) * math.Pow(b.Multiplier, float64(max(0, n-1)))
	if !(full < float64(b.Max)) { // also for +Inf and NaN
		full = float64(b.Max)
	}
	return time.Duration(full/2 + rand.Float64()*full/2) //nolint:gosec // chance, not secrecy
}
