package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// audit compares what the shop committed with what arrived. Safe for concurrent use.
type audit struct {
	mu      sync.Mutex
	err     error
	pending map[int64]time.Time // committed orders whose event did not arrive yet
	seen    set                 // orders whose event arrived
	dead    set                 // orders whose event is a dead letter
	counts  counts
	latency quantiles
	first   time.Time // first commit
	latest  time.Time // latest arrival
	arrival chan struct{}
	failed  chan struct{} // closed by fail
}

type counts struct{ committed, rolledBack, arrived, dead, duplicates, inFlight int }

func newAudit() *audit {
	return &audit{pending: map[int64]time.Time{}, arrival: make(chan struct{}, 1), failed: make(chan struct{})}
}

// committed records the commit of an order.
func (a *audit) committed(order int64, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts.committed++; a.first.IsZero() {
		a.first = at
	}
	if a.dead.has(order) {
		return
	}
	if a.seen.has(order) { // it arrived before this call
		a.latency.add(0)
		return
	}
	a.pending[order] = at
}

func (a *audit) rolledBack() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts.rolledBack++
}

// arrived records the arrival of an order's event.
func (a *audit) arrived(order int64, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.seen.add(order) {
		a.counts.duplicates++
		return
	}
	a.counts.arrived++
	a.latest = at
	if committed, ok := a.pending[order]; ok {
		a.latency.add(at.Sub(committed))
		delete(a.pending, order)
	}
	a.signal()
}

// died records that an order's event is a dead letter.
func (a *audit) died(order int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.dead.add(order) {
		return
	}
	a.counts.dead++
	delete(a.pending, order)
	a.signal()
}

// fail records an error of the consumer or the relay.
func (a *audit) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	a.err = err
	close(a.failed)
}

// failure is the error that fail recorded, or nil.
func (a *audit) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func (a *audit) signal() {
	select {
	case a.arrival <- struct{}{}:
	default:
	}
}

// snapshot returns the counts, and the median and the 99th percentile of the time from commit to arrival.
func (a *audit) snapshot() (n counts, p50, p99 time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n = a.counts
	n.inFlight = len(a.pending)
	return n, a.latency.at(.5), a.latency.at(.99)
}

// allArrived reports whether the events of all committed orders have arrived.
func (a *audit) allArrived() bool {
	n, _, _ := a.snapshot()
	return n.inFlight == 0
}

// settled returns a condition: what is in flight now has arrived or died.
func (a *audit) settled() func() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting := slices.Collect(maps.Keys(a.pending))
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		waiting = slices.DeleteFunc(waiting, func(order int64) bool { _, ok := a.pending[order]; return !ok })
		return len(waiting) == 0
	}
}

// waitUntil waits until an arrival makes the condition true, until nothing arrived for
// Timeout, or until ctx ends.
func (a *audit) waitUntil(ctx context.Context, condition func() bool) error {
	timer := time.NewTimer(Timeout)
	defer timer.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			return nil
		case <-a.failed:
			return a.failure()
		case <-a.arrival:
			timer.Reset(Timeout)
		}
	}
	return nil
}

// result returns what arrived. The caller adds the orders in the database.
func (a *audit) result() *Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &Result{counts: a.counts, seen: slices.Clone(a.seen), died: slices.Clone(a.dead), took: a.latest.Sub(a.first), p50: a.latency.at(.5), p99: a.latency.at(.99)}
	r.committed, r.dead = 0, 0
	return r
}

// Result is the result of a demo.
type Result struct {
	counts
	seen, died     set
	delivered      int // committed orders whose event arrived
	took, p50, p99 time.Duration
}

// addOrder adds an order that is in the database.
func (a *Result) addOrder(id int64) {
	a.committed++
	switch {
	case a.seen.has(id):
		a.delivered++
	case a.died.has(id):
		a.dead++
	}
}

func (a *Result) missing() int { return a.committed - a.delivered - a.dead }

// phantom counts events of orders that were rolled back.
func (a *Result) phantom() int { return a.arrived - a.delivered }

func (a *Result) String() string {
	rate := 0.0
	if a.took > 0 {
		rate = float64(a.delivered) / a.took.Seconds()
	}
	return fmt.Sprintf(`committed %d, rolled back %d, delivered %d, dead letters %d
missing %d, duplicates %d, phantom %d (rolled back but delivered)
%.0f events/s, commit to arrival: p50 %v, p99 %v
`, a.committed, a.rolledBack, a.delivered, a.dead, a.missing(), a.duplicates, a.phantom(), rate, rounded(a.p50), rounded(a.p99))
}

// Check returns nil if the event of every order arrived exactly once, or is a dead letter.
func (a *Result) Check() error {
	if a.missing() == 0 && a.duplicates == 0 && a.phantom() == 0 {
		return nil
	}
	return errors.New("events are missing, duplicated or phantom")
}

// set is a bit set of small numbers.
type set []uint64

func (s set) has(n int64) bool {
	word := int(n / 64)
	return word < len(s) && s[word]&(1<<(n%64)) != 0
}

// add adds a number and reports whether it is new.
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

// quantiles is a histogram of durations from a microsecond to more than an hour, with buckets 5 % wide.
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

// at returns the quantile for a share, 0 for an empty histogram.
func (q *quantiles) at(share float64) time.Duration {
	rank := int(math.Ceil(share * float64(q.total)))
	for i, n := range q.counts {
		if rank -= n; rank <= 0 && q.total > 0 {
			return time.Duration(float64(time.Microsecond) * math.Pow(bucketWidth, float64(i)))
		}
	}
	return 0
}
