package buffer_test

import (
	"regexp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The regular expressions match what the patterns match.
func TestPatterns_Regexps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SliceOfN(rapid.SampledFrom([]string{"#", ">", "a", "*", "a.*", "a.#", "*.b", "*.*", "a+b.(c", "a.b.>", "a.*.c", "ä.$"}), 0, 2).Draw(t, "patterns")
		topic := rapid.StringOfN(rapid.SampledFrom([]rune("ab.c+($ä\n^")), 1, 7, -1).Draw(t, "topic")
		patterns, err := buffer.ParsePatterns(set)
		if err != nil {
			t.Fatal(err)
		}
		matches := slices.ContainsFunc(patterns.Regexps(), func(text string) bool { return regexp.MustCompile("(?s)" + text).MatchString(topic) })
		if matches != patterns.Match(topic) {
			t.Fatalf("%q of %v matches %q: %v", patterns.Regexps(), set, topic, matches)
		}
	})
}
