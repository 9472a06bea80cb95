package sink

import (
	"time"
)

// circuit is what is known of an address that may be away.
type circuit struct {
	failures int       // sends in a row that found it away
	until    time.Time // no trial before
	trial    time.Time // one is under way, and over by then
	probed   time.Time // no further probe before
	err      error
}

// A trial comes soon enough that the return of a sink is noticed within two
// seconds, and never so often that it hurts one that is down.
var trials = Backoff{Initial: 200 * time.Millisecond, Max: 1500 * time.Millisecond, Multiplier: 2}

func (c *circuit) fail(now time.Time, err error) {
	c.failures++
	c.err = err
	c.until, c.trial = now.Add(trials.After(c.failures)), time.Time{}
}

// due tells whether it is time for a trial.
func (c *circuit) due(now time.Time) bool { return !now.Before(c.until) && !now.Before(c.trial) }

// probe tells whether to make a waiting batch due now, for a trial.
func (c *circuit) probe(now time.Time) bool {
	if !c.due(now) || now.Before(c.probed) {
		return false
	}
	c.probed = now.Add(trials.After(c.failures + 1))
	return true
}
