package httpsink

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func formOf(t testing.TB, text string) string {
	t.Helper()
	v, err := parseJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	w := writer{most: mostResult}
	if err := w.form(v); err != nil {
		t.Fatal(err)
	}
	return string(w.text)
}

func TestForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                               "",
		`{"amount":2000,"currency":"eur"}`: "amount=2000&currency=eur",
		`{"metadata":{"order id":"17&18"},"paid":true}`:                                   "metadata[order+id]=17%2618&paid=true",
		`{"items":[{"price":"p","quantity":1.50},{"price":"q"}],"off":false,"none":null}`: "items[0][price]=p&items[0][quantity]=1.50&items[1][price]=q&off=false",
		`{"a":[],"b":{},"c":["x",["y"],null,"z"],"d":""}`:                                 "c[0]=x&c[1][0]=y&c[3]=z&d=",
		`{"a[b]":"é","n":12345678901234567890,"f":1e+30}`:                                 "a%5Bb%5D=%C3%A9&f=1e%2B30&n=12345678901234567890",
	} {
		if got := formOf(t, text); got != want {
			t.Errorf("%s\nmakes %s\nwant  %s", text, got, want)
		}
	}
	for _, text := range []string{`[]`, `1`, `null`} {
		v, err := parseJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := (&writer{most: 100}).form(v); err == nil || !strings.Contains(err.Error(), "are made of an object") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzForm: net/url reads what was written.
func FuzzForm(f *testing.F) {
	f.Add(`{"a":[1,{"b":"c=d&e;f+g%20[h]"}],"é":{"[":"]","":null},"x":true}`)
	f.Add(`{"a":{"b":1},"a[b]":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseJSON(text)
		object, isObject := v.(map[string]any)
		if err != nil || !isObject {
			return
		}
		w := writer{most: mostResult}
		if w.form(v) != nil { // too deep
			return
		}
		got, err := url.ParseQuery(string(w.text))
		if err != nil {
			t.Fatalf("%q: %v", w.text, err)
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
			t.Fatalf("%q makes %q (-want +got):\n%s", text, w.text, diff)
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

// flatten is what the fields of v are to be, within the field of that name.
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
	case int:
		into.Add(name, strconv.Itoa(v))
	case json.Number:
		into.Add(name, v.String())
	case bool:
		into.Add(name, strconv.FormatBool(v))
	}
}
