package jq

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/itchyny/gojq"
)

// Decode reads one JSON value. As with encoding/json, the last of two equal keys wins, invalid UTF-8 becomes
// U+FFFD, and values are nested at most 10,000 deep.
func Decode(text []byte) (any, error) {
	d, _ := decoders.Get().(*jsontext.Decoder)
	defer decoders.Put(d)
	d.Reset(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	v, err := decode(d)
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("not JSON: more than one value")
	}
	return v, nil
}

var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

func decode(d *jsontext.Decoder) (any, error) {
	token, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		return json.Number(token.String()), nil
	case '[':
		array := []any{}
		for d.PeekKind() != ']' {
			v, err := decode(d)
			if err != nil {
				return nil, err
			}
			array = append(array, v)
		}
		_, err := d.ReadToken()
		return array, err
	}
	object := map[string]any{}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String() // the token is void after the next read
		if object[key], err = decode(d); err != nil {
			return nil, err
		}
	}
	_, err = d.ReadToken()
	return object, err
}

// Encode returns the JSON of a value, as jq writes it: on one line, with sorted keys.
func Encode(v any) []byte {
	text, err := gojq.Marshal(v)
	if err != nil { // it has none
		panic(err)
	}
	return text
}

// Describe names the kind of a value for an error message: "null", "a string", "an array".
func Describe(v any) string {
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

// budget bounds what Encode makes of a value. A program can build a value that holds one of its parts many
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
