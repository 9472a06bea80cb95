package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// screen shows the progress every second: in one line that is redrawn on a terminal, in a new line elsewhere.
type screen struct {
	out      io.Writer
	terminal bool
	audit    *audit

	mu sync.Mutex
}

// Write writes text above the progress.
func (s *screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal { // also erases the echo of Ctrl-C
		text = append([]byte("\r\x1b[K"), text...)
	}
	return s.out.Write(text)
}

// run shows the progress until ctx ends.
func (s *screen) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, at := 0, time.Now()
	for {
		select {
		case <-ctx.Done():
			if s.terminal {
				_, err := fmt.Fprintln(s.out)
				return err
			}
			return nil
		case now := <-tick.C:
			n, p50, p99 := s.audit.snapshot()
			rate := float64(n.arrived-last) / now.Sub(at).Seconds()
			last, at = n.arrived, now
			line := fmt.Sprintf("committed %d, rolled back %d, delivered %d, in flight %d, events/s %.0f, latency p50 %v p99 %v",
				n.committed, n.rolledBack, n.arrived, n.inFlight, rate, rounded(p50), rounded(p99))
			if !s.terminal {
				line += "\n"
			}
			if _, err := s.Write([]byte(line)); err != nil {
				return err
			}
		}
	}
}

// rounded rounds a duration for display.
func rounded(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
