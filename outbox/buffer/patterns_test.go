package buffer

import (
	"strings"
	"testing"
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
