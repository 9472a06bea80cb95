package sink_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func TestTemplate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text          string
		literalBraces bool
		want          string // of topic "a b", key "k/1"
		fixed         bool
	}{
		{text: "", want: "", fixed: true},
		{text: "orders", want: "orders", fixed: true},
		{text: "{topic}", want: "a b"},
		{text: "{key}", want: "k/1"},
		{text: "x:{topic}:{key}:{topic}", want: "x:a b:k/1:a b"},
		{text: "{topic}{key}", want: "a bk/1"},
		{text: "{hash}:{topic}", literalBraces: true, want: "{hash}:a b"},
		{text: "{{topic}}", literalBraces: true, want: "{a b}"},
		{text: "}{", literalBraces: true, want: "}{", fixed: true},
		{text: "{topic", literalBraces: true, want: "{topic", fixed: true},
		{text: "größe.{key}", want: "größe.k/1"},
	} {
		tmpl, err := sink.ParseTemplate(c.text, c.literalBraces)
		if err != nil {
			t.Errorf("ParseTemplate(%q): %v", c.text, err)
			continue
		}
		got, err := tmpl.Address(&outbox.Event{Topic: "a b", Key: ptr("k/1")})
		if err != nil || got != c.want {
			t.Errorf("%q: Address = %q, %v, want %q", c.text, got, err, c.want)
		}
		if tmpl.Fixed() != c.fixed || tmpl.String() != c.text {
			t.Errorf("%q: Fixed = %v, String = %q", c.text, tmpl.Fixed(), tmpl)
		}
	}
	for _, text := range []string{"{", "}", "{Topic}", "{topic", "topic}", "{}", "{ key }", "{{topic}}", "a{id}"} {
		if _, err := sink.ParseTemplate(text, false); err == nil || !strings.Contains(err.Error(), "{topic} nor {key}") {
			t.Errorf("ParseTemplate(%q): got %v, want an error", text, err)
		}
	}
}

func TestTemplate_EventWithoutKey(t *testing.T) {
	t.Parallel()
	for text, needsKey := range map[string]bool{"{key}": true, "a:{key}": true, "{topic}:{key}": true, "{topic}": false, "a": false} {
		tmpl := parse(t, text)
		if _, err := tmpl.Address(&outbox.Event{Topic: "t"}); errors.Is(err, sink.ErrPermanent) != needsKey || !needsKey && err != nil {
			t.Errorf("%q without a key: %v", text, err)
		}
		if _, err := tmpl.Address(&outbox.Event{Topic: "t", Key: ptr("")}); err != nil {
			t.Errorf("%q with an empty key: %v", text, err)
		}
	}
}

func TestURLTemplate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://h/{topic}?k={key}&t={topic}": "http://h/a%20b?k=%2F..%2F%3F&t=a+b",
		"http://h/{key}":                     "http://h/%2F..%2F%3F",
		"{topic}":                            "a%20b",
		"http://h/a%2Fb/?{topic}":            "http://h/a%2Fb/?a+b",
	} {
		tmpl, err := sink.ParseURLTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Address(&outbox.Event{Topic: "a b", Key: ptr("/../?")})
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	if _, err := sink.ParseURLTemplate("http://h/{id}"); err == nil {
		t.Error("{id} is no placeholder, and there was no error")
	}
}

func TestGroupByAddress(t *testing.T) {
	t.Parallel()
	b := &buffer.Batch{Events: []outbox.Event{
		{Topic: "b", Key: ptr("1")}, {Topic: "a", Key: ptr("1")}, {Topic: "b"}, {Topic: "b", Key: ptr("1")}, {Topic: "a", Key: ptr("2")},
	}}
	groups, wrong := sink.GroupByAddress(b, parse(t, "{topic}:{key}").Address)
	if d := cmp.Diff([]sink.Group{
		{Address: "b:1", Indexes: []int{0, 3}}, {Address: "a:1", Indexes: []int{1}}, {Address: "a:2", Indexes: []int{4}},
	}, groups); d != "" {
		t.Errorf("groups (-want +got):\n%s", d)
	}
	if len(wrong) != 1 || wrong[0].Index != 2 || !errors.Is(wrong[0].Err, sink.ErrPermanent) {
		t.Errorf("events without an address: %v", wrong)
	}
	if groups, wrong := sink.GroupByAddress(&buffer.Batch{}, parse(t, "x").Address); len(groups)+len(wrong) != 0 {
		t.Errorf("an empty batch has %v %v", groups, wrong)
	}
}

func parse(t testing.TB, text string) sink.Template {
	t.Helper()
	tmpl, err := sink.ParseTemplate(text, true)
	if err != nil {
		t.Fatalf("ParseTemplate(%q): %v", text, err)
	}
	return tmpl
}

// FuzzTemplate: an address is the template's text with the placeholders replaced
// once, never those that a topic or key brings along.
func FuzzTemplate(f *testing.F) {
	f.Add("orders:{topic}:{key}", "a", "b", true)
	f.Add("{topic}", "{key}", "{topic}", false)
	f.Add("{{topic}}", "", "", true)
	f.Add("}{", "x", "y", true)
	f.Fuzz(func(t *testing.T, text, topic, key string, literalBraces bool) {
		tmpl, err := sink.ParseTemplate(text, literalBraces)
		rest := strings.NewReplacer("{topic}", "", "{key}", "").Replace(text)
		if (err != nil) != (!literalBraces && strings.ContainsAny(rest, "{}")) {
			t.Fatalf("ParseTemplate(%q, %v): %v", text, literalBraces, err)
		}
		if err != nil {
			return
		}
		got, err := tmpl.Address(&outbox.Event{Topic: topic, Key: &key})
		want := strings.NewReplacer("{topic}", topic, "{key}", key).Replace(text)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
		if tmpl.Fixed() != (rest == text) {
			t.Errorf("%q: Fixed = %v", text, tmpl.Fixed())
		}
	})
}

// What an address is known by shows nothing of the template.
func TestTemplateValues(t *testing.T) {
	t.Parallel()
	key := "a b"
	e := &outbox.Event{Topic: "orders", Key: &key}
	for text, want := range map[string]string{
		"https://host/SECRET/{topic}":               "orders",
		"https://host/{topic}?token=SECRET&k={key}": "orders a+b",
		"https://host/{key}/{topic}":                "a%20b orders",
		"https://host/SECRET":                       "",
	} {
		template, err := sink.ParseURLTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := template.Values(e); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}
