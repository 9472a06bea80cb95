package jq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/itchyny/gojq"
)

// Valid returns an error if text is not one JSON value that a program can read.
func Valid(text []byte) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err := d.SkipValue(); err != nil {
		return notJSON(err)
	}
	return atEnd(d)
}

func notJSON(err error) error { return fmt.Errorf("not JSON: %w", err) }

func atEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("not JSON: more than one value")
	}
	return nil
}

// decode reads one JSON value. As with encoding/json, the last of two equal keys wins, invalid UTF-8 becomes
// U+FFFD, and values are nested at most 10,000 deep. The value shares the memory of text, which must not change.
func decode(text []byte) (any, error) {
	d, _ := decoders.Get().(*decoder)
	defer decoders.Put(d)
	d.Reset(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	d.text, d.valid = unsafe.String(unsafe.SliceData(text), len(text)), utf8.Valid(text)
	v, err := d.value()
	if err != nil {
		return nil, notJSON(err)
	}
	return v, atEnd(&d.Decoder)
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// decoder makes the values of one text. All strings without an escape are parts of it.
type decoder struct {
	jsontext.Decoder
	text  string
	valid bool // the text is valid UTF-8
}

func (d *decoder) value() (any, error) {
	switch kind := d.PeekKind(); kind {
	case '"':
		return d.string()
	case '0':
		number, err := d.ReadValue()
		return json.Number(d.last(number)), err
	case '[', '{':
		if _, err := d.ReadToken(); err != nil {
			return nil, err
		}
		if kind == '[' {
			return d.array()
		}
		return d.object()
	}
	token, err := d.ReadToken()
	if err != nil || token.Kind() == 'n' {
		return nil, err
	}
	return token.Bool(), nil
}

func (d *decoder) array() (any, error) {
	array := []any{}
	for d.PeekKind() != ']' {
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		array = append(array, v)
	}
	_, err := d.ReadToken()
	return array, err
}

func (d *decoder) object() (any, error) {
	object := map[string]any{}
	for d.PeekKind() != '}' {
		name, err := d.string()
		if err != nil {
			return nil, err
		}
		if object[name], err = d.value(); err != nil {
			return nil, err
		}
	}
	_, err := d.ReadToken()
	return object, err
}

func (d *decoder) string() (string, error) {
	quoted, err := d.ReadValue()
	if err != nil {
		return "", err
	}
	if d.valid && bytes.IndexByte(quoted, '\\') < 0 {
		s := d.last(quoted)
		return s[1 : len(s)-1], nil
	}
	s, _ := jsontext.AppendUnquote(nil, quoted) // the error says that something was replaced
	return string(s), nil
}

// last returns the value that was read last as a part of the text.
func (d *decoder) last(value jsontext.Value) string {
	end := d.InputOffset()
	return d.text[end-int64(len(value)) : end]
}

// encode returns the JSON of a value, as jq writes it: on one line, with sorted keys.
func encode(v any) []byte {
	text, err := gojq.Marshal(v)
	if err != nil { // it has none
		panic(err)
	}
	return text
}

// describe names the kind of a value for an error message: "null", "a string", "an array".
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case []any, map[string]any:
		return "an " + gojq.TypeOf(v)
	}
	return "a " + gojq.TypeOf(v)
}

// budget bounds what encode makes of a value. A program can build a value that holds one of its parts many
// times over, and whose JSON is far larger than the value.
type budget struct{ bytes int }

const maxDepth = 10_000

// spend subtracts at most the length of the value's JSON, and stops when nothing is left.
func (b *budget) spend(v any, depth int) error {
	b.bytes--
	if depth > maxDepth {
		return errTooDeep
	}
	switch v := v.(type) {
	case string:
		b.bytes -= len(v)
	case []any:
		for _, element := range v {
			if err := b.spend(element, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		for key, element := range v {
			b.bytes -= len(key)
			if err := b.spend(element, depth+1); err != nil {
				return err
			}
		}
	}
	if b.bytes < 0 {
		return errTooBig
	}
	return nil
}
