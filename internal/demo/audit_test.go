package demo

import (
	"strings"
	"testing"
	"time"
)

func TestResult(t *testing.T) {
	t.Parallel()
	a := newAudit()
	now := time.Now()
	for order := range int64(6) {
		a.committed(order, now)
	}
	a.rolledBack()
	a.died(5)
	for _, order := range []int64{0, 1, 2, 2, 70} { // 3 and 4 are missing, 2 came twice, 70 was rolled back
		a.arrived(order, now.Add(time.Second))
	}
	if a.allArrived() {
		t.Error("two events are missing, and allArrived is true")
	}
	result := a.result()
	for order := range int64(6) {
		result.addOrder(order)
	}
	if result.missing() != 2 || result.duplicates != 1 || result.phantom() != 1 || result.delivered != 3 || result.dead != 1 || result.Check() == nil {
		t.Errorf("the result is\n%v", result)
	}
	if !strings.Contains(result.String(), "missing 2, duplicates 1, phantom 1") {
		t.Errorf("the result is\n%v", result)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var q quantiles
	if q.at(.5) != 0 {
		t.Errorf("the median of an empty histogram is %v", q.at(.5))
	}
	for i := range 1000 {
		q.add(time.Duration(i+1) * time.Millisecond)
	}
	q.add(100 * time.Hour) // beyond the last bucket
	q.add(-time.Second)
	for share, want := range map[float64]time.Duration{.5: 500 * time.Millisecond, .99: 990 * time.Millisecond} {
		if got := q.at(share); got < want*9/10 || got > want*11/10 {
			t.Errorf("quantile %v is %v, want about %v", share, got, want)
		}
	}
}
