package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Place is where something was written; line and column count from 1, columns
// in characters.
type Place struct {
	File         string
	Line, Column int
}

func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// after is the place behind text that begins at p.
func (p Place) after(text string) Place {
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		p.Line += strings.Count(text, "\n")
		p.Column = 1
		text = text[i+1:]
	}
	p.Column += utf8.RuneCountInString(text)
	return p
}

func (p Place) compare(o Place) int {
	return cmp.Or(cmp.Compare(p.Line, o.Line), cmp.Compare(p.Column, o.Column))
}

// Mistake is one thing wrong with a configuration.
type Mistake struct {
	// Place is the value's, or the key's when the key is wrong.
	Place Place
	// Text says what is wrong and what was expected, on one line and without
	// any secret.
	Text string
}

func (m Mistake) Error() string { return m.Place.String() + ": " + m.Text }

// Errors is every mistake of a configuration, sorted by place.
type Errors []Mistake

// Error lists the mistakes, one a line: file:line:column: what is wrong, what
// was expected.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, m := range e {
		lines[i] = m.Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b Mistake) int { return a.Place.compare(b.Place) })
}

// quote shows what was written in the file, unless it looks like an address
// with a password, or the half of one that a stray comma cut off.
func quote(text string) string {
	if strings.Contains(text, "://") || strings.LastIndex(text, "@") > 0 {
		return "(not shown)"
	}
	return fmt.Sprintf("%q", clip(text))
}

func clip(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "..."
	}
	return text
}

// nearest returns the word that text was probably meant to be, or "".
func nearest(text string, words []string) string {
	text = strings.ReplaceAll(strings.ToLower(text), "-", "_")
	best, found := 1+max(1, (len(text)+2)/3), ""
	for _, w := range words {
		if d := distance(text, w); d < best {
			best, found = d, w
		}
	}
	return found
}

// distance counts the insertions, deletions and replacements from a to b.
func distance(a, b string) int {
	if len(a) > 100 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
