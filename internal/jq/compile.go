// Package jq compiles jq programs and runs them within limits of time and memory.
//
// Compile parses a program and finds the functions and variables that do not exist. Decode makes the
// program's input of JSON, Run executes the program, Encode makes JSON of its result.
//
// Values are those of gojq: nil, bool, int, float64, *big.Int, json.Number, string, []any and map[string]any.
// A number that the program does not calculate with keeps all its digits.
package jq

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// Program is a compiled jq program. It sees its input and the time of day, but no environment, no files and
// no modules. It is safe for concurrent use.
type Program struct {
	// Query is the parsed program.
	Query *gojq.Query

	code     *gojq.Code
	secrets  []any // the value of $secret, or nothing
	limits   runLimits
	runaways atomic.Int32 // runs that Run stopped waiting for
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
	p := &Program{Query: query, limits: defaultLimits}
	options := guardFunctions()
	if len(names) > 0 {
		values := make(map[string]any, len(names))
		for _, name := range names {
			value, ok := secrets[name]
			if !ok {
				return nil, &Error{Text: fmt.Sprintf("$secret has no %s", name)}
			}
			values[name] = value
		}
		p.secrets = []any{values}
		options = append(options, gojq.WithVariables([]string{secretVariable}))
	}
	guarded, err := guard(text)
	if err != nil {
		return nil, err
	}
	if p.code, err = gojq.Compile(guarded, options...); err != nil {
		return nil, &Error{Text: err.Error()}
	}
	return p, nil
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
	return &Error{Line: 1 + strings.Count(before, "\n"), Column: 1 + utf8.RuneCountInString(line), Text: e.Error()}
}
