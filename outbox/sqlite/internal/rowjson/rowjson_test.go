package rowjson_test

import (
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/sqlite/internal/rowjson"
)

// Every SQLite value survives the conversion to JSON and back.
func TestEncode_RoundTrip(t *testing.T) {
	t.Parallel()
	value := rapid.OneOf(
		rapid.Just(any(nil)),
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }),
		rapid.Map(rapid.SampledFrom([]float64{0, 1, -1e300, math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64}), func(v float64) any { return v }),
		rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return append([]byte{}, v...) }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return string(v) }),
		rapid.SampledFrom([]any{`{"$blob": "00"}`, "<&>", "\u2028", "a\x00b", "12", "1.0", "null"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.String(), value).Draw(t, "row")
		var (
			columns []string
			values  []any
		)
		for column, value := range want {
			columns, values = append(columns, column), append(values, value)
		}
		text, err := rowjson.Encode(columns, values)
		if err != nil {
			t.Fatal(err)
		}
		got, err := rowjson.Decode(text)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v, want %#v, from %s", got, want, text)
		}
	})
}

func TestDecode_RejectsOtherJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "[]", `{"a": true}`, `{"a": [1]}`, `{"a": {"$blob": "zz"}}`, `{"a": {"b": "00"}}`, `{"a": 99999999999999999999}`} {
		if row, err := rowjson.Decode(text); err == nil {
			t.Errorf("%s was read as %v", text, row)
		}
	}
}
