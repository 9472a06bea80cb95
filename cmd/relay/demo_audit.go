package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// audit sees both ends: what the shop committed, and what arrived. Safe for
// concurrent use.
type audit struct {
	mu       sync.Mutex
	err      error
	placed   map[int64]time.Time // committed, and not there yet
	seen     set                 // orders whose event arrived
	counts   counts
	latency  quantiles
	began    time.Time // the first commit
	latest   time.Time // the latest arrival
	progress chan struct{}
}

// counts are how far things are.
type counts struct{ committed, rolledBack, arrived, twice, underWay int }

func newAudit() *audit {
	return &audit{placed: map[int64]time.Time{}, progress: make(chan struct{}, 1)}
}

// committed: the shop's transaction with this order is committed.
func (a *audit) committed(order int64, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts.committed++; a.began.IsZero() {
		a.began = at
	}
	if a.seen.has(order) { // it was quicker than we were
		a.latency.add(0)
		return
	}
	a.placed[order] = at
}

func (a *audit) rolledBack() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts.rolledBack++
}

// arrived: the consumer has the order's event.
func (a *audit) arrived(order int64, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.seen.add(order) {
		a.counts.twice++
		return
	}
	a.counts.arrived++
	a.latest = at
	if placed, ok := a.placed[order]; ok {
		a.latency.add(at.Sub(placed))
		delete(a.placed, order)
	}
	a.wake()
}

// fail: the audit cannot be trusted.
func (a *audit) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = errors.Join(a.err, err)
	a.wake()
}

func (a *audit) wake() {
	select {
	case a.progress <- struct{}{}:
	default:
	}
}

// look returns the counts, and the median and the 99th percentile of the time from
// commit to arrival.
func (a *audit) look() (n counts, p50, p99 time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n = a.counts
	n.underWay = len(a.placed)
	return n, a.latency.at(.5), a.latency.at(.99)
}

// settled tells whether all that was committed has arrived.
func (a *audit) settled() bool {
	n, _, _ := a.look()
	return n.underWay == 0
}

// until waits until the condition holds, which only an arrival makes true, or ctx is
// done, or nothing arrives any more.
func (a *audit) until(ctx context.Context, condition func() bool) error {
	patience := time.NewTimer(demoTimeout)
	defer patience.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return nil
		case <-patience.C:
			return nil
		case <-a.progress:
			patience.Reset(demoTimeout)
		}
		a.mu.Lock()
		err := a.err
		a.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// account begins the account of what arrived; the orders there are come next.
func (a *audit) account() *account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &account{
		seen: a.seen, arrived: a.counts.arrived, twice: a.counts.twice, rolledBack: a.counts.rolledBack,
		took: a.latest.Sub(a.began), p50: a.latency.at(.5), p99: a.latency.at(.99),
	}
}

// account is what the demo ends with.
type account struct {
	seen                                             set
	committed, rolledBack, arrived, delivered, twice int
	took, p50, p99                                   time.Duration
}

// order takes an order that is in the database.
func (a *account) order(id int64) {
	a.committed++
	if a.seen.has(id) {
		a.delivered++
	}
}

func (a *account) missing() int { return a.committed - a.delivered }

// phantom counts the events whose order is not in the database.
func (a *account) phantom() int { return a.arrived - a.delivered }

func (a *account) String() string {
	rate := 0.0
	if a.took > 0 {
		rate = float64(a.delivered) / a.took.Seconds()
	}
	return fmt.Sprintf(`committed %d, rolled back %d, delivered %d
missing %d, twice %d, phantom %d (rolled back, and yet delivered)
events/s %.0f, latency p50 %v, p99 %v (from commit to arrival)
`, a.committed, a.rolledBack, a.delivered, a.missing(), a.twice, a.phantom(), rate, short(a.p50), short(a.p99))
}

// verdict is nil when every order's event arrived, and once.
func (a *account) verdict() error {
	if a.missing() == 0 && a.twice == 0 && a.phantom() == 0 {
		return nil
	}
	return errors.New("the account does not add up")
}

// set is a set of small numbers from 0.
type set []uint64

func (s set) has(n int64) bool {
	word := int(n / 64)
	return word < len(s) && s[word]&(1<<(n%64)) != 0
}

// add tells whether the number is new.
func (s *set) add(n int64) bool {
	if s.has(n) {
		return false
	}
	for int(n/64) >= len(*s) {
		*s = append(*s, 0)
	}
	(*s)[n/64] |= 1 << (n % 64)
	return true
}

// quantiles counts durations in buckets that are 5 % wide, from a microsecond to
// beyond an hour.
type quantiles struct {
	counts [512]int
	total  int
}

const bucketWidth = 1.05

func (q *quantiles) add(d time.Duration) {
	i := 0
	if d > time.Microsecond {
		i = int(math.Log(float64(d)/float64(time.Microsecond)) / math.Log(bucketWidth))
	}
	q.counts[min(i, len(q.counts)-1)]++
	q.total++
}

// at is the duration below which this share of them lies; 0 when there are none.
func (q *quantiles) at(share float64) time.Duration {
	rank := int(math.Ceil(share * float64(q.total)))
	for i, n := range q.counts {
		if rank -= n; rank <= 0 && q.total > 0 {
			return time.Duration(float64(time.Microsecond) * math.Pow(bucketWidth, float64(i)))
		}
	}
	return 0
}

// short rounds a duration to what the eye takes in.
func short(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
