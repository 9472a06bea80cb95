// Package scanwindow decides how far a claim that keeps order by key reads beyond the first
// waiting events. A hundred thousand events of one stuck key must not hide the others. But if a few
// keys own the whole backlog, a claim must not read all of it every time.
package scanwindow

import (
	"sync"
	"time"
)

const (
	// initial is the size of the first window, in batches.
	initial = 10
	// cooldown is how many times its own duration an unsuccessful wide scan delays the next one.
	cooldown = 20
)

// Window is the state of one buffer's scans. The zero value is ready; it is safe for
// concurrent use.
type Window struct {
	mu   sync.Mutex
	size int       // of the next wide scan; 0: at least twice the initial window
	next time.Time // no wide scan before
}

// Initial returns the size of the first window for batches of limit events.
func Initial(limit int) int { return initial * limit }

// Scan runs scan with the initial window. If that window was full and held nothing to claim, it
// runs scan once more with a wider one, unless a wide scan just found nothing. scan reads at
// most size waiting events and returns how many it read.
func (w *Window) Scan(limit int, scan func(size int) (found bool, seen int, err error)) error {
	first := Initial(limit)
	found, seen, err := scan(first)
	if err != nil || found || seen < first {
		return err
	}
	size, due := w.begin(first, time.Now())
	if !due {
		return nil
	}
	began := time.Now()
	found, seen, err = scan(size)
	if err == nil {
		w.end(size, found, seen < size, time.Since(began), time.Now())
	}
	return err
}

func (w *Window) begin(first int, now time.Time) (size int, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size = max(w.size, 2*first)
	return w.size, !now.Before(w.next)
}

// end records a wide scan; complete: there were no more waiting events.
func (w *Window) end(size int, found, complete bool, took time.Duration, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case found:
		return
	case complete:
		w.size = 0
	default:
		w.size = max(w.size, 2*size)
	}
	w.next = now.Add(cooldown * took)
}
