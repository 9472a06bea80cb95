package delivery_test

import (
	"math"
	"testing"
	"time"

	"github.com/outboxrelay/relay/delivery"
)

func TestBackoff_GrowsWithinBounds(t *testing.T) {
	t.Parallel()
	b := delivery.Backoff{Initial: time.Second, Max: 5 * time.Minute, Multiplier: 2}
	full := b.Initial
	var shortest, longest float64 = 1, 0
	for n := 1; n <= 1_000_000; n++ {
		got := b.After(n)
		if got < full/2 || got > full {
			t.Fatalf("after failure %d: %v, want %v to %v", n, got, full/2, full)
		}
		part := float64(got) / float64(full)
		shortest, longest = min(shortest, part), max(longest, part)
		full = min(2*full, b.Max)
	}
	if shortest > 0.51 || longest < 0.99 {
		t.Errorf("chance uses %.2f to %.2f of the wait; want 0.50 to 1.00", shortest, longest)
	}
}

func TestBackoff_NeverOverflows(t *testing.T) {
	t.Parallel()
	for _, b := range []delivery.Backoff{
		{Initial: 1, Max: math.MaxInt64, Multiplier: 2},
		{Initial: math.MaxInt64, Max: math.MaxInt64, Multiplier: 1e300},
		{Initial: time.Second, Max: time.Hour, Multiplier: math.MaxFloat64},
		{Initial: time.Second, Max: time.Second, Multiplier: 1},
		{Initial: time.Second, Max: time.Hour, Multiplier: math.NaN()},
	} {
		for _, n := range []int{math.MinInt, -1, 0, 1, 2, 63, 64, 309, 310, 1024, 1_000_000, math.MaxInt} {
			if got := b.After(n); got < 0 || got > b.Max || n > 1 && b.Multiplier > 1 && got < b.Initial/2 {
				t.Errorf("%+v after failure %d: %v", b, n, got)
			}
		}
	}
}
