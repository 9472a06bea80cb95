package delivery

import (
	"time"
)

// circuit is what is known of an address, or of the sink as a whole.
type circuit struct {
	heard    bool      // something was heard of it
	works    bool      // the last that was heard of it is that it took something
	failures int       // sends in a row that found it away
	failedAt time.Time // the last of them
	until    time.Time // no trial before
	trial    time.Time // one is under way, and over by then
	probed   time.Time // no further probe before
	probes   int       // since anything was heard of it
	err      error
}

// A trial comes soon enough that the return of a sink is noticed within two
// seconds, and never so often that it hurts one that is down.
var trials = Backoff{Initial: 200 * time.Millisecond, Max: time.Second, Multiplier: 2}

// fail hears that a send found it away. A batch that waited for an outage already
// says nothing new where others were taken since: it waits by itself, longer and
// longer, and makes no outage for all.
func (c *circuit) fail(now time.Time, waited bool, err error) {
	c.probes = 0
	if waited && c.works {
		return
	}
	c.heard, c.works = true, false
	c.failures++
	c.failedAt, c.err = now, err
	c.until, c.trial = now.Add(trials.After(c.failures)), time.Time{}
}

// took hears that it took something. ended tells whether that ended an outage; news,
// that nothing was known of it, and what waits for it may have been put there by
// another process.
func (c *circuit) took() (ended, news bool) {
	ended, news = c.open(), !c.heard
	*c = circuit{heard: true, works: true, err: c.err}
	return ended, news
}

// openAfter is how many sends in a row have to find it away: one alone may be the
// batch's doing, or a hiccup.
const openAfter = 2

func (c *circuit) open() bool { return c.failures >= openAfter }

// due tells whether it is time for a trial.
func (c *circuit) due(now time.Time) bool { return !now.Before(c.until) && !now.Before(c.trial) }

// probe tells whether to make a waiting batch due now, for a trial. Where it is known
// to work there is nothing to find out. vain tells, once, that this was done some
// times and nothing was heard of it: what waits is for an address that is not used
// any more, and had better be sent wherever it goes now.
func (c *circuit) probe(now time.Time) (due, vain bool) {
	if c.works || !c.due(now) || now.Before(c.probed) {
		return false, false
	}
	c.probes++
	c.probed = now.Add(trials.After(c.failures + c.probes))
	return true, c.failures == 0 && c.probes == vainAfter
}

const vainAfter = 4
