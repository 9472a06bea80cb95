// Package rowjson keeps a row of a SQLite table as a JSON object of its columns. A value that JSON
// cannot express is an object with one member:
//
//	{"$blob": "00ff"}   a blob, in hex
//	{"$text": "ff"}     text that is not UTF-8, in hex
//	{"$real": "+Inf"}   a real that is no number
//
// A real always has a point or an exponent, an integer never.
package rowjson

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

const (
	blobKey = "$blob"
	textKey = "$text"
	realKey = "$real"
)

// Encode returns the JSON of a row.
func Encode(columns []string, values []any) (string, error) {
	out := []byte{'{'}
	for i, value := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendText(out, columns[i]), ':')
		switch v := value.(type) {
		case nil:
			out = append(out, "null"...)
		case int64:
			out = strconv.AppendInt(out, v, 10)
		case float64:
			out = AppendReal(out, v)
		case string:
			if utf8.ValidString(v) {
				out = appendText(out, v)
			} else {
				out = appendTagged(out, textKey, hex.EncodeToString([]byte(v)))
			}
		case []byte:
			out = appendTagged(out, blobKey, hex.EncodeToString(v))
		default:
			return "", fmt.Errorf("column %s holds a %T; expected a type of SQLite", columns[i], value)
		}
	}
	return string(append(out, '}')), nil
}

func appendTagged(out []byte, key, value string) []byte {
	return append(appendText(append(appendText(append(out, '{'), key), ':'), value), '}')
}

// AppendReal appends the JSON of a real.
func AppendReal(out []byte, v float64) []byte {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return appendTagged(out, realKey, strconv.FormatFloat(v, 'g', -1, 64))
	}
	text := strconv.AppendFloat(nil, v, 'g', -1, 64)
	if !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...)
	}
	return append(out, text...)
}

// appendText appends a JSON string and keeps < > & as they are.
func appendText(out []byte, s string) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil { // strings always marshal
		panic(err)
	}
	return append(out, bytes.TrimRight(text.Bytes(), "\n")...)
}

// Decode reads what Encode wrote.
func Decode(text string) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	var row map[string]any
	if err := dec.Decode(&row); err != nil {
		return nil, fmt.Errorf("decoding a row: %w", err)
	}
	for column, value := range row {
		var err error
		switch v := value.(type) {
		case nil, string:
		case json.Number:
			row[column], err = number(string(v))
		case map[string]any:
			row[column], err = untag(v)
		default:
			err = fmt.Errorf("value is %v; expected a scalar", v)
		}
		if err != nil {
			return nil, fmt.Errorf("decoding column %s of a row: %w", column, err)
		}
	}
	return row, nil
}

func number(text string) (any, error) {
	if bytes.ContainsAny([]byte(text), ".eE") {
		return strconv.ParseFloat(text, 64)
	}
	return strconv.ParseInt(text, 10, 64)
}

func untag(v map[string]any) (any, error) {
	if text, ok := v[realKey].(string); ok {
		return strconv.ParseFloat(text, 64)
	}
	if text, ok := v[textKey].(string); ok {
		raw, err := hex.DecodeString(text)
		return string(raw), err
	}
	if text, ok := v[blobKey].(string); ok {
		return hex.DecodeString(text)
	}
	return nil, fmt.Errorf("value is %v; expected %q, %q or %q", v, blobKey, textKey, realKey)
}
