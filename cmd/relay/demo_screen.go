package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/outboxrelay/relay/internal/admin"
)

// screen shows the progress of the demo: bars on a terminal, one line per second
// elsewhere.
type screen struct {
	out    *os.File
	audit  *audit
	events int                          // to commit; 0 for no limit
	drawn  atomic.Pointer[mpb.Progress] // nil if there are no bars
	rate   atomic.Int64                 // arrivals in the last second
}

// Write writes text above the bars.
func (s *screen) Write(text []byte) (int, error) {
	if drawn := s.drawn.Load(); drawn != nil {
		// Erase the terminal's echo of Ctrl-C.
		if _, err := drawn.Write(append([]byte("\r\x1b[K"), text...)); err != nil {
			return 0, err
		}
		return len(text), nil
	}
	return s.out.Write(text)
}

// run shows the progress until ctx ends.
func (s *screen) run(ctx context.Context) error {
	if isTerminal(s.out) && os.Getenv("TERM") != "dumb" {
		defer s.draw()()
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, at := 0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			n, p50, p99 := s.audit.snapshot()
			s.rate.Store(int64(float64(n.arrived-last) / now.Sub(at).Seconds()))
			last, at = n.arrived, now
			if s.drawn.Load() != nil {
				continue
			}
			if _, err := fmt.Fprintf(s.out, "committed %d, rolled back %d, delivered %d, in flight %d, events/s %d, latency p50 %v p99 %v\n",
				n.committed, n.rolledBack, n.arrived, n.inFlight, s.rate.Load(), rounded(p50), rounded(p99)); err != nil {
				return err
			}
		}
	}
}

// draw draws bars until stop is called.
func (s *screen) draw() (stop func()) {
	progress := mpb.New(mpb.WithOutput(s.out), mpb.WithWidth(30))
	s.drawn.Store(progress)
	bars := []*mpb.Bar{
		s.line(progress, func(n counts) (string, int, string) {
			return "committed " + column(n.committed), n.committed, admin.Count(int64(n.rolledBack)) + " rolled back"
		}),
		s.line(progress, func(n counts) (string, int, string) {
			return "delivered " + column(n.arrived), n.arrived,
				fmt.Sprintf("%s events/s, %s in flight", admin.Count(s.rate.Load()), admin.Count(int64(n.inFlight)))
		}),
		progress.New(1, mpb.NopStyle(), mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
			_, p50, p99 := s.audit.snapshot()
			return fmt.Sprintf("latency   p50 %v, p99 %v commit to arrival", rounded(p50), rounded(p99))
		}))),
	}
	return func() {
		for _, bar := range bars {
			bar.Abort(false)
		}
		progress.Wait()
		s.drawn.Store(nil)
		fmt.Fprintln(s.out)
	}
}

// line adds a line: text, a bar if the total is known, text.
func (s *screen) line(p *mpb.Progress, format func(counts) (left string, done int, right string)) *mpb.Bar {
	now := func() (string, int, string) { n, _, _ := s.audit.snapshot(); return format(n) }
	bar := mpb.BarStyle().Lbound("").Filler("█").Tip("█").Padding("░").Rbound("").Build()
	return p.MustAdd(1, mpb.BarFillerFunc(func(w io.Writer, stat decor.Statistics) error {
		if s.events == 0 {
			return nil
		}
		_, done, _ := now()
		stat.Current, stat.Total = int64(done), int64(s.events)
		return bar.Fill(w, stat)
	}), mpb.BarFillerTrim(),
		mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { left, _, _ := now(); return left + "  " })),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { _, _, right := now(); return "  " + right })))
}

func column(n int) string { return fmt.Sprintf("%11s", admin.Count(int64(n))) }
