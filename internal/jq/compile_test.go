package jq

import (
	"errors"
	"strings"
	"testing"
)

func TestCompile_Errors(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"[.events[] |\n  {id: .id]":                             `line 2, column 11 of the program: unexpected token "]" after "[.events[] | {id: .id"`,
		".events | map(":                                        `line 1, column 14 of the program: unexpected EOF after ".events | map("`,
		"[.events[] |\n  {id: \"é\" \n\n":                       `line 2, column 10 of the program: unexpected EOF after "[.events[] | {id: "é""`,
		`{a: [.events[] | .payload.customer.address | tojson})`: `unexpected token "}" after "...ustomer.address | tojson"`,
		"}":                      `line 1, column 1 of the program: unexpected token "}"`,
		"# é\n.\"é\" | nope(.x)": `function not defined: nope/1`,
		"{id: .id,\n n: $count}": `variable not defined: $count`,
		"[inputs]":               `input(s)/0 is not allowed`,
		`import "x" as x; .`:     `cannot load module`,
		"input_filename":         `function not defined: input_filename/0`,
		"  # nothing":            `missing query`,
	} {
		_, err := Compile(program, nil)
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v; want %s", program, err, want)
		}
	}
}
