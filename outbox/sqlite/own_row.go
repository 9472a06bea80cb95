package sqlite

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// A row of the user's table is kept as a JSON object of its columns. What JSON has no
// words for is an object with one member:
//
//	{"$blob": "00ff"}   a blob, in hex
//	{"$text": "ff"}     text that is not UTF-8, in hex
//	{"$real": "+Inf"}   a real that is no number
//
// A real always has a point or an exponent, an integer never.
const (
	blobMark = "$blob"
	textMark = "$text"
	realMark = "$real"
)

// encodeRow makes the JSON of a row.
func encodeRow(columns []string, values []any) (string, error) {
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
			out = appendReal(out, v)
		case string:
			if utf8.ValidString(v) {
				out = appendText(out, v)
			} else {
				out = appendMarked(out, textMark, hex.EncodeToString([]byte(v)))
			}
		case []byte:
			out = appendMarked(out, blobMark, hex.EncodeToString(v))
		default:
			return "", fmt.Errorf("column %s holds a %T, which SQLite has not", columns[i], value)
		}
	}
	return string(append(out, '}')), nil
}

func appendMarked(out []byte, mark, value string) []byte {
	return append(appendText(append(appendText(append(out, '{'), mark), ':'), value), '}')
}

func appendReal(out []byte, v float64) []byte {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return appendMarked(out, realMark, strconv.FormatFloat(v, 'g', -1, 64))
	}
	text := strconv.AppendFloat(nil, v, 'g', -1, 64)
	if !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...)
	}
	return append(out, text...)
}

// appendText writes a JSON string, with < > & as they are.
func appendText(out []byte, s string) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil { // strings always marshal
		panic(err)
	}
	return append(out, bytes.TrimRight(text.Bytes(), "\n")...)
}

// decodeRow reads what encodeRow wrote.
func decodeRow(text string) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	var row map[string]any
	if err := dec.Decode(&row); err != nil {
		return nil, fmt.Errorf("a row of the table as JSON: %w", err)
	}
	for column, value := range row {
		var err error
		switch v := value.(type) {
		case nil, string:
		case json.Number:
			row[column], err = number(string(v))
		case map[string]any:
			row[column], err = unmark(v)
		default:
			err = fmt.Errorf("%v was not expected", v)
		}
		if err != nil {
			return nil, fmt.Errorf("column %s of a row of the table as JSON: %w", column, err)
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

func unmark(v map[string]any) (any, error) {
	if text, is := v[realMark].(string); is {
		return strconv.ParseFloat(text, 64)
	}
	if text, is := v[textMark].(string); is {
		raw, err := hex.DecodeString(text)
		return string(raw), err
	}
	if text, is := v[blobMark].(string); is {
		return hex.DecodeString(text)
	}
	return nil, fmt.Errorf("%v was not expected", v)
}

// ?1 to ?4 are an extent.
const rowsOfOwnSQL = `
SELECT own_id, own_columns FROM own_events
WHERE group_id IS ?1 AND own_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR own_id IN (SELECT value FROM json_each(?4)))
ORDER BY own_id`

// ownRow is a row of the user's table.
type ownRow struct {
	id   int64
	text string // see encodeRow
}

// rowsOf reads the rows of an extent, whose stamp is as the table has it.
func (t transaction) rowsOf(ctx context.Context, which extent) ([]ownRow, error) {
	rows, err := t.rows(ctx, rowsOfOwnSQL, which.args()[:4]...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var (
		found  []ownRow
		row    ownRow
		values = make([]any, len(t.shape.columns))
		into   = []any{&row.id}
	)
	for i := range values {
		into = append(into, &values[i])
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		if row.text, err = encodeRow(t.shape.columns, values); err != nil {
			return nil, err
		}
		found = append(found, row)
	}
	return found, rows.Err()
}
