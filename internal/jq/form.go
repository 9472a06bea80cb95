package jq

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
)

// encodeForm makes application/x-www-form-urlencoded of an object. Nested objects become
// metadata[key]=value and arrays lines[0][price]=1, as in the libraries of Stripe, PHP and Rails.
// null, {} and [] are omitted. Fields are sorted by name, elements of an array are in their order.
func encodeForm(v any) ([]byte, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the program makes %s; expected an object with the form's fields", describe(v))
	}
	var f form
	err := f.add("", object, 0)
	return f.text, err
}

type form struct{ text []byte }

// The names repeat all that surrounds a field, so a form can be far larger than its value.
const (
	maxFormDepth = 100
	maxFormBytes = 128 << 20
)

func (f *form) add(name string, v any, depth int) error {
	if depth > maxFormDepth {
		return fmt.Errorf("the form fields are nested deeper than %d", maxFormDepth)
	}
	if len(f.text) > maxFormBytes {
		return fmt.Errorf("the form is larger than %d MiB", maxFormBytes>>20)
	}
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			field := url.QueryEscape(key)
			if depth > 0 {
				field = name + "[" + field + "]"
			}
			if err := f.add(field, v[key], depth+1); err != nil {
				return err
			}
		}
	case []any:
		for i, element := range v {
			if err := f.add(name+"["+strconv.Itoa(i)+"]", element, depth+1); err != nil {
				return err
			}
		}
	case string:
		f.addField(name, v)
	default:
		f.addField(name, string(encode(v)))
	}
	return nil
}

func (f *form) addField(name, value string) {
	if len(f.text) > 0 {
		f.text = append(f.text, '&')
	}
	f.text = append(append(append(f.text, name...), '='), url.QueryEscape(value)...)
}
