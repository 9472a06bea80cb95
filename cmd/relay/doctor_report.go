package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// silent is for commands that tell what they find themselves.
var silent = slog.New(slog.DiscardHandler)

// printCheckups shows what was found, for people.
func (a *app) printCheckups(checkups []checkup) error {
	paint := painter(a.stdout)
	var (
		b                  strings.Builder
		problems, warnings int
	)
	for _, c := range checkups {
		p := c.pipeline
		fmt.Fprintf(&b, "%s: %s (%s) -> %s (%s)\n", p.Name, p.Source.URL, p.Source.Table, p.Sink.URL, address(&p.Sink))
		width := 0
		for _, f := range c.findings {
			width = max(width, len(f.Subject))
		}
		for _, f := range c.findings {
			fmt.Fprintf(&b, "  %s  %-*s  %s\n", paint(f.Level), width, f.Subject, oneLine(a.redact(f.Text)))
			if f.Fix != "" {
				fmt.Fprintf(&b, "        %*s  > %s\n", width, "", a.redact(f.Fix))
			}
		}
		b.WriteByte('\n')
		problems += c.count(buffer.LevelError)
		warnings += c.count(buffer.LevelWarning)
	}
	fmt.Fprintf(&b, "%s, %s\n", many(problems, "problem", "problems"), many(warnings, "warning", "warnings"))
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

// many counts things: 1 problem, 2,000 problems.
func many(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return admin.Count(int64(n)) + " " + several
}

// isTerminal tells whether people look at f as it is written.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// painter writes a level as a word of four letters, in colour on a terminal.
func painter(f *os.File) func(buffer.Level) string {
	words := map[buffer.Level]string{buffer.LevelOK: "OK  ", buffer.LevelWarning: "WARN", buffer.LevelError: "FAIL"}
	if isTerminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		words = map[buffer.Level]string{
			buffer.LevelOK: "\x1b[32mOK\x1b[0m  ", buffer.LevelWarning: "\x1b[33mWARN\x1b[0m", buffer.LevelError: "\x1b[31mFAIL\x1b[0m",
		}
	}
	return func(l buffer.Level) string { return words[l] }
}
