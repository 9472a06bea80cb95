package delivery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// breaker is the circuit breaker of an address, or of the sink as a whole: closed, open
// after openAfter failures in a row, half-open while a probe is under way.
type breaker struct {
	known    bool          // a result was recorded
	works    bool          // the last one was a success
	failures int           // in a row
	failedAt time.Time     // the last of them
	until    time.Time     // no half-open probe before
	probing  time.Time     // a batch for it alone is under way, as a half-open probe if it is open, and over by then
	wokenAt  time.Time     // a waiting batch was made due for a probe, and none is before
	woken    int           // so often since a result was recorded
	last     verdict       // the last failure
	took     time.Duration // of the send that failed last
}

// openAfter is how many sends in a row have to fail: the batch may cause a single failure.
const openAfter = 2

// probes notice a recovery within two seconds, and do not burden a sink that is down.
var probes = Backoff{Initial: 200 * time.Millisecond, Max: time.Second, Multiplier: 2}

func (b *breaker) open() bool { return b.failures >= openAfter }

// fail records a send that found the address unavailable. If a deferred batch fails again while
// others succeed, the breaker stays closed: only that batch backs off.
func (b *breaker) fail(now time.Time, deferred bool, v verdict, took time.Duration) {
	b.woken = 0
	if deferred && b.works {
		return
	}
	b.known, b.works = true, false
	b.failures++
	b.failedAt, b.last, b.took = now, v, took
	b.until, b.probing = now.Add(probes.After(b.failures)), time.Time{}
}

// succeed records that the address accepted events. recovered: that ended an outage; first: it is
// the first result for the address, and batches that another process deferred may wait for it.
func (b *breaker) succeed() (recovered, first bool) {
	recovered, first = b.open(), !b.known
	*b = breaker{known: true, works: true, last: b.last}
	return recovered, first
}

// probeDue reports whether it is time for a half-open probe.
func (b *breaker) probeDue(now time.Time) bool { return !now.Before(b.until) && !now.Before(b.probing) }

// wake reports whether to make a waiting batch due now, as a half-open probe. unconfirmed reports,
// once, that several probes had no result: the address is not used any more.
func (b *breaker) wake(now time.Time) (due, unconfirmed bool) {
	if b.works || !b.probeDue(now) || now.Before(b.wokenAt) {
		return false, false
	}
	b.woken++
	b.wokenAt = now.Add(probes.After(b.failures + b.woken))
	return true, b.failures == 0 && b.woken == maxUnconfirmed
}

const maxUnconfirmed = 4

// breakers are the circuit breakers of the sink as a whole and of its addresses.
//
// While the sink's is open, nothing is claimed. Every second or so the sink's Check is called; if it
// succeeds, a single batch is claimed as the half-open probe, because a sink that answers may
// still accept nothing. A send that succeeds closes the breaker.
//
// While an address's is open, claiming continues, because other addresses work. Batches for that
// address alone are deferred, and one of them at a time is sent as the probe.
//
// Of the batches that wait for an outage one is made due every second or so (probesDue), and all
// of them after a success (recovered). Their times in the ledger matter only if no relay is left
// that knows of the outage.
type breakers struct {
	// recovered is called with an address that takes batches again, "" for the sink.
	recovered func(address string)
	mu        sync.Mutex
	sink      breaker
	pause     time.Time // the sink asked for it (Retry-After): nothing is sent before
	addresses map[string]*breaker
	// mostSlow is how many slow probes may be under way at once; 0: any number. sooner counts the addresses that accepted one since probesDue last looked.
	mostSlow, sooner int
}

const checkTimeout = 5 * time.Second

// any reports whether something is known of an address.
func (b *breakers) any() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.addresses) > 0
}

// recordFailure records a send that found the address unavailable, "" for the sink as a
// whole, and took that long. deferred: the batch was put back for an outage before.
func (b *breakers) recordFailure(address string, deferred bool, v verdict, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	asked := now.Add(v.retryAfter)
	if asked.After(b.pause) && !v.own {
		b.pause = asked // nor does a send that was under way end it sooner
		b.sink.last = v
	}
	one := b.breaker(address)
	if one.fail(now, deferred, v, took); v.own && asked.After(one.until) {
		one.until = asked
	}
}

// breaker returns the address's breaker, a new one if need be.
func (b *breakers) breaker(address string) *breaker {
	if address == "" {
		return &b.sink
	}
	one := b.addresses[address]
	if one == nil {
		if b.addresses == nil {
			b.addresses = map[string]*breaker{}
		}
		one = &breaker{}
		b.addresses[address] = one
	}
	return one
}

// recordSuccess records that the address took events, "" for the sink; deferred is as for
// recordFailure. It reports whether that ended an outage.
func (b *breakers) recordSuccess(address string, deferred bool) (recovered bool) {
	first := false
	b.mu.Lock()
	if address == "" {
		recovered, first = b.sink.succeed()
	} else if one := b.addresses[address]; one != nil {
		if one.slow() {
			b.sooner++
		}
		recovered, first = one.succeed()
	}
	b.mu.Unlock()
	if recovered || first || deferred {
		b.recovered(address)
	}
	return recovered
}

// allowProbe reports whether a batch for the address alone may be sent: the breaker is
// closed, or this is the half-open probe, which takes atMost. Otherwise the batch waits: for wait, or for the address to recover if wait is 0.
//
// At most mostSlow slow probes are under way. A closed breaker may send one more, because its only failure may have been a hiccup; beyond that its batch waits a
// moment, because no recovery is reported for it.
func (b *breakers) allowProbe(address string, atMost time.Duration) (ok bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, now := b.addresses[address], time.Now()
	limited := b.mostSlow > 0 && one != nil && one.slow()
	switch {
	case one == nil || one.failures == 0:
		return true, 0
	case one.open() && (!one.probeDue(now) || limited && b.slowProbes(one, now) >= b.mostSlow):
		return false, 0
	case !one.open() && limited && b.slowProbes(one, now) > b.mostSlow:
		return false, probes.Max
	}
	one.probing = now.Add(atMost)
	return true, 0
}

// hangs reports whether a mixed batch should be sent without the events of the address:
// it is unavailable, and finding that out again may take up a whole Send's time.
func (b *breakers) hangs(address string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.addresses[address]
	return one != nil && one.open() && one.last.mayBePoison
}

// forgetAfter is how long an unavailable address is remembered when no batch waits for it:
// another process may have seen it recover.
const forgetAfter = time.Minute

// slow reports whether the next send probably fails as late as the last one, which took a worker for long.
func (b *breaker) slow() bool { return b.failures > 0 && b.took >= slowSend }

const slowSend = time.Second

// slowProbes counts the slow probes that are under way, or were just made due; that of one address only if it is under way.
func (b *breakers) slowProbes(of *breaker, now time.Time) (n int) {
	for _, one := range b.addresses {
		if madeDue := one != of && one.woken > 0 && now.Before(one.wokenAt); one.slow() && (madeDue || now.Before(one.probing)) {
			n++
		}
	}
	return n
}

// probesDue returns for which of the addresses that batches wait for it is time to make one of them due. No more than mostSlow slow probes are under way at once; the
// addresses that were not tried for longest come first. When some are back, twice as many as these are tried next: others probably are as well.
func (b *breakers) probesDue(deferred []string, mostSlow int) (due []string) {
	var unconfirmed []string
	b.mu.Lock()
	mostSlow = max(mostSlow, 2*b.sooner)
	b.mostSlow, b.sooner = mostSlow, 0
	now := time.Now()
	under := b.slowProbes(nil, now)
	wanted, longest := make(map[string]struct{}, len(deferred)), slices.Clone(deferred)
	slices.SortStableFunc(longest, func(x, y string) int { return b.breaker(x).wokenAt.Compare(b.breaker(y).wokenAt) })
	for _, address := range longest {
		wanted[address] = struct{}{}
		one := b.breaker(address)
		if now.Before(b.pause) || one.slow() && under >= mostSlow {
			continue
		}
		isDue, isUnconfirmed := one.wake(now)
		if isDue && one.slow() {
			under++
		}
		switch {
		case isUnconfirmed:
			unconfirmed = append(unconfirmed, address)
		case isDue:
			due = append(due, address)
		}
	}
	for address, one := range b.addresses {
		if _, ok := wanted[address]; !ok && !now.Before(one.probing) && (one.failures == 0 || now.Sub(one.failedAt) > forgetAfter) {
			delete(b.addresses, address)
		}
	}
	b.mu.Unlock()
	for _, address := range unconfirmed {
		b.recovered(address)
	}
	return due
}

// probes reports whether each address that batches wait for is tried every second or so. One that took events since is not: a batch that fails there again
// waits until it is due.
func (b *breakers) probes(deferred []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !time.Now().Before(b.pause) && !slices.ContainsFunc(deferred, func(address string) bool { return b.breaker(address).works })
}

// allow returns how many batches may be claimed: any number, 1 for a half-open probe, or 0.
func (b *breakers) allow(ctx context.Context, check func(context.Context) error) int {
	now := time.Now()
	b.mu.Lock()
	open, paused, early := b.sink.open(), now.Before(b.pause), now.Before(b.sink.until)
	b.mu.Unlock()
	switch {
	case paused || open && early:
		return 0
	case !open:
		return math.MaxInt
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := check(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sink.until = time.Now().Add(probes.After(b.sink.failures))
	if err != nil {
		b.sink.last = verdictOf(err)
		return 0
	}
	return 1
}

// pausedSince returns why a batch that was claimed then should not be sent now: the sink
// asked for a pause, of which so much is left, or it was found unavailable since. A batch
// that was claimed later is the probe. A nil error: send it.
func (b *breakers) pausedSince(claimed time.Time) (pause time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch pause = time.Until(b.pause); {
	case pause > 0:
		return pause, b.sink.last.err
	case b.sink.open() && claimed.Before(b.sink.failedAt) && !claimed.IsZero():
		return 0, b.sink.last.err
	}
	return 0, nil
}

// why returns what the address answered last; nil if it is not known to be unavailable.
func (b *breakers) why(address string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one := b.addresses[address]; one != nil && one.failures > 0 {
		return one.last.err
	}
	return nil
}

// tryNow ends the waits for the next half-open probes, and the pause that the sink asked for.
func (b *breakers) tryNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pause, b.sink.until = time.Time{}, time.Time{}
	for _, one := range b.addresses {
		one.until = time.Time{}
	}
}

// ErrAskedToWait is found in an outage with a time that the sink named.
var ErrAskedToWait = errors.New("as the sink asked (Retry-After)")

// outage is why nothing is claimed; nil if batches are.
func (b *breakers) outage() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case time.Now().Before(b.pause):
		return fmt.Errorf("nothing is sent before %s, %w; relay retry --now tries it sooner: %w", b.pause.UTC().Format("15:04:05 UTC"), ErrAskedToWait, b.sink.last.err)
	case b.sink.open():
		return b.sink.last.err
	}
	return nil
}
