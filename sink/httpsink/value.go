package httpsink

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A program's values are those of gojq: nil, bool, int, float64, *big.Int, json.Number,
// string, []any and map[string]any. Numbers from outside are int or json.Number, which
// gojq hands on as they are, so that none loses a digit unless a program calculates.

var (
	errJSON  = errors.New("not JSON")
	errDepth = fmt.Errorf("nested deeper than %d", mostDepth)
)

// mostDepth is that of encoding/json.
const mostDepth = 10_000

// parseJSON reads one JSON value. Strings share text.
func parseJSON(text string) (any, error) { return new(parser).parse(text) }

// parse is parseJSON, with what is left of the one before.
func (p *parser) parse(text string) (any, error) {
	p.text, p.at, p.fields, p.values = text, 0, p.fields[:0], p.values[:0]
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.next(); p.at < len(text) {
		return nil, errJSON
	}
	return v, nil
}

type parser struct {
	text string
	at   int
	// fields and values are those of the objects and arrays that are not whole yet: maps
	// and slices are made when it is known how large they are.
	fields []field
	values []any
}

// next is the next byte that is no white space, without reading it; 0 at the end.
func (p *parser) next() byte {
	for ; p.at < len(p.text); p.at++ {
		if c := p.text[p.at]; c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

func (p *parser) value(depth int) (any, error) {
	if depth > mostDepth {
		return nil, errDepth
	}
	switch c := p.next(); c {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.string()
	case 't':
		return true, p.word("true")
	case 'f':
		return false, p.word("false")
	case 'n':
		return nil, p.word("null")
	default:
		return p.number()
	}
}

func (p *parser) word(word string) error {
	if !strings.HasPrefix(p.text[p.at:], word) {
		return errJSON
	}
	p.at += len(word)
	return nil
}

func (p *parser) object(depth int) (any, error) {
	p.at++
	if p.next() == '}' {
		p.at++
		return map[string]any{}, nil
	}
	from := len(p.fields)
	for {
		if p.next() != '"' {
			return nil, errJSON
		}
		key, err := p.string()
		if err != nil {
			return nil, err
		}
		if p.next() != ':' {
			return nil, errJSON
		}
		p.at++
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		p.fields = append(p.fields, field{key, v})
		switch p.next() {
		case ',':
			p.at++
			continue
		case '}':
			p.at++
		default:
			return nil, errJSON
		}
		all := make(map[string]any, len(p.fields)-from)
		for i := range p.fields[from:] {
			one := &p.fields[from+i]
			all[one.name] = one.value
		}
		p.fields = p.fields[:from]
		return all, nil
	}
}

func (p *parser) array(depth int) (any, error) {
	p.at++
	if p.next() == ']' {
		p.at++
		return []any{}, nil
	}
	from := len(p.values)
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		p.values = append(p.values, v)
		switch p.next() {
		case ',':
			p.at++
			continue
		case ']':
			p.at++
		default:
			return nil, errJSON
		}
		all := slices.Clone(p.values[from:])
		p.values = p.values[:from]
		return all, nil
	}
}

func (p *parser) string() (string, error) {
	p.at++
	rest := p.text[p.at:]
	for i := range len(rest) {
		switch c := rest[i]; {
		case c == '"':
			p.at += i + 1
			return rest[:i], nil
		case c == '\\':
			return p.unescape(i)
		case c < ' ':
			return "", errJSON
		}
	}
	return "", errJSON
}

// unescape reads a string on from its first backslash.
func (p *parser) unescape(from int) (string, error) {
	rest := p.text[p.at:]
	made := make([]byte, from, from+64)
	copy(made, rest)
	for i := from; i < len(rest); {
		c := rest[i]
		switch {
		case c == '"':
			p.at += i + 1
			return string(made), nil
		case c < ' ':
			return "", errJSON
		case c != '\\':
			made = append(made, c)
			i++
			continue
		case i+1 == len(rest):
			return "", errJSON
		}
		c = rest[i+1]
		i += 2
		if c != 'u' {
			at := strings.IndexByte(`"\/bfnrt`, c)
			if at < 0 {
				return "", errJSON
			}
			made = append(made, "\"\\/\b\f\n\r\t"[at])
			continue
		}
		r, ok := hex4(rest[i:])
		if !ok {
			return "", errJSON
		}
		i += 4
		if utf16.IsSurrogate(r) {
			// Half a pair becomes U+FFFD, as in encoding/json.
			second, ok := rune(0), strings.HasPrefix(rest[i:], `\u`)
			if ok {
				second, ok = hex4(rest[i+2:])
			}
			if r = utf16.DecodeRune(r, second); ok && r != utf8.RuneError {
				i += 6
			}
		}
		made = utf8.AppendRune(made, r)
	}
	return "", errJSON
}

func hex4(text string) (rune, bool) {
	if len(text) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(text[:4], 16, 16)
	return rune(n), err == nil && text[0] != '+'
}

// surelyInt is how many characters any int has at least room for.
const surelyInt = 18

func (p *parser) number() (any, error) {
	from, text := p.at, p.text
	digits := func() bool {
		first := p.at
		for p.at < len(text) && text[p.at]-'0' < 10 {
			p.at++
		}
		return p.at > first
	}
	isNegative := p.skip('-')
	whole := p.at
	if !digits() || text[whole] == '0' && p.at > whole+1 {
		return nil, errJSON
	}
	isInt := !isNegative || text[whole] != '0'
	if p.skip('.') {
		isInt = false
		if !digits() {
			return nil, errJSON
		}
	}
	if p.skip('e') || p.skip('E') {
		isInt = false
		if !p.skip('+') {
			p.skip('-')
		}
		if !digits() {
			return nil, errJSON
		}
	}
	if literal := text[from:p.at]; !isInt || len(literal) > surelyInt {
		return json.Number(literal), nil
	}
	n := 0
	for _, c := range []byte(text[whole:p.at]) {
		n = n*10 + int(c-'0')
	}
	if isNegative {
		n = -n
	}
	return n, nil
}

func (p *parser) skip(c byte) bool {
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}
