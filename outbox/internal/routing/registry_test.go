package routing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRegister: a start adds and renames sinks, and removes none. A sink is written NAME, or NAME<WAS for a former name, and !NAME if it is dropped.
func TestRegister(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ registry, configured, want string }{
		"none":                     {"", "a b", "a b"},
		"adds":                     {"a", "a b", "a b"},
		"removes none":             {"a b", "a", "a b"},
		"drops are not taken back": {"!a", "a", "!a"},
		"renames":                  {"a b", "c<a b", "b c<a"},
		"renamed before":           {"b c<a", "c<a b", "b c<a"},
		"an old relay":             {"c<a", "a", "c<a"},
		"renamed back":             {"c<a", "a<c", "a<c"},
		"a new sink of the name":   {"c<a", "a c", "a c"},
		"ran without was":          {"a c", "c<a", "c<a"},
		"a dropped one is left":    {"!a", "c<a", "!a c"},
		"the single sink":          {"", "c<default", "c<default"},
		"twice renamed":            {"c<a", "d<c", "d<a<c"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var configured []buffer.Route
			for _, text := range strings.Fields(c.configured) {
				sink, was, _ := strings.Cut(text, "<")
				configured = append(configured, buffer.Route{Sink: sink, Was: was, BatchSize: 1})
			}
			var registry []Registered
			for _, text := range strings.Fields(c.registry) {
				names := strings.Split(strings.TrimPrefix(text, "!"), "<")
				registry = append(registry, Registered{Sink: names[0], Formerly: names[1:], Dropped: text[0] == '!'})
			}
			after := Register(registry, configured)
			var got []string
			for _, sink := range slices.Sorted(maps.Keys(after)) {
				s := after[sink]
				got = append(got, fmt.Sprint(map[bool]string{true: "!"}[s.Dropped], strings.Join(append([]string{s.Sink}, s.Formerly...), "<")))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("the registry is %q; expected %q", text, c.want)
			}
		})
	}
}
