package jq

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// standardDecode is what encoding/json reads, with all digits.
func standardDecode(text []byte) (v any, isJSON bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil, false
	}
	_, err := d.Token()
	return v, err == io.EOF
}

// FuzzDecode compares decode and encode with encoding/json.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-0,0.10,1e400,12345678901234567890,-9223372036854775808,true,false,null],"b":{"":"\u00e9\ud83d\ude00\ud800x\n\"\\\/"}}`,
		" [ ] ", "{ }", `""`, "01", "1.", "+1", "-", "1e", "tru", `"\x"`, "\"\n\"", `"\u12"`, "[1,]", `{"a"}`, `{"a":1,}`, `{"a":1,"a":2}`, "1 2", "\x00", "1\x00", "",
		"\"\xff\"", `"\ud800\udc00\udc00\ud800"`, `"\u+123"`, "999999999999999999", "-999999999999999999", "1000000000000000000", "-0.0", "0e0", "[", "[1", `{"a":[`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := decode([]byte(text))
		want, isJSON := standardDecode([]byte(text))
		if isJSON != (err == nil) {
			t.Fatalf("%q: decode returns %v; encoding/json reads it: %v", text, err, isJSON)
		}
		if diff := cmp.Diff(want, got); isJSON && diff != "" {
			t.Fatalf("%q (-encoding/json +decode):\n%s", text, diff)
		}
		if again, ok := standardDecode(encode(got)); isJSON && (!ok || !cmp.Equal(want, again)) {
			t.Fatalf("%q is encoded as %s", text, encode(got))
		}
	})
}

func TestDecode_DeepValue(t *testing.T) {
	t.Parallel()
	deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	if _, err := decode(deep(maxDepth)); err != nil {
		t.Error(err)
	}
	if _, err := decode(deep(maxDepth + 1)); err == nil {
		t.Error("decoded an array that is nested too deep")
	}
}
