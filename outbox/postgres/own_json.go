package postgres

import (
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// What jsonb does not take, and json does: it may be in a table of the user's own, and be
// projected, and an event must be buried all the same.

// asJSONB is a row e as jsonb, which it must never fail to be.
func (f *ownFacts) asJSONB() string {
	if !slices.ContainsFunc(f.columns, ownColumn.isText) {
		return "to_jsonb(e)"
	}
	columns := make([]string, len(f.columns))
	for i, c := range f.columns {
		columns[i] = "e." + c.quoted
		if c.isText() {
			columns[i] += "::text AS " + c.quoted
		}
	}
	return "(SELECT to_jsonb(r) FROM (SELECT " + strings.Join(columns, ", ") + ") r)"
}

// isText tells whether a row as jsonb has the column as a text: json, and types that are not
// PostgreSQL's own, in which there may be json, or a cast to it that brings another value
// back.
func (c ownColumn) isText() bool {
	return c.oid == pg.OIDJSON || c.oid == pg.OIDJSONArray || c.oid >= pg.FirstUserOID
}

// fitsJSONB tells whether jsonb takes the JSON: it has no text with a NUL or half a
// surrogate in it, no number that is longer than numeric, and is not as deep as a stack.
func fitsJSONB(payload []byte) bool {
	if !utf8.Valid(payload) || !json.Valid(payload) {
		return false
	}
	quoted, depth := false, 0
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			i++
			if payload[i] == 'u' && (hexOf(payload, i+1) == 0 || !paired(payload, &i)) {
				return false
			}
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > mostDepth {
				return false
			}
		case c == ']' || c == '}':
			depth--
		case c >= '0' && c <= '9':
			n := numberLength(payload[i:])
			if !fitsNumeric(payload[i : i+n]) {
				return false
			}
			i += n - 1
		}
	}
	return true
}

// mostDepth is far less than what max_stack_depth allows where it is as PostgreSQL has it.
const mostDepth = 1000

func numberLength(text []byte) int {
	n := 0
	for n < len(text) && strings.IndexByte("+-.eE0123456789", text[n]) >= 0 {
		n++
	}
	return n
}

// fitsNumeric tells whether numeric takes a number without a sign: it has at most 131,072
// digits before the point, and 16,383 after it.
func fitsNumeric(number []byte) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(number)), "e")
	whole, decimals, _ := strings.Cut(mantissa, ".")
	shift := 0
	if exponent != "" {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift > 1<<20 || shift < -1<<20 {
			return false
		}
	}
	return len(whole)+shift <= 131_072 && len(decimals)-shift <= 16_383
}

// hexOf is the number that four hex digits are.
func hexOf(text []byte, at int) uint64 {
	if at+4 > len(text) {
		return 0
	}
	n, err := strconv.ParseUint(string(text[at:at+4]), 16, 32)
	if err != nil {
		return 0
	}
	return n
}

// paired tells whether the escape, whose u is at i, is no half of a surrogate pair, and
// moves i over the pair.
func paired(text []byte, i *int) bool {
	switch n := hexOf(text, *i+1); {
	case n >= 0xd800 && n < 0xdc00:
		*i += len("d800")
		if !strings.HasPrefix(string(text[*i+1:min(len(text), *i+3)]), `\u`) {
			return false
		}
		low := hexOf(text, *i+3)
		*i += len(`\udc00`)
		return low >= 0xdc00 && low < 0xe000
	case n >= 0xdc00 && n < 0xe000:
		return false
	}
	return true
}
