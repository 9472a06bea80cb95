package console

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
)

// tallies is how many intervals of minInterval are a minute.
const tallies = int(time.Minute / minInterval)

// tally is what became of events in an interval.
type tally struct {
	took            time.Duration // 0: nothing was observed
	died, delivered int64
	over            bool // none died in the newest intervals
}

// deadlyShare is the share of dead letters from which on somebody should look at once.
const deadlyShare = 0.01

// quietAfter is after how many intervals without a death the deaths are over.
const quietAfter = 2

// deaths returns how many events of a pipeline or sink became dead letters in the last minute, since the first of them did.
func (h *history) deaths(key seriesKey) (sum tally) {
	if h == nil {
		return sum
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.all[key]
	if s == nil {
		return sum
	}
	first, last := -1, -1 // the oldest and newest interval in which some died; tallies[0] is the newest
	for i, one := range s.tallies {
		if one.died > 0 {
			if first = i; last < 0 {
				last = i
			}
		}
	}
	sum.over = last >= quietAfter
	for _, one := range s.tallies[:first+1] {
		sum.took += one.took
		sum.died += one.died
		sum.delivered += one.delivered
	}
	return sum
}

// deathsOf are the deaths at one of a pipeline's sinks: the one with the largest share.
type deathsOf struct {
	tally
	// sink is "" if the pipeline has a single one.
	sink string
}

// name is what the deaths are of.
func (d *deathsOf) name(pipeline string) string {
	if d.sink == "" {
		return pipeline
	}
	return pipeline + "/" + d.sink
}

// deathsAt returns the deaths at each sink of a pipeline where events die, the largest share first.
func (h *history) deathsAt(pipeline string, sinks []admin.SinkReport) (all []deathsOf) {
	add := func(sink string) {
		if of := h.deaths(seriesKey{pipeline, sink}); of.died > 0 {
			all = append(all, deathsOf{of, sink})
		}
	}
	if sinks == nil {
		add("")
	}
	for i := range sinks {
		add(sinks[i].Name)
	}
	slices.SortStableFunc(all, func(a, b deathsOf) int { return cmp.Compare(b.share(), a.share()) })
	return all
}

// share is that of the dead letters in what was settled.
func (t tally) share() float64 {
	if t.died == 0 {
		return 0
	}
	return float64(t.died) / float64(t.died+t.delivered)
}

// many reports whether so many events die that somebody should look at once.
func (t tally) many() bool { return !t.over && t.share() >= deadlyShare }

// percent is the share for people.
func (t tally) percent() string {
	switch share := t.share() * 100; {
	case share < 1:
		return "less than 1 %"
	case share > 99 && t.delivered > 0:
		return "more than 99 %"
	default:
		return fmt.Sprintf("%.0f %%", share)
	}
}

// text says how many events became dead letters of those that a sink or pipeline got; "" if none did.
func (t tally) text(of string) string {
	if t.died == 0 {
		return ""
	}
	span := "minute"
	if t.took < time.Minute-minInterval/2 {
		span = admin.Age(t.took.Round(time.Second))
	}
	over := ""
	if t.over {
		over = " None did in the last " + admin.Age(quietAfter*minInterval) + "."
	}
	if t.died == 1 {
		return fmt.Sprintf("1 event became a dead letter in the last %s: %s of what %s got.", span, t.percent(), of) + over
	}
	return fmt.Sprintf("%s events became dead letters in the last %s: %s of what %s got.", admin.Count(t.died), span, t.percent(), of) + over
}
