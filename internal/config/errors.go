package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Place is a position in a file. Line and Column count from 1; Column counts characters.
type Place struct {
	File         string
	Line, Column int
}

func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// after returns the place where text that starts at p ends.
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

// Error is one mistake in a configuration.
type Error struct {
	// Place is where the value starts, or the key if the key is wrong.
	Place Place
	// Text is one line, "<key> is <value>; expected <what>", without secrets.
	Text string
}

func (e Error) Error() string { return e.Place.String() + ": " + e.Text }

// Errors are all mistakes in a configuration, sorted by place.
type Errors []Error

// Error returns one line for each mistake: file:line:column: text.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Join returns all mistakes in errs as [Errors], sorted by place. If none of them is in a file, it returns what errors.Join does.
func Join(errs ...error) error {
	all := validationErrors(errs...)
	if all == nil {
		return errors.Join(errs...)
	}
	all.sort()
	return all
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b Error) int { return a.Place.compare(b.Place) })
}

// quote returns text in quotes. It hides text that may be part of a URL with a password.
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

// nearest returns the word with the smallest edit distance from text, or "" if all are too far.
func nearest(text string, words []string) string {
	return buffer.Nearest(strings.ReplaceAll(text, "-", "_"), words, max(1, (len(text)+2)/3))
}
