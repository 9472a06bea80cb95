package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// width is the length of the longest line, for a terminal of 80 columns.
const width = 79

// screen shows what happens, and the progress every second: in one line that is redrawn on a terminal, in a new
// line elsewhere.
type screen struct {
	out              io.Writer
	terminal, colour bool
	audit            *audit
	start            time.Time

	mu       sync.Mutex
	progress string
}

// style is the parameter of an escape sequence (SGR).
type style string

const (
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

func (s *screen) paint(c style, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// Write writes text above the progress.
func (s *screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal {
		return s.out.Write(text)
	}
	// Erases also the echo of Ctrl-C.
	if _, err := io.WriteString(s.out, "\r\x1b[K"+string(text)+s.progress); err != nil {
		return 0, err
	}
	return len(text), nil
}

// event writes a line with the time, and further lines below it. The first line is painted.
func (s *screen) event(c style, text string) error {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if i > 0 {
			lines[i] = "      " + line
			continue
		}
		lines[i] = fmt.Sprintf("%3.0fs  %s", time.Since(s.start).Seconds(), s.paint(c, line))
	}
	_, err := s.Write([]byte(strings.Join(lines, "\n") + "\n"))
	return err
}

// quote writes lines, indented. A long one continues on a second line, where it is cut.
func (s *screen) quote(text string) error {
	const indent = "        "
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\n"); line == "" {
			continue
		}
		line = indent + line
		if len([]rune(line)) > width {
			if space := strings.LastIndexByte(string([]rune(line)[:width+1]), ' '); strings.TrimSpace(line[:space]) != "" {
				b.WriteString(s.paint(faint, line[:space]) + "\n")
				line = indent + "            " + line[space+1:]
			}
		}
		b.WriteString(s.paint(faint, cut(line)) + "\n")
	}
	_, err := s.Write([]byte(b.String()))
	return err
}

func cut(line string) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

// run shows the progress until ctx ends.
func (s *screen) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, at := 0, time.Now()
	for {
		select {
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.progress = ""
			if s.terminal {
				_, err := io.WriteString(s.out, "\r\x1b[K")
				return err
			}
			return nil
		case now := <-tick.C:
			n, _, _ := s.audit.snapshot()
			rate := float64(n.arrived-last) / now.Sub(at).Seconds()
			last, at = n.arrived, now
			line := cut(fmt.Sprintf("%3.0fs  committed %d, delivered %d, in flight %d, dead %d, %.0f/s",
				now.Sub(s.start).Seconds(), n.committed, n.arrived, n.inFlight, n.dead, rate))
			var err error
			if s.terminal {
				s.mu.Lock()
				s.progress = line
				s.mu.Unlock()
				_, err = s.Write(nil)
			} else {
				_, err = s.Write([]byte(line + "\n"))
			}
			if err != nil {
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
