package admin

import (
	"math"

	dto "github.com/prometheus/client_model/go"
)

// Histogram is a cumulative histogram: Counts[i] values were at most Bounds[i], and the last count, which has no bound, is of all. The
// zero value has no values.
type Histogram struct {
	Bounds []float64
	Counts []uint64
}

// Latency is how long events took from their insert to their delivery, in seconds, since the process started: those of a pipeline, or of
// one of its several sinks. The caller owns it.
func (m *Metrics) Latency(pipeline, sink string) (h Histogram) {
	m.mu.Lock()
	metric := m.latencies[[2]string{pipeline, sink}]
	m.mu.Unlock()
	var written dto.Metric
	if metric == nil || metric.Write(&written) != nil {
		return h
	}
	for _, b := range written.GetHistogram().GetBucket() {
		if !math.IsInf(b.GetUpperBound(), 1) {
			h.Bounds, h.Counts = append(h.Bounds, b.GetUpperBound()), append(h.Counts, b.GetCumulativeCount())
		}
	}
	h.Counts = append(h.Counts, written.GetHistogram().GetSampleCount())
	return h
}

// Plus adds another histogram with the same bounds.
func (h Histogram) Plus(other Histogram) Histogram {
	if len(h.Counts) != len(other.Counts) {
		if h.Counts == nil {
			return other
		}
		return h
	}
	sum := Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts))}
	for i := range sum.Counts {
		sum.Counts[i] = h.Counts[i] + other.Counts[i]
	}
	return sum
}

// Quantile estimates the value that a share q of the values since an earlier state of Counts does not exceed; NaN if there were none. It
// interpolates within a bucket, as Prometheus does.
func (h Histogram) Quantile(q float64, since []uint64) float64 {
	count := func(i int) float64 {
		if len(since) != len(h.Counts) {
			return float64(h.Counts[i])
		}
		return float64(h.Counts[i] - since[i])
	}
	if len(h.Counts) == 0 || count(len(h.Counts)-1) == 0 {
		return math.NaN()
	}
	rank := q * count(len(h.Counts)-1)
	lower, before := 0.0, 0.0
	for i, upper := range h.Bounds {
		n := count(i)
		if n >= rank {
			return lower + (upper-lower)*(rank-before)/max(n-before, 1)
		}
		lower, before = upper, n
	}
	return lower // beyond the last bound
}
