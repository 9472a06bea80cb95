package jq

import (
	"errors"
	"strings"
	"testing"
)

func TestCompile_Errors(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"[.events[] |\n  {id: .id]":               `line 2, column 11 of the program: unexpected token "]"`,
		".events | map(":                          `line 1, column 14 of the program: unexpected EOF`,
		"[.events[] |\n  {id: \"é\" \n\n":         `line 2, column 10 of the program: unexpected EOF`,
		"# é\n.\"é\" | nope(.x)":                  `line 2, column 8 of the program: function not defined: nope/1`,
		"{id: .id,\n n: $count}":                  `line 2, column 5 of the program: variable not defined: $count`,
		"{foo: \"foo\", a: .foo, b: \"\\(foo)\"}": `line 1, column 29 of the program: function not defined: foo/0`,
		".events[0] |\n@base63":                   `line 2, column 1 of the program: format not defined: @base63`,
		"[inputs]":                                `line 1, column 2 of the program: there is no further input`,
		`import "x" as x; .`:                      `a program cannot load modules`,
		"input_filename":                          `function not defined: input_filename/0`,
		"  # nothing":                             `missing query`,
	} {
		_, err := Compile(program)
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v; want %s", program, err, want)
		}
	}
}
