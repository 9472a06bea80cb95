package delivery

import (
	"testing"
	"time"
)

// TestTries: of n batches that are ready, the step passes over 1, 3, 7 and so on; what is passed over is claimed without a pause, at most one batch is sent a
// try, and the newest fresh one is never passed over.
func TestTries(t *testing.T) {
	t.Parallel()
	now := time.Now()
	one := tries{pace: tryPace}
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Fatalf("%s: got %d, want %d", what, got, want)
		}
	}
	for n, skip := range []int{1, 3, 7, 15, 31, 63, 127, 127} {
		one.refused(now)
		expect("claims at once", one.allow(now, 1000), 0)
		now = one.until
		for range skip {
			expect("claims to be passed over", one.allow(now, 1000), 1)
			if !one.passesOver(now, false) {
				t.Fatalf("try %d: a batch is sent that is to be passed over", n+1)
			}
		}
		expect("the try", one.allow(now, 1000), 1)
		if one.passesOver(now, false) {
			t.Fatalf("try %d: it is passed over as well", n+1)
		}
		expect("a second one", one.allow(now, 1000), 0)
	}

	// Of few none is passed over, and of others each one once.
	one.refused(now)
	now = one.until
	expect("the first of a few", one.allow(now, inTurn), 1)
	if one.passesOver(now, false) {
		t.Fatal("one of a few is passed over")
	}
	one.refused(now)
	now = one.until
	for left := inTurn + 2; left > 1; left-- {
		expect("claims to be passed over", one.allow(now, left), 1)
		if left == 2 {
			expect("another before it is known what the last one is", one.allow(now, 1), 0)
		}
		if !one.passesOver(now, false) {
			t.Fatal("a batch is sent that is to be passed over")
		}
	}
	expect("the last one", one.allow(now, inTurn), 1)
	if one.passesOver(now, false) {
		t.Fatal("all are passed over")
	}

	one.refused(now)
	now = one.until
	expect("a claim", one.allow(now, 1000), 1)
	if one.passesOver(now, true) {
		t.Fatal("the newest events are passed over")
	}
	expect("another one beside it", one.allow(now, 1000), 0)

	one.refused(now)
	now = one.until
	expect("a claim that finds nothing", one.allow(now, 1000), 1)
	now = now.Add(2 * tryTakes)
	expect("the try after it", one.allow(now, 1), 1)

	for range 100 {
		one.refused(now)
		now = one.until
		for one.skip > 0 {
			one.allow(now, 1000)
			one.passesOver(now, false)
		}
	}
	if one.passed > maxPassed+maxSkip {
		t.Errorf("%d batches were passed over, want at most about %d", one.passed, maxPassed)
	}
}
