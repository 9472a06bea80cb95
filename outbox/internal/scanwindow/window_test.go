package scanwindow_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/outbox/internal/scanwindow"
)

const limit = 5

// sizes are the windows that one Scan tries on a backlog whose first free event is at free
// (from 1) of total; each scan takes 10 ms of the synctest bubble.
func sizes(t *testing.T, w *scanwindow.Window, free, total int) (tried []int) {
	t.Helper()
	err := w.Scan(limit, func(size int) (bool, int, error) {
		tried = append(tried, size)
		<-time.After(10 * time.Millisecond)
		return free <= size && free <= total, min(size, total), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tried
}

func TestWindow(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, what string, got, want []int) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: windows %v; expected %v", what, got, want)
		}
	}
	t.Run("InitialIsEnough", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var w scanwindow.Window
			check(t, "free among the first", sizes(t, &w, 1, 1000), []int{50})
			check(t, "short backlog", sizes(t, &w, 1000, 20), []int{50})
		})
	})
	t.Run("WidensAfterVainScans", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var w scanwindow.Window
			check(t, "first", sizes(t, &w, 350, 1000), []int{50, 100})
			check(t, "cooldown", sizes(t, &w, 350, 1000), []int{50})
			for _, want := range []int{200, 400} {
				<-time.After(200 * time.Millisecond)
				check(t, "next", sizes(t, &w, 350, 1000), []int{50, want})
			}
			check(t, "found, no cooldown", sizes(t, &w, 350, 1000), []int{50, 400})
		})
	})
	t.Run("ShrinksAtTheEndOfTheBacklog", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var w scanwindow.Window
			for _, want := range []int{100, 200, 100} {
				check(t, "stuck", sizes(t, &w, 1000, 150), []int{50, want})
				<-time.After(200 * time.Millisecond)
			}
		})
	})
	t.Run("ReturnsTheError", func(t *testing.T) {
		t.Parallel()
		var w scanwindow.Window
		want := errors.New("disk full")
		if err := w.Scan(limit, func(int) (bool, int, error) { return false, 50, want }); !errors.Is(err, want) {
			t.Errorf("got %v", err)
		}
	})
}
