package buffer

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// latencyBounds are the upper bounds of [Latencies] but the last, in seconds.
var latencyBounds = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 6 * 3600}

// LatencyBounds returns the upper bounds of [Latencies] but the last, which has none, in seconds.
func LatencyBounds() []float64 { return latencyBounds[:] }

// Latencies count deliveries by the time from the insert of the event to its delivery: each count those of at most its bound that are above the
// one before. They can be compared, and added up over relays.
type Latencies [len(latencyBounds) + 1]int64

// Add counts a delivery.
func (l *Latencies) Add(d time.Duration) { l.count(d.Seconds(), 1) }

func (l *Latencies) count(seconds float64, n int64) {
	i := 0
	for i < len(latencyBounds) && seconds > latencyBounds[i] {
		i++
	}
	l[i] += n
}

// Plus adds the counts of another.
func (l Latencies) Plus(other Latencies) Latencies {
	for i := range l {
		l[i] += other[i]
	}
	return l
}

// Since returns what was counted since an earlier state.
func (l Latencies) Since(before Latencies) Latencies {
	for i := range l {
		l[i] = max(0, l[i]-before[i])
	}
	return l
}

// Quantile estimates the seconds that a share q of the deliveries did not exceed; NaN if there were none. It interpolates between two bounds, as
// Prometheus does.
func (l Latencies) Quantile(q float64) float64 { return l.QuantileWithin(q, math.Inf(1)) }

// QuantileWithin is Quantile of deliveries of which none took longer than most seconds, as far as is known: a result above it is most, or the lower one of its two bounds if
// that is more.
func (l Latencies) QuantileWithin(q, most float64) float64 {
	var all int64
	for _, n := range l {
		all += n
	}
	if all == 0 {
		return math.NaN()
	}
	rank, before, lower := q*float64(all), 0.0, 0.0
	for i, upper := range latencyBounds {
		n := float64(l[i])
		if before+n >= rank && n > 0 {
			return max(lower, min(most, lower+(upper-lower)*(rank-before)/n))
		}
		before, lower = before+n, upper
	}
	return lower // beyond the last bound
}

// String returns the counts that are not 0 as text, for a column of a database: "0.005:120 0.01:3 +Inf:1".
func (l Latencies) String() string {
	var b strings.Builder
	for i, n := range l {
		if n == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		bound := "+Inf"
		if i < len(latencyBounds) {
			bound = strconv.FormatFloat(latencyBounds[i], 'g', -1, 64)
		}
		b.WriteString(bound + ":" + strconv.FormatInt(n, 10))
	}
	return b.String()
}

// ParseLatencies reads what String wrote. Another version of the relay may have other bounds: its counts are those of the next higher bound here. It
// ignores what it cannot read.
func ParseLatencies(text string) (l Latencies) {
	for one := range strings.FieldsSeq(text) {
		bound, count, _ := strings.Cut(one, ":")
		seconds, err := strconv.ParseFloat(bound, 64)
		n, errCount := strconv.ParseInt(count, 10, 64)
		if err == nil && errCount == nil && n > 0 && !math.IsNaN(seconds) {
			l.count(seconds, n)
		}
	}
	return l
}

// EachLatency visits how long each of the events that ids names in ascending order, nil for all, took from its insert to its delivery at a
// local time, by the database's clock. It visits none of a delivery that was recorded before, whose time is unknown.
func (l *Lease) EachLatency(ids []int64, delivered time.Time, visit func(time.Duration)) {
	if l.DeliveryRecorded() {
		return
	}
	now := l.ClaimedAt.Add(delivered.Sub(l.ClaimedLocal))
	for i := range l.Events {
		e := &l.Events[i]
		if ids != nil {
			if len(ids) == 0 {
				return
			}
			if e.ID != ids[0] {
				continue
			}
			ids = ids[1:]
		}
		visit(max(0, now.Sub(e.CreatedAt)))
	}
}
