// Package jq compiles jq programs and runs them within limits of time and memory.
//
// Compile parses a program and finds what it names that does not exist. Decode makes the
// program's input of JSON, Run executes the program, Encode makes JSON of its result.
//
// Values are those of gojq: nil, bool, int, float64, *big.Int, json.Number, string, []any and
// map[string]any. A number that the program does not calculate with keeps all its digits.
package jq

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

// Program is a compiled jq program. It sees its input and the time of day, but no environment,
// no files and no modules. It is safe for concurrent use.
type Program struct {
	// Query is the parsed program.
	Query *gojq.Query

	text     string
	code     *gojq.Code
	limits   runLimits
	runaways atomic.Int32 // runs that Run stopped waiting for
}

// Error says what is wrong with a program, and where.
type Error struct {
	// Line and Column count from 1, columns in characters; both are 0 if the place is unknown.
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

// Compile returns a *Error if text is not a jq program, or names a function, variable or format
// that does not exist.
func Compile(text string) (*Program, error) {
	query, err := gojq.Parse(text)
	if e, ok := errors.AsType[*gojq.ParseError](err); ok {
		return nil, errorAt(text, min(max(0, e.Offset-len(e.Token)), lastCharacter(text)), e.Error())
	} else if err != nil {
		return nil, &Error{Text: err.Error()}
	}
	p := &Program{Query: query, text: text, limits: defaultLimits}
	if p.code, err = gojq.Compile(query); err != nil {
		return nil, p.compileError(err)
	}
	for _, name := range formatNames.FindAllString(withoutStrings(text), -1) {
		if name = name[strings.IndexByte(name, '@'):]; !slices.Contains(formats, name) {
			return nil, p.ErrorAt(name, "format not defined: "+name)
		}
	}
	return p, nil
}

// gojq finds an unknown format only when the program runs.
var (
	formatNames = regexp.MustCompile(`(^|[^\w@])@[a-zA-Z_]\w*`)
	formats     = []string{
		"@text", "@json", "@html", "@uri", "@urid", "@csv", "@tsv", "@sh", "@base64", "@base64d", "@base32", "@base32d",
	}
)

// compileError adds the place, which gojq does not report, to an error of gojq.Compile.
func (p *Program) compileError(err error) *Error {
	what, name, _ := strings.Cut(err.Error(), ": ")
	switch what {
	case "function not defined", "variable not defined", "label not defined":
		word, _, _ := strings.Cut(name, "/") // name/arity
		return p.ErrorAt(word, err.Error())
	case "cannot load module":
		return &Error{Text: "a program cannot load modules"}
	case "input(s)/0 is not allowed":
		word := "input"
		if p.find(word) < 0 {
			word = "inputs"
		}
		return p.ErrorAt(word, "there is no further input; expected the program to read its input from .")
	}
	return &Error{Text: err.Error()}
}

// ErrorAt returns an error at the first use of name in the program.
func (p *Program) ErrorAt(name, text string) *Error { return errorAt(p.text, p.find(name), text) }

// errorAt returns an error at a byte of the program. A negative offset means no place.
func errorAt(program string, offset int, text string) *Error {
	if offset < 0 {
		return &Error{Text: text}
	}
	before := program[:min(offset, len(program))]
	line := before[strings.LastIndexByte(before, '\n')+1:]
	return &Error{Line: 1 + strings.Count(before, "\n"), Column: 1 + utf8.RuneCountInString(line), Text: text}
}

// lastCharacter is the offset of the last character that is not white space: an unexpected end
// is reported there, not on the empty lines below.
func lastCharacter(text string) int {
	text = strings.TrimRightFunc(text, unicode.IsSpace)
	_, size := utf8.DecodeLastRuneInString(text)
	return len(text) - size
}

// find returns the offset of the first use of a name, or -1. Uses as the key of an object count
// only if there is no other.
func (p *Program) find(name string) int {
	if name == "" {
		return -1
	}
	before := `[^\w.$@:]`
	if strings.HasPrefix(name, "$") || strings.HasPrefix(name, "@") {
		before = `[^\w@]`
	}
	use := regexp.MustCompile(`(^|` + before + `)` + regexp.QuoteMeta(name) + `(\s*:|\b)`)
	offset := -1
	for _, m := range use.FindAllStringSubmatchIndex(withoutStrings(p.text), -1) {
		offset = m[3] // the end of what precedes the name
		if isKey := m[4] < m[5]; !isKey {
			break
		}
	}
	return offset
}

// withoutStrings replaces comments and the text of strings by spaces, byte for byte. It keeps
// the code within "\(...)".
func withoutStrings(text string) string {
	code := []byte(text)
	var depths []int // open parentheses within each "\(...)" around the current byte
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\' && i+1 < len(text):
			code[i] = ' '
			if i++; text[i] == '(' {
				depths, inString = append(depths, 0), false
				continue
			}
			code[i] = ' '
		case c == '"':
			inString = !inString
		case inString:
			code[i] = ' '
		case c == '#':
			for ; i < len(text) && text[i] != '\n'; i++ {
				code[i] = ' '
			}
		case len(depths) > 0 && c == '(':
			depths[len(depths)-1]++
		case len(depths) > 0 && c == ')':
			if depths[len(depths)-1]--; depths[len(depths)-1] < 0 {
				depths, inString = depths[:len(depths)-1], true
			}
		}
	}
	return string(code)
}
