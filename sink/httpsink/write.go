package httpsink

import (
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/itchyny/gojq"

	"github.com/outboxrelay/relay/sink"
)

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
