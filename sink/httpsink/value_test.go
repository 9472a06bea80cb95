package httpsink

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/itchyny/gojq"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// decoded is what encoding/json makes of text, with all digits; false where it is none.
func decoded(text []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil, false
	}
	_, err := d.Token()
	return v, err == io.EOF
}

func written(t testing.TB, v any) []byte {
	t.Helper()
	w := writer{most: mostResult}
	if err := w.value(v, 0); err != nil {
		t.Fatal(err)
	}
	return w.text
}

// FuzzJSON: what goes through a program untouched arrives as encoding/json reads it, digit
// for digit, and what encoding/json refuses is refused.
func FuzzJSON(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-0,0.10,1e400,12345678901234567890,-9223372036854775808,true,false,null],"b":{"":"\u00e9\ud83d\ude00\ud800x\n\"\\\/"}}`,
		" [ ] ", "{ }", `""`, "01", "1.", "+1", "-", "1e", "tru", `"\x"`, "\"\n\"", `"\u12"`, "[1,]", `{"a"}`, `{"a":1,}`, `{"a":1,"a":2}`, "1 2", "\x00", "1\x00", "",
		"\"\xff\"", `"\ud800\udc00\udc00\ud800"`, `"\u+123"`, "999999999999999999", "-999999999999999999", "1000000000000000000", "-0.0", "0e0",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseJSON(text)
		want, ok := decoded([]byte(text))
		if ok != (err == nil) {
			t.Fatalf("%q: got %v, encoding/json says it is JSON: %v", text, err, ok)
		}
		if !ok {
			return
		}
		again, ok := decoded(written(t, got))
		if diff := cmp.Diff(want, again); !ok || diff != "" {
			t.Fatalf("%q arrives as %q (-want +got):\n%s", text, written(t, got), diff)
		}
	})
}

func TestDepth(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", mostDepth+2) + strings.Repeat("]", mostDepth+2)
	if _, err := parseJSON(deep); err == nil {
		t.Error("an array nested without end is read")
	}
	var v any
	for range mostDepth + 2 {
		v = []any{v}
	}
	if err := (&writer{most: 1 << 30}).value(v, 0); err == nil {
		t.Error("an array nested without end is written")
	}
	if err := (&writer{most: 1 << 30}).form(map[string]any{"a": v}); err == nil {
		t.Error("fields nested without end are written")
	}
}

// TestCalculatedNumbers are written as jq does.
func TestCalculatedNumbers(t *testing.T) {
	t.Parallel()
	for _, v := range []any{
		math.NaN(), math.Inf(1), math.Inf(-1), 1e21, 1e-7, 0.1, -0.5, 3.0, new(big.Int).Lsh(big.NewInt(1), 100), math.MinInt, nil, true,
	} {
		want, err := gojq.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := written(t, v); !bytes.Equal(got, want) {
			t.Errorf("%v is written as %s, want %s", v, got, want)
		}
	}
}

// TestKeysAreSorted, many and few: a batch that is sent again has the same body.
func TestKeysAreSorted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := map[string]any{}
		for _, key := range rapid.SliceOfN(rapid.StringMatching(`[a-c]{0,3}`), 0, 30).Draw(t, "keys") {
			all[key] = len(key)
		}
		want, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		w := writer{most: mostResult}
		if err := w.value(all, 0); err != nil || !bytes.Equal(w.text, want) {
			t.Fatalf("got %s, %v, want %s", w.text, err, want)
		}
	})
}

// TestEnvelopeAsAValue is the envelope that is sent, whatever is in it.
func TestEnvelopeAsAValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := outbox.Event{
			ID: rapid.Int64Min(1).Draw(t, "id"), Topic: rapid.String().Draw(t, "topic"),
			CreatedAt: time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "created")),
		}
		if rapid.Bool().Draw(t, "uuid") {
			e.UUID = uuid.New()
		}
		if rapid.Bool().Draw(t, "keyed") {
			key := rapid.String().Draw(t, "key")
			e.Key = &key
		}
		if rapid.Bool().Draw(t, "headed") {
			e.Headers = outbox.NewHeaders(map[string]string{rapid.String().Draw(t, "name"): rapid.String().Draw(t, "value")})
		}
		if rapid.Bool().Draw(t, "dead") {
			e.DeadLetter = &outbox.DeadLetter{Pipeline: "p", GroupID: uuid.New(), Attempts: 3, Error: rapid.String().Draw(t, "error")}
		}
		e.Payload = []byte(rapid.SampledFrom([]string{`{"a": 1.10}`, "12345678901234567890", "{", "", "\xff", `"\u00e9"`, "[1,\n2]"}).Draw(t, "payload"))
		isJSON := json.Valid(e.Payload) && utf8.Valid(e.Payload) && rapid.Bool().Draw(t, "vouched")
		var in input
		in.texts = texts{}
		got, err := in.envelope(&buffer.Batch{PayloadIsJSON: isJSON}, &e)
		if err != nil {
			t.Fatal(err)
		}
		w := writer{most: mostResult}
		if err := w.value(got, 0); err != nil {
			t.Fatal(err)
		}
		want, _ := decoded(sink.AppendEnvelope(nil, &e, isJSON))
		as, _ := decoded(w.text)
		if diff := cmp.Diff(want, as); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
