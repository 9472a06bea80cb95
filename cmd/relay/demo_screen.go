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
	"golang.org/x/term"

	"github.com/outboxrelay/relay/internal/admin"
)

// screen shows how far the demo is: on a terminal a few lines that are drawn anew,
// elsewhere a line a second.
type screen struct {
	out    *os.File
	audit  *audit
	events int                          // to be committed; 0: there is no end
	drawn  atomic.Pointer[mpb.Progress] // nil while nothing is drawn
	pace   atomic.Int64                 // arrivals in the last second
}

// Write shows text above what is drawn.
func (s *screen) Write(text []byte) (int, error) {
	if drawn := s.drawn.Load(); drawn != nil {
		// What the terminal echoed of Ctrl-C goes away.
		if _, err := drawn.Write(append([]byte("\r\x1b[K"), text...)); err != nil {
			return 0, err
		}
		return len(text), nil
	}
	return s.out.Write(text)
}

// run shows the progress until ctx is done.
func (s *screen) run(ctx context.Context) error {
	if term.IsTerminal(int(s.out.Fd())) && os.Getenv("TERM") != "dumb" {
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
			n, p50, p99 := s.audit.look()
			s.pace.Store(int64(float64(n.arrived-last) / now.Sub(at).Seconds()))
			last, at = n.arrived, now
			if s.drawn.Load() != nil {
				continue
			}
			if _, err := fmt.Fprintf(s.out, "committed %d, rolled back %d, delivered %d, under way %d, events/s %d, latency p50 %v p99 %v\n",
				n.committed, n.rolledBack, n.arrived, n.underWay, s.pace.Load(), short(p50), short(p99)); err != nil {
				return err
			}
		}
	}
}

// draw keeps the lines up to date until the function it returns is called.
func (s *screen) draw() (stop func()) {
	progress := mpb.New(mpb.WithOutput(s.out), mpb.WithWidth(30))
	s.drawn.Store(progress)
	bars := []*mpb.Bar{
		s.line(progress, func(n counts) (string, int, string) {
			return "committed " + column(n.committed), n.committed, admin.Count(int64(n.rolledBack)) + " rolled back"
		}),
		s.line(progress, func(n counts) (string, int, string) {
			return "delivered " + column(n.arrived), n.arrived,
				fmt.Sprintf("%s events/s, %s under way", admin.Count(s.pace.Load()), admin.Count(int64(n.underWay)))
		}),
		progress.New(1, mpb.NopStyle(), mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
			_, p50, p99 := s.audit.look()
			return fmt.Sprintf("latency   p50 %v, p99 %v from commit to arrival", short(p50), short(p99))
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

// line adds a line: a text, a bar where the end is known, a text.
func (s *screen) line(p *mpb.Progress, show func(counts) (left string, done int, right string)) *mpb.Bar {
	now := func() (string, int, string) { n, _, _ := s.audit.look(); return show(n) }
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
