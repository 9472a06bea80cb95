package jq

import (
	"errors"
	"strings"
	"testing"
)

func TestCompile_Errors(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"[.events[] |\n  {id: .id]":       `line 2, column 11 of the program: unexpected token "]"`,
		".events | map(":                  `line 1, column 14 of the program: unexpected EOF`,
		"[.events[] |\n  {id: \"é\" \n\n": `line 2, column 10 of the program: unexpected EOF`,
		"# é\n.\"é\" | nope(.x)":          `function not defined: nope/1`,
		"{id: .id,\n n: $count}":          `variable not defined: $count`,
		"[inputs]":                        `input(s)/0 is not allowed`,
		`import "x" as x; .`:              `cannot load module`,
		"input_filename":                  `function not defined: input_filename/0`,
		"  # nothing":                     `missing query`,
	} {
		_, err := Compile(program, nil)
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v; want %s", program, err, want)
		}
	}
}
