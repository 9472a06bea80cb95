// Package jq compiles jq programs and runs them in processes of their own, whose time and memory are limited.
//
//	Compile   parses a program and finds functions and variables that do not exist      compile.go, secret.go
//	Request   run a program: the pool of this process (pool.go) lends a child           run.go
//	Results   process (process.go), which gets the program and its input                frame.go
//	          the child decodes the input, runs the program and encodes the result      child.go, json.go, form.go
//
// The child is this executable, started again: the init function of this package serves runs instead of main. So the
// package works in every program that imports it, and in tests. The values of a program exist in the child only.
//
// A number that a program does not calculate with keeps all its digits.
package jq

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// Program is a jq program without mistakes. It sees its input and the time of day, but no environment, no files and
// no modules. It is safe for concurrent use.
type Program struct {
	// Query is the parsed program.
	Query *gojq.Query
	// TimeLimit of a run; Compile sets 5 seconds.
	TimeLimit time.Duration

	text    string
	secrets []byte      // the value of $secret, as JSON; empty if the program does not read it
	joined  atomic.Bool // the pool counts the program
	share   share       // of the pool
}

// Error says what is wrong with a program, and where.
type Error struct {
	// Line and Column are the place of a syntax error. They count from 1, columns in characters; both are 0
	// for other errors.
	Line, Column int
	// Text says what is wrong; it may quote the program.
	Text string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d, column %d of the program: %s", e.Line, e.Column, e.Text)
}

// Compile returns a *Error if text is not a jq program, or names a function or variable that does not exist.
// secrets are the values that the program reads as $secret.NAME, by name.
func Compile(text string, secrets map[string]string) (*Program, error) {
	query, err := parse(text)
	if err != nil {
		return nil, err
	}
	names, err := secretsOf(query)
	if err != nil {
		return nil, err
	}
	p := &Program{Query: query, TimeLimit: timeLimit, text: text}
	if len(names) > 0 {
		values := make(map[string]any, len(names))
		for _, name := range names {
			value, ok := secrets[name]
			if !ok {
				return nil, &Error{Text: fmt.Sprintf("$secret has no %s", name)}
			}
			values[name] = value
		}
		p.secrets = encode(values)
	}
	_, err = compile(query, len(names) > 0)
	return p, err
}

func compile(query *gojq.Query, readsSecrets bool) (*gojq.Code, error) {
	var options []gojq.CompilerOption
	if readsSecrets {
		options = append(options, gojq.WithVariables([]string{secretVariable}))
	}
	code, err := gojq.Compile(query, options...)
	if err != nil {
		return nil, &Error{Text: err.Error()}
	}
	return code, nil
}

func parse(text string) (*gojq.Query, error) {
	query, err := gojq.Parse(text)
	if e, ok := errors.AsType[*gojq.ParseError](err); ok {
		return nil, syntaxError(text, e)
	} else if err != nil {
		return nil, &Error{Text: err.Error()}
	}
	return query, nil
}

// syntaxError adds the place. An unexpected end is reported at the last character, not on the empty lines
// below it.
func syntaxError(text string, e *gojq.ParseError) *Error {
	trimmed := strings.TrimRightFunc(text, unicode.IsSpace)
	_, last := utf8.DecodeLastRuneInString(trimmed)
	before := text[:min(max(0, e.Offset-len(e.Token)), len(trimmed)-last)]
	line := before[strings.LastIndexByte(before, '\n')+1:]
	wrong := &Error{Line: 1 + strings.Count(before, "\n"), Column: 1 + utf8.RuneCountInString(line)}
	if e.Token == "" { // the end
		before = trimmed
	}
	wrong.Text = e.Error() + excerpt(before)
	return wrong
}

// excerpt quotes the end of what comes before a mistake; "" if that is white space.
func excerpt(before string) string {
	const most = 24
	fields := strings.Fields(before)
	text := []rune(strings.Join(fields, " "))
	if len(text) == 0 {
		return ""
	}
	if len(text) > most {
		return " after \"..." + string(text[len(text)-most:]) + "\""
	}
	return " after \"" + string(text) + "\""
}
