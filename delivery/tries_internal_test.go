package delivery

import (
	"testing"
	"time"
)

// TestTries: the tries pass over 1, 3, 7 batches and so on. What is passed over is claimed without a pause, one batch is sent a try, and a batch with none behind it is
// never passed over.
func TestTries(t *testing.T) {
	t.Parallel()
	now := time.Now()
	one := tries{pace: tryPace}
	allowed := func(what string, want int) {
		t.Helper()
		if got := one.allow(now); got != want {
			t.Fatalf("%s: got %d, want %d", what, got, want)
		}
	}
	for n, skip := range []int{1, 3, 7, 15, 31, 63, 127, 127} {
		one.refused(now)
		allowed("claims at once", 0)
		now = one.until
		for range skip {
			allowed("claims to be passed over", 1)
			if !one.passesOver(true) {
				t.Fatalf("try %d: a batch is sent that is to be passed over", n+1)
			}
		}
		allowed("the try", 1)
		if one.passesOver(true) {
			t.Fatalf("try %d: it is passed over as well", n+1)
		}
		allowed("a second one", 0)
	}
	one.refused(now)
	now = one.until
	allowed("a claim", 1)
	if one.passesOver(false) || one.passesOver(true) {
		t.Fatal("the newest events are passed over, or others in the same try")
	}
	allowed("another one beside it", 0)
}
