package buffer

import (
	"math"
	"testing"
	"time"
)

func TestLatencies(t *testing.T) {
	t.Parallel()
	var l Latencies
	if !math.IsNaN(l.Quantile(.5)) || l.String() != "" {
		t.Errorf("without a delivery: %v, %q", l.Quantile(.5), l)
	}
	for range 99 {
		l.Add(4 * time.Millisecond)
	}
	l.Add(40 * time.Hour)
	if p50, p99 := l.Quantile(.5), l.Quantile(.99); p50 < .0025 || p50 > .005 || p99 > .005 || l.Quantile(1) != 6*3600 {
		t.Errorf("p50 is %v, p99 %v, the longest %v", p50, p99, l.Quantile(1))
	}
	long := ParseLatencies("300:100") // from two to five minutes
	if p50, p99, low := long.QuantileWithin(.5, 142), long.QuantileWithin(.99, 142), long.QuantileWithin(.99, 10); p50 != 142 || p99 != 142 || low != 120 {
		t.Errorf("of events that were 142 s old at most, p50 is %v and p99 %v; of some that were 10 s old, p99 is %v", p50, p99, low)
	}
	var outage Latencies // of seven minutes
	for age := range 420 {
		outage.Add(time.Duration(age) * time.Second)
	}
	if p99 := outage.Quantile(.99); p99 > 600 {
		t.Errorf("after an outage of seven minutes p99 is %v", p99)
	}
	if text := l.String(); text != "0.005:99 +Inf:1" || ParseLatencies(text) != l {
		t.Errorf("the text is %q, read as %v", text, ParseLatencies(text))
	}
	if sum := l.Plus(l); sum.Since(l) != l || l.Since(sum) != (Latencies{}) {
		t.Errorf("twice is %v", sum)
	}
	other := ParseLatencies("0.003:5 junk 0.005:x -1:2 :1 NaN:3 0.005:-4 7200:1 1e300:1")
	if want := ParseLatencies("0.005:5 0.001:2 21600:1 +Inf:1"); other != want {
		t.Errorf("counts of other bounds are %v, want %v", other, want)
	}
}
