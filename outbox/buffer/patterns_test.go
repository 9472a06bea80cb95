package buffer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPatterns_Match(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		patterns, topic string
		want            bool
	}{
		{"", "orders.created", true},
		{"orders.created", "orders.created", true},
		{"orders.created", "orders.created.v2", false},
		{"orders.created", "orders", false},
		{"orders.*", "orders.created", true},
		{"orders.*", "orders", false},
		{"orders.*", "orders.created.v2", false},
		{"*.created", "orders.created", true},
		{"*", "orders", true},
		{"*", "orders.created", false},
		{"orders.#", "orders.created", true},
		{"orders.#", "orders.created.v2", true},
		{"orders.#", "orders", false},
		{"orders.>", "orders.created.v2", true},
		{"#", "orders", true},
		{"#", "a topic with blanks", true},
		{"orders.*.#", "orders.created", false},
		{"orders.*.#", "orders.created.v2", true},
		{"a.b c.*", "c.d", true},
		{"a.b c.*", "x", false},
		{"*.b", "..b", false},
		{"*.b", ".b", true},
	} {
		p, err := ParsePatterns(strings.Fields(c.patterns))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(c.topic); got != c.want {
			t.Errorf("%q matches %q: %t, want %t", c.patterns, c.topic, got, c.want)
		}
	}
}

func TestParsePatterns_NeverMatches(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", ".", "a..b", "a.", ".a", "#.a", "a.>.b", "a.b*", "a.#b", "a b", "a.\tb", "**"} {
		if _, err := ParsePatterns([]string{"ok", pattern}); err == nil {
			t.Errorf("pattern %q was accepted", pattern)
		}
	}
}

// matches is what Match must return, token by token.
func matches(pattern, topic []string) bool {
	switch {
	case len(pattern) == 0 || len(topic) == 0:
		return len(pattern) == len(topic)
	case pattern[0] == "#" || pattern[0] == ">":
		return true
	case pattern[0] != "*" && pattern[0] != topic[0]:
		return false
	}
	return matches(pattern[1:], topic[1:])
}

func TestPatterns_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tokens := func(of ...string) []string { return rapid.SliceOfN(rapid.SampledFrom(of), 1, 4).Draw(t, "tokens") }
		var (
			topic = tokens("a", "b", "ab", "")
			texts []string
			want  bool
		)
		for range rapid.IntRange(1, 3).Draw(t, "patterns") {
			pattern := tokens("a", "b", "ab", "*")
			if rest := rapid.SampledFrom([]string{"", "#", ">"}).Draw(t, "rest"); rest != "" {
				pattern = append(pattern, rest)
			}
			texts = append(texts, strings.Join(pattern, "."))
			want = want || matches(pattern, topic)
		}
		p, err := ParsePatterns(texts)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(strings.Join(topic, ".")); got != want {
			t.Errorf("%q matches %q: %t, want %t", texts, topic, got, want)
		}
	})
}

// A pattern is rejected, or a topic can be made that it matches.
func FuzzPatterns(f *testing.F) {
	for _, pattern := range []string{"orders.*", "orders.#", "*.>", "a..b", "#.a", "con*", "a b", "\x00.\xff"} {
		f.Add(pattern, "orders.created")
	}
	f.Fuzz(func(t *testing.T, pattern, topic string) {
		p, err := ParsePatterns([]string{pattern})
		if err != nil {
			return
		}
		tokens := strings.Split(pattern, ".")
		if got, want := p.Match(topic), matches(tokens, strings.Split(topic, ".")); got != want {
			t.Errorf("%q matches %q: %t, want %t", pattern, topic, got, want)
		}
		if taken := strings.NewReplacer("*", "x", "#", "x.y", ">", "x").Replace(pattern); !p.Match(taken) {
			t.Errorf("%q does not match %q", pattern, taken)
		}
	})
}

func TestCovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"", "", true},
		{"", "a.*", true},
		{"a.*", "", false},
		{"#", "", true},
		{">", "a.# b", true},
		{"*", "", false},
		{"a", "a", true},
		{"a", "b", false},
		{"a.*", "a.b", true},
		{"a.b", "a.*", false},
		{"a.*", "a.#", false},
		{"a.#", "a.*", true},
		{"a.#", "a", false},
		{"a.#", "a.>", true},
		{"a.*", "a.b.c", false},
		{"a.*", "a", false},
		{"a.#", "a.b.#", true},
		{"*.#", "a.b", true},
		{"a.* b.*", "b.* a.*", true},
		{"a.*", "b.* a.*", false},
		{"*.b", "a.b c.b", true},
	} {
		if got := covers(strings.Fields(c.a), strings.Fields(c.b)); got != c.want {
			t.Errorf("%q covers %q: %t, want %t", c.a, c.b, got, c.want)
		}
	}
}

// A match runs once an event and sink.
func TestPatterns_MatchDoesNotAllocate(t *testing.T) {
	p, err := ParsePatterns([]string{"contact.*", "lead.#"})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { p.Match("lead.created.v2") }); n != 0 {
		t.Errorf("a match allocates %g times", n)
	}
}

func BenchmarkPatterns_Match(b *testing.B) {
	p, err := ParsePatterns([]string{"contact.*", "lead.#"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Match("lead.created.v2")
	}
}
