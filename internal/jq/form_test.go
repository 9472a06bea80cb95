package jq

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEncodeForm(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", maxFormDepth) + "1" + strings.Repeat("]", maxFormDepth)
	for text, c := range map[string]struct{ form, err string }{
		`{}`:                               {},
		`{"amount":2000,"currency":"eur"}`: {form: "amount=2000&currency=eur"},
		`{"metadata":{"order id":"17&18"},"paid":true}`:                                   {form: "metadata[order+id]=17%2618&paid=true"},
		`{"items":[{"price":"p","quantity":1.50},{"price":"q"}],"off":false,"none":null}`: {form: "items[0][price]=p&items[0][quantity]=1.50&items[1][price]=q&off=false"},
		`{"a":[],"b":{},"c":["x",["y"],null,"z"],"d":""}`:                                 {form: "c[0]=x&c[1][0]=y&c[3]=z&d="},
		`{"a[b]":"é","n":12345678901234567890,"f":1e+30}`:                                 {form: "a%5Bb%5D=%C3%A9&f=1e%2B30&n=12345678901234567890"},
		`[]`:                 {err: "the program makes an array; expected an object"},
		`1`:                  {err: "the program makes a number; expected an object"},
		`null`:               {err: "the program makes null; expected an object"},
		`{"a":` + deep + `}`: {err: "nested deeper than 100"},
	} {
		v, err := decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := encodeForm(v)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: got the error %v; expected %q", text, err, c.err)
		}
		if c.err == "" && string(got) != c.form {
			t.Errorf("%s\nmakes %s\nwant  %s", text, got, c.form)
		}
	}
}

// FuzzEncodeForm reads the form with net/url.
func FuzzEncodeForm(f *testing.F) {
	f.Add(`{"a":[1,{"b":"c=d&e;f+g%20[h]"}],"é":{"[":"]","":null},"x":true}`)
	f.Add(`{"a":{"b":1},"a[b]":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := decode([]byte(text))
		object, isObject := v.(map[string]any)
		if err != nil || !isObject {
			return
		}
		encoded, err := encodeForm(v)
		if err != nil { // too deep
			return
		}
		got, err := url.ParseQuery(string(encoded))
		if err != nil {
			t.Fatalf("%q: %v", encoded, err)
		}
		want := url.Values{}
		for name, one := range object {
			flatten(want, name, one)
		}
		if len(want) == 0 && len(got) == 0 {
			return
		}
		for _, values := range []url.Values{want, got} {
			for _, all := range values {
				for i := range all { // two fields may come to one name
					all[i] = strings.ToValidUTF8(all[i], "\uFFFD")
				}
			}
		}
		if diff := cmp.Diff(sets(want), sets(got)); diff != "" {
			t.Fatalf("%q makes %q (-want +got):\n%s", text, encoded, diff)
		}
	})
}

func sets(values url.Values) map[string]map[string]int {
	all := map[string]map[string]int{}
	for name, some := range values {
		all[name] = map[string]int{}
		for _, value := range some {
			all[name][value]++
		}
	}
	return all
}

// flatten adds the fields that v should have.
func flatten(into url.Values, name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, one := range v {
			flatten(into, name+"["+key+"]", one)
		}
	case []any:
		for i, one := range v {
			flatten(into, name+"["+strconv.Itoa(i)+"]", one)
		}
	case string:
		into.Add(name, v)
	case json.Number:
		into.Add(name, v.String())
	case bool:
		into.Add(name, strconv.FormatBool(v))
	}
}
