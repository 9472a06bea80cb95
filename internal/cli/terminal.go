package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/outboxrelay/relay/internal/admin"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// terminalWidth is the number of characters in a line of a terminal, 0 for other files.
func terminalWidth(f *os.File) int {
	if !isTerminal(f) {
		return 0
	}
	n, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return n
}

// colour is the parameter of an escape sequence (SGR).
type colour string

const (
	bold   colour = "1"
	faint  colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
	cyan   colour = "36"
)

// painter returns a function that colours text on a terminal, unless NO_COLOR is set.
func painter(f *os.File) func(colour, string) string {
	if !isTerminal(f) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return func(_ colour, text string) string { return text }
	}
	return func(c colour, text string) string { return "\x1b[" + string(c) + "m" + text + "\x1b[0m" }
}

// columns formats rows as a table. Every column is as wide as its cells; the last one
// is cut at maxWidth characters a line, 0 for no limit.
func columns(rows [][]string, maxWidth int) string {
	const maxColumn = 40
	last := len(rows[0]) - 1
	widths := make([]int, last)
	for _, row := range rows {
		for i, cell := range row[:last] {
			widths[i] = min(max(widths[i], utf8.RuneCountInString(cell)), maxColumn)
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row[:last] {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cut(cell, widths[i]))
		}
		line.WriteString(row[last])
		text := strings.TrimRight(line.String(), " ")
		if maxWidth > 0 {
			text = cut(text, maxWidth)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

// alignRight pads the cells of all columns but the first, so that numbers line up.
func alignRight(rows [][]string) [][]string {
	for i := range rows[0] {
		width := 0
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(row[i]))
		}
		for _, row := range rows {
			if i > 0 {
				row[i] = fmt.Sprintf("%*s", width, row[i])
			}
		}
	}
	return rows
}

func cut(text string, length int) string {
	if runes := []rune(text); len(runes) > length {
		return string(runes[:max(0, length-1)]) + "…"
	}
	return text
}

// plural formats a count with its noun: 1 problem, 2,000 problems.
func plural(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return admin.Count(n) + " " + several
}

// oneLine joins the lines of a text and drops repeated ones: pgx reports every
// connection attempt, with and without TLS.
func oneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

// printable is text on one line, without characters that control a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return '\uFFFD'
		}
		return r
	}, oneLine(text))
}

// progress is a progress bar. It writes to terminals only.
type progress struct {
	title string
	out   *os.File
	bars  *mpb.Progress
	bar   *mpb.Bar
}

func newProgress(out *os.File, title string) *progress { return &progress{title: title, out: out} }

// set updates the bar. The first call draws it.
func (p *progress) set(done, total int64) {
	if p.bar == nil {
		if !isTerminal(p.out) || os.Getenv("TERM") == "dumb" {
			return
		}
		p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(40))
		p.bar = p.bars.AddBar(total, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(p.title+" ")), mpb.AppendDecorators(decor.CountersNoUnit(" %d / %d")))
	}
	p.bar.SetCurrent(done)
}

// end removes the bar.
func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
}
