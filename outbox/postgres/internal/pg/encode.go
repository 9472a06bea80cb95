package pg

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Parameters are texts, in the form that PostgreSQL reads.

// Null stands for NULL among the parameters.
const Null = "\x00"

// Int is an integer.
func Int(n int64) string { return strconv.FormatInt(n, 10) }

// Bool is a boolean.
func Bool(v bool) string {
	if v {
		return "t"
	}
	return "f"
}

// Interval is a duration as an interval.
func Interval(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}

// Milliseconds is a duration as settings have it.
func Milliseconds(d time.Duration) string { return Int(d.Milliseconds()) }

// Timestamp is a timestamptz; the zero time is -infinity. See [Earliest].
func Timestamp(t time.Time) string {
	switch {
	case !t.After(Earliest):
		return "-infinity"
	case !t.Before(Latest):
		return "infinity"
	}
	return t.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
}

// Text makes a string fit for a text column: UTF-8 without NUL.
func Text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// IDArray is a bigint[].
func IDArray(ids []int64) string {
	text := make([]byte, 0, 2+len(ids)*8)
	text = append(text, '{')
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, id, 10)
	}
	return string(append(text, '}'))
}

// UUIDArray is a uuid[].
func UUIDArray(ids []uuid.UUID) string {
	var text strings.Builder
	text.WriteByte('{')
	for i, id := range ids {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(id.String())
	}
	text.WriteByte('}')
	return text.String()
}

// TextArray is a text[].
func TextArray(texts []string) string {
	var a Array
	for _, text := range texts {
		a.Append([]byte(text))
	}
	return a.String()
}

// Array builds an array of texts.
type Array struct{ text []byte }

// Append appends an element; nil is NULL.
func (a *Array) Append(element []byte) {
	if len(a.text) > 0 {
		a.text = append(a.text, ',')
	}
	if element == nil {
		a.text = append(a.text, "NULL"...)
		return
	}
	a.text = append(a.text, '"')
	for _, c := range element {
		if c == '"' || c == '\\' {
			a.text = append(a.text, '\\')
		}
		a.text = append(a.text, c)
	}
	a.text = append(a.text, '"')
}

// String is the parameter.
func (a *Array) String() string { return "{" + string(a.text) + "}" }
