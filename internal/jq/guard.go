package jq

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"sync"

	"github.com/itchyny/gojq"
)

// gojq looks at its context between two steps. The functions here bound the steps whose time and memory depend on
// the data of an event more than linearly, because nothing can stop a step. They hide functions of gojq behind ones
// of the same name that check their input first.

const (
	// maxText is the longest text, in bytes, that text * number makes.
	maxText = 64 << 20
	// maxDigits is the longest number, in bytes. Converting a decimal number takes time by the square of its length.
	maxDigits = 10_000
	// maxBits is the size of the numbers that a program can multiply.
	maxBits = 1 << 16
	// maxIndex is the largest index of an array that a program can set.
	maxIndex = 1 << 22
)

var errDigits = fmt.Errorf("a number has more than %d digits", maxDigits)

// guards is in front of a program that uses one of guarded. The first definition of each pair sees the function of
// gojq, the second one hides it. Arguments are evaluated from the last to the first, as gojq does.
//
// _multiply is the operator * (guard puts it there) and *=; tostring is also "\(...)" and @text, and tojson is @json. The functions of regular
// expressions are those of gojq's builtin.jq, on another match.
const guards = `
def _relay_multiply($l; $r): $l * $r;
def _multiply(l; r): r as $r | l as $l | _relay_check_product($l; $r) | _relay_multiply($l; $r);
def _relay_tonumber: tonumber;
def tonumber: _relay_check_digits | _relay_tonumber;
def _relay_fromjson: fromjson;
def fromjson: _relay_check_digits | _relay_fromjson;
def _relay_tojson: tojson;
def tojson: _relay_check_size | _relay_tojson;
def _relay_tostring: tostring;
def tostring: _relay_check_size | _relay_tostring;
def _relay_setpath($p; $v): setpath($p; $v);
def setpath(p; v): v as $v | p as $p | _relay_setpath($p | map(_relay_check_index); $v);
def match($re; $flags): _relay_match($re; $flags);
def match($re): if $re | type == "array" then match($re[0]; $re[1]) else match($re; null) end;
def test($re; $flags): _relay_test($re; $flags);
def test($re): if $re | type == "array" then test($re[0]; $re[1]) else test($re; null) end;
def capture($re; $flags): match($re; $flags) | .captures | _captures;
def capture($re): if $re | type == "array" then capture($re[0]; $re[1]) else capture($re; null) end;
def scan($re; $flags): match($re; $flags + "g") | if .captures == [] then .string else [.captures[].string] end;
def scan($re): scan($re; null);
def splits($re; $flags):
  .[foreach (match($re; $flags + "g"), null) as {$offset, $length}
      (null; {start: .next, end: $offset, next: $offset + $length})];
def splits($re): splits($re; null);
def split($re; $flags): [splits($re; $flags)];
def sub($re; str; $flags):
  reduce match($re; $flags) as {$offset, $length, $captures}
    ({s: ., r: []};
      reduce ($captures | _captures | str) as $s
        (.i = 0; .r[.i] += .s[.next:$offset] + $s | .i += 1) |
      .next = $offset + $length) | .r[] + .s[.next:] // .s;
def sub($re; str): sub($re; str; null);
def gsub($re; str; $flags): sub($re; str; $flags + "g");
def gsub($re; str): gsub($re; str; "g");
.`

var guardDefs = sync.OnceValue(func() []*gojq.FuncDef {
	query, err := gojq.Parse(guards)
	if err != nil {
		panic(err)
	}
	return query.FuncDefs
})

// guarded are the names of functions for which a program gets the guards. Operators and indexes are looked for
// apart.
var guarded = []string{
	"tonumber", "fromjson", "tojson", "tostring", "setpath",
	"match", "test", "capture", "scan", "split", "splits", "sub", "gsub",
}

// guard parses a program and puts the guards into it that it needs.
func guard(text string) (*gojq.Query, error) {
	query, err := parse(text)
	if err != nil {
		return nil, err
	}
	needed, assigns := false, false
	walk(query, func(node any) {
		switch n := node.(type) {
		case *gojq.Query:
			needed = needed || n.Op == gojq.OpMul || n.Op == gojq.OpUpdateMul
			if n.Op == gojq.OpMul { // a function, because an operator cannot be hidden
				multiply := &gojq.Func{Name: "_multiply", Args: []*gojq.Query{n.Left, n.Right}}
				n.Term, n.Left, n.Right, n.Op = &gojq.Term{Type: gojq.TermTypeFunc, Func: multiply}, nil, nil, 0
			}
			assigns = assigns || n.Op >= gojq.OpAssign && n.Op <= gojq.OpUpdateAlt
		case *gojq.Func:
			needed = needed || slices.Contains(guarded, n.Name)
		case *gojq.String:
			needed = needed || len(n.Queries) > 0
		case *gojq.Term:
			needed = needed || n.Type == gojq.TermTypeFormat
		}
	})
	if assigns {
		guardIndexes(query)
	}
	if needed {
		query.FuncDefs = slices.Concat(guardDefs(), query.FuncDefs)
	}
	return query, nil
}

// guardIndexes checks what the program computes between [ and ], which may be an index to set.
func guardIndexes(query *gojq.Query) {
	check := func(index *gojq.Query) *gojq.Query {
		if index == nil || index.Term != nil && (index.Term.Type == gojq.TermTypeNumber || index.Term.Type == gojq.TermTypeString) {
			return index
		}
		return &gojq.Query{Left: index, Op: gojq.OpPipe, Right: &gojq.Query{
			Term: &gojq.Term{Type: gojq.TermTypeFunc, Func: &gojq.Func{Name: "_relay_check_index"}},
		}}
	}
	var all []*gojq.Index
	walk(query, func(node any) {
		if index, ok := node.(*gojq.Index); ok {
			all = append(all, index)
		}
	})
	for _, index := range all {
		index.Start, index.End = check(index.Start), check(index.End)
	}
}

// guardFunctions are the functions that guards use.
func guardFunctions() []gojq.CompilerOption {
	return []gojq.CompilerOption{
		gojq.WithFunction("_relay_check_product", 2, 2, checkProduct),
		gojq.WithFunction("_relay_check_digits", 0, 0, checkDigits),
		gojq.WithFunction("_relay_check_size", 0, 0, checkSize),
		gojq.WithFunction("_relay_check_index", 0, 0, checkIndex),
		gojq.WithFunction("_relay_test", 2, 2, regexpTest),
		gojq.WithIterFunction("_relay_match", 2, 2, regexpMatch),
	}
}

// checkProduct bounds the product of a text and a number, and of two numbers.
func checkProduct(input any, operands []any) any {
	for i, operand := range operands {
		other := operands[1-i]
		switch v := operand.(type) {
		case string:
			if n, ok := gojq.ToFloat64(other); ok && n*float64(len(v)) > maxText {
				return fmt.Errorf("a text of %d bytes times %v is larger than %d MiB", len(v), n, maxText>>20)
			}
		case *big.Int, json.Number:
			if bits(v)+bits(other) > maxBits {
				return fmt.Errorf("the product of two numbers has more than %d bits", maxBits)
			}
		case map[string]any: // a merge visits each part that is held several times
			if err, failed := checkSize(operand, nil).(error); failed {
				return err
			}
		}
	}
	return input
}

func bits(v any) int {
	switch v := v.(type) {
	case *big.Int:
		return v.BitLen()
	case json.Number:
		return 4 * len(v)
	}
	return 64
}

// checkDigits bounds the numbers in a text.
func checkDigits(input any, _ []any) any {
	text, ok := input.(string)
	if !ok {
		return input
	}
	digits := 0
	for i := range len(text) {
		if c := text[i]; c < '0' || c > '9' {
			digits = 0
		} else if digits++; digits > maxDigits {
			return errDigits
		}
	}
	return input
}

// checkSize bounds the JSON of a value.
func checkSize(input any, _ []any) any {
	switch input.(type) {
	case []any, map[string]any:
		if err := (&budget{maxResult}).spend(input, 0); err != nil {
			return err
		}
	}
	return input
}

func checkIndex(input any, _ []any) any {
	if n, ok := gojq.ToFloat64(input); ok && n > maxIndex {
		return fmt.Errorf("the index %v of an array is larger than %d", n, maxIndex)
	}
	return input
}
