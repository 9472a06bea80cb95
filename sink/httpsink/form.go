package httpsink

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/itchyny/gojq"
)

// form makes application/x-www-form-urlencoded of an object: nested ones as
// metadata[key]=value, arrays as lines[0][price]=1, as the libraries of Stripe and
// of PHP and Rails frameworks do. Booleans are true and false; null, and what is empty,
// is left out. Fields are sorted by name, those of an array as they stand.
func (w *writer) form(v any) error {
	object, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("form fields are made of an object, and it made %s", described(v))
	}
	return w.fields("", object, 0)
}

func (w *writer) fields(within string, object map[string]any, depth int) error {
	var room [16]field
	for _, one := range sorted(room[:0], object) {
		name := url.QueryEscape(one.name)
		if depth > 0 {
			name = within + "[" + name + "]"
		}
		if err := w.field(name, one.value, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) field(name string, v any, depth int) error {
	switch {
	case depth > mostFormDepth:
		return errFormDepth
	case len(w.text) > w.most:
		return errMuch
	}
	switch v := v.(type) {
	case nil:
		return nil
	case map[string]any:
		return w.fields(name, v, depth)
	case []any:
		for i, one := range v {
			if err := w.field(name+"["+strconv.Itoa(i)+"]", one, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if len(w.text) > 0 {
		w.text = append(w.text, '&')
	}
	w.text = append(append(w.text, name...), '=')
	if text, ok := v.(string); ok {
		w.text = append(w.text, url.QueryEscape(text)...)
		return nil
	}
	from := len(w.text)
	if err := w.scalar(v); err != nil {
		return err
	}
	// 1e+30
	w.text = append(w.text[:from], url.QueryEscape(string(w.text[from:]))...)
	return nil
}

// mostFormDepth bounds the names, which repeat all that is around them.
const mostFormDepth = 100

var errFormDepth = errors.New("form fields are nested deeper than " + strconv.Itoa(mostFormDepth))

// described says in a few words what a value is.
func described(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	}
	kind := gojq.TypeOf(v)
	if kind == "array" || kind == "object" {
		return "an " + kind
	}
	return "a " + kind
}
