package httpsink

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/sink"
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

// writer makes JSON of values: keys are sorted, so that the same value makes the same
// text each time.
type writer struct {
	text []byte
	most int // bytes of text
	// texts are those that objects were read from, and are written as again.
	texts texts
}

// texts are the payloads that are objects, as the database wrote them. A program that
// hands one on untouched hands on the same map: gojq changes none in place that it was
// given.
type texts map[uintptr]string

func identity(object map[string]any) uintptr { return reflect.ValueOf(object).Pointer() }

var errMuch = fmt.Errorf("it makes more than %d MiB", mostResult>>20)

// mostResult is how large what a program makes may be, in bytes of JSON: the value may
// hold one of its parts many times.
const mostResult = 128 << 20

func (w *writer) value(v any, depth int) error {
	switch {
	case depth > mostDepth:
		return errDepth
	case len(w.text) > w.most:
		return errMuch
	}
	switch v := v.(type) {
	case string:
		w.text = sink.AppendJSONString(w.text, v)
	case map[string]any:
		return w.object(v, depth)
	case []any:
		w.text = append(w.text, '[')
		for i, one := range v {
			if i > 0 {
				w.text = append(w.text, ',')
			}
			if err := w.value(one, depth+1); err != nil {
				return err
			}
		}
		w.text = append(w.text, ']')
	default:
		return w.scalar(v)
	}
	return nil
}

// scalar is anything but a string, an array or an object.
func (w *writer) scalar(v any) error {
	switch v := v.(type) {
	case nil:
		w.text = append(w.text, "null"...)
	case bool:
		w.text = strconv.AppendBool(w.text, v)
	case int:
		w.text = strconv.AppendInt(w.text, int64(v), 10)
	case json.Number:
		w.text = append(w.text, v...)
	case *big.Int:
		w.text = v.Append(w.text, 10)
	default: // float64, as jq writes it
		text, err := gojq.Marshal(v)
		if err != nil {
			return err
		}
		w.text = append(w.text, text...)
	}
	return nil
}

// line writes a value on a line of its own; a payload's text may have several.
func (w *writer) line(v any) error {
	from := len(w.text)
	if err := w.value(v, 0); err != nil {
		return err
	}
	for i, c := range w.text[from:] {
		if c == '\n' || c == '\r' {
			w.text[from+i] = ' '
		}
	}
	w.text = append(w.text, '\n')
	return nil
}

type field struct {
	name  string
	value any
}

func (w *writer) object(all map[string]any, depth int) error {
	if text, ok := w.texts[identity(all)]; ok {
		w.text = append(w.text, text...)
		return nil
	}
	var room [16]field
	fields := sorted(room[:0], all)
	w.text = append(w.text, '{')
	for i := range fields {
		if i > 0 {
			w.text = append(w.text, ',')
		}
		w.text = append(sink.AppendJSONString(w.text, fields[i].name), ':')
		if err := w.value(fields[i].value, depth+1); err != nil {
			return err
		}
	}
	w.text = append(w.text, '}')
	return nil
}

// sorted are an object's fields by name, in room if there is enough.
func sorted(room []field, all map[string]any) []field {
	for name, value := range all {
		room = append(room, field{name, value})
	}
	if len(room) > 12 {
		slices.SortFunc(room, func(a, b field) int { return strings.Compare(a.name, b.name) })
		return room
	}
	for i := 1; i < len(room); i++ { // quicker for a few
		for j := i; j > 0 && room[j].name < room[j-1].name; j-- {
			room[j], room[j-1] = room[j-1], room[j]
		}
	}
	return room
}
