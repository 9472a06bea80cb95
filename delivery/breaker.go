package delivery

import "time"

// breaker is the circuit breaker of an address, or of the sink as a whole: closed, open
// after openAfter failures in a row, half-open while a probe is under way.
type breaker struct {
	known    bool      // a result was recorded
	works    bool      // the last one was a success
	failures int       // in a row
	failedAt time.Time // the last of them
	until    time.Time // no half-open probe before
	probing  time.Time // a half-open probe is under way, and over by then
	wokenAt  time.Time // a waiting batch was made due for a probe, and none is before
	woken    int       // so often since a result was recorded
	last     verdict   // the last failure
}

// openAfter is how many sends in a row have to fail: one alone may be the batch's doing,
// or a hiccup.
const openAfter = 2

// probes come soon enough that the recovery of a sink is noticed within two seconds, and
// never so often that they hurt one that is down.
var probes = Backoff{Initial: 200 * time.Millisecond, Max: time.Second, Multiplier: 2}

func (b *breaker) open() bool { return b.failures >= openAfter }

// fail records a send that found the address unavailable. If a batch that was deferred
// fails again while other batches succeed, the breaker stays closed: only that batch backs
// off.
func (b *breaker) fail(now time.Time, deferred bool, v verdict) {
	b.woken = 0
	if deferred && b.works {
		return
	}
	b.known, b.works = true, false
	b.failures++
	b.failedAt, b.last = now, v
	b.until, b.probing = now.Add(probes.After(b.failures)), time.Time{}
}

// succeed records that the address took something. recovered: that ended an outage; first:
// nothing was known of the address, and batches may wait for it because another process
// deferred them.
func (b *breaker) succeed() (recovered, first bool) {
	recovered, first = b.open(), !b.known
	*b = breaker{known: true, works: true, last: b.last}
	return recovered, first
}

// probeDue reports whether it is time for a half-open probe.
func (b *breaker) probeDue(now time.Time) bool { return !now.Before(b.until) && !now.Before(b.probing) }

// wake reports whether to make a waiting batch due now, for a half-open probe. unconfirmed
// reports, once, that this was done some times and no result was recorded: the
// waiting batches are for an address that is not used any more.
func (b *breaker) wake(now time.Time) (due, unconfirmed bool) {
	if b.works || !b.probeDue(now) || now.Before(b.wokenAt) {
		return false, false
	}
	b.woken++
	b.wokenAt = now.Add(probes.After(b.failures + b.woken))
	return true, b.failures == 0 && b.woken == maxUnconfirmed
}

const maxUnconfirmed = 4
