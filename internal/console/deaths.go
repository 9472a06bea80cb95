package console

import (
	"fmt"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
)

// tallies is how many intervals of minInterval are a minute.
const tallies = int(time.Minute / minInterval)

// tally is what became of events in an interval.
type tally struct {
	took            time.Duration // 0: nothing was observed
	died, delivered int64
}

// deadlyShare is the share of dead letters from which on somebody should look at once.
const deadlyShare = 0.01

// deaths returns how many events of a pipeline or sink became dead letters in the last minute.
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
	for _, one := range s.tallies {
		sum.took += one.took
		sum.died += one.died
		sum.delivered += one.delivered
	}
	return sum
}

// share is that of the dead letters in what was settled.
func (t tally) share() float64 {
	if t.died == 0 {
		return 0
	}
	return float64(t.died) / float64(t.died+t.delivered)
}

// many reports whether so many events die that somebody should look at once.
func (t tally) many() bool { return t.share() >= deadlyShare }

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

// text says how many events became dead letters; "" if none did.
func (t tally) text() string {
	if t.died == 0 {
		return ""
	}
	span := "minute"
	if t.took < time.Minute-minInterval/2 {
		span = admin.Age(t.took.Round(time.Second))
	}
	if t.died == 1 {
		return fmt.Sprintf("1 event became a dead letter in the last %s: %s of those that were sent.", span, t.percent())
	}
	return fmt.Sprintf("%s events became dead letters in the last %s: %s of those that were sent.", admin.Count(t.died), span, t.percent())
}
