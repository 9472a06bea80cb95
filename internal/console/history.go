package console

import (
	"html/template"
	"math"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// ringSize is how many points a ring keeps.
	ringSize = 360
	// hourStep and dayStep are the time between two points of the two rings.
	hourStep = 10 * time.Second
	dayStep  = 4 * time.Minute
	// maxSeries bounds the memory: a series has 2 rings of 360 points of 6 float32, 17 kB, so all have at most 9 MB.
	maxSeries = 512
)

// point is what is known of a pipeline or sink at one time. NaN is unknown.
type point struct {
	Pending, Oldest, PerSecond, P50, P99, Dead float32
}

var unknownPoint = func() point {
	nan := float32(math.NaN())
	return point{nan, nan, nan, nan, nan, nan}
}()

// ring keeps the last points, the newest of them for the slot of time that now is in. A slot that was missed is unknown.
type ring struct {
	step   time.Duration
	points [ringSize]point
	slot   int64 // of the newest point: its time divided by step; 0: none
}

// add sets the point of the slot that a time is in; a later one of the same slot replaces it.
func (r *ring) add(at time.Time, p point) {
	slot := at.UnixNano() / int64(r.step)
	if r.slot == 0 || slot-r.slot > ringSize {
		for i := range r.points {
			r.points[i] = unknownPoint
		}
		r.slot = slot
	}
	for r.slot < slot {
		r.slot++
		r.points[r.slot%ringSize] = unknownPoint
	}
	r.points[slot%ringSize] = p
}

// read returns the points up to a time, the oldest first, and the time of the first one.
func (r *ring) read(now time.Time) (from time.Time, points []point) {
	last := now.UnixNano() / int64(r.step)
	points = make([]point, 0, ringSize)
	for slot := last - ringSize + 1; slot <= last; slot++ {
		p := unknownPoint
		if slot <= r.slot && slot > r.slot-ringSize {
			p = r.points[slot%ringSize]
		}
		points = append(points, p)
	}
	return time.Unix(0, (last-ringSize+1)*int64(r.step)), points
}

// seriesKey names a pipeline, or one of its several sinks.
type seriesKey struct{ pipeline, sink string }

// series is the history of a pipeline or sink, and what the next point is computed from.
type series struct {
	hour, day ring
	now       point

	at        time.Time
	delivered map[string]int64            // by owner, at that time
	died      map[string]int64            // by owner, at that time
	latencies map[string]buffer.Latencies // by owner, at that time

	tallies [tallies]tally // of the last minute, the newest first

	// oldest is the age of the oldest pending event at that time or since, oldestBefore the one of the time before; NaN: unknown.
	oldest, oldestBefore float32

	// spark is the sparkline of the hour, at the slot sparkSlot, after the observation at sparkAt.
	spark     template.HTML
	sparkSlot int64
	sparkAt   time.Time
}

// history keeps the figures of all pipelines. It is safe for concurrent use.
type history struct {
	mu  sync.Mutex
	all map[seriesKey]*series
}

func newHistory() *history { return &history{all: map[seriesKey]*series{}} }

// observation is what one look at a pipeline or sink found.
type observation struct {
	pending   int64
	oldest    *float64
	dead      int64
	delivered map[string]int64            // by owner, since each process started
	died      map[string]int64            // by owner, since each process started
	latencies map[string]buffer.Latencies // by owner, since each process started
}

// minInterval is how long two observations must be apart for a rate. Relays report their counts every five seconds at the most.
const minInterval = hourStep

// add adds an observation.
func (h *history) add(key seriesKey, at time.Time, o observation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.all[key]
	if s == nil {
		if len(h.all) >= maxSeries {
			return
		}
		s = &series{hour: ring{step: hourStep}, day: ring{step: dayStep}, now: unknownPoint}
		h.all[key] = s
	}
	s.now.Pending, s.now.Dead, s.now.Oldest = float32(o.pending), float32(o.dead), float32(math.NaN())
	if o.oldest != nil {
		s.now.Oldest = float32(*o.oldest)
	}
	s.oldest = max(s.oldest, s.now.Oldest)
	if since := at.Sub(s.at); s.at.IsZero() || since >= minInterval-time.Second/2 {
		if !s.at.IsZero() {
			delivered := added(s.delivered, o.delivered)
			s.now.PerSecond = float32(float64(delivered) / since.Seconds())
			copy(s.tallies[1:], s.tallies[:])
			s.tallies[0] = tally{took: since, died: added(s.died, o.died), delivered: delivered}
			took := addedLatencies(s.latencies, o.latencies)
			most := s.longest(since)
			s.now.P50, s.now.P99 = float32(took.QuantileWithin(.5, most)), float32(took.QuantileWithin(.99, most))
		}
		s.oldestBefore, s.oldest = s.oldest, s.now.Oldest
		s.at, s.delivered, s.died, s.latencies = at, o.delivered, o.died, o.latencies
	}
	s.hour.add(at, s.now)
	s.day.add(at, s.now)
}

// longest is how many seconds a delivery since the last observation, or reported late, may have taken: an event that was pending then is so much older now. It is infinite if the
// ages are unknown.
func (s *series) longest(since time.Duration) float64 {
	most := max(float64(s.oldest), float64(s.oldestBefore)) + (since + minInterval).Seconds()
	if math.IsNaN(most) {
		return math.Inf(1)
	}
	return most
}

// added is how many events were delivered between two observations. What a process did before it was first seen is not counted.
func added(before, now map[string]int64) (n int64) {
	for owner, count := range now {
		if then, known := before[owner]; known && count > then {
			n += count - then
		}
	}
	return n
}

// addedLatencies are those of the deliveries that added counts.
func addedLatencies(before, now map[string]buffer.Latencies) (sum buffer.Latencies) {
	for owner, counts := range now {
		if then, known := before[owner]; known {
			sum = sum.Plus(counts.Since(then))
		}
	}
	return sum
}

// now returns the latest figures; false if there are none.
func (h *history) now(key seriesKey) (point, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.all[key]; s != nil {
		return s.now, true
	}
	return unknownPoint, false
}

// sparkline draws the deliveries of the last hour, anew when they changed.
func (h *history) sparkline(key seriesKey, now time.Time) template.HTML {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, slot := h.all[key], now.UnixNano()/int64(hourStep)
	if s == nil {
		return ""
	}
	if s.sparkSlot != slot || !s.sparkAt.Equal(s.at) {
		_, points := s.hour.read(now)
		values := make([]float32, len(points))
		for i := range points {
			values[i] = points[i].PerSecond
		}
		s.spark, s.sparkSlot, s.sparkAt = sparkline(values), slot, s.at
	}
	return s.spark
}

// read returns the points of the last hour, or day, up to now.
func (h *history) read(key seriesKey, day bool, now time.Time) (from time.Time, step time.Duration, points []point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.all[key]
	if s == nil {
		s = &series{hour: ring{step: hourStep}, day: ring{step: dayStep}}
	}
	r := &s.hour
	if day {
		r = &s.day
	}
	from, points = r.read(now)
	return from, r.step, points
}
