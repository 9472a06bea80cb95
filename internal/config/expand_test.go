package config

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{
		"plain":                       "plain",
		"$HOME and $ and $$ stay":     "$HOME and $ and $$ stay",
		"${WORKERS}":                  "8",
		"a${WORKERS}b${WORKERS}c":     "a8b8c",
		"[${EMPTY}]":                  "[]",
		"${EMPTY:-default}":           "default",
		"${UNSET:-default}":           "default",
		"${UNSET:-}":                  "",
		"${WORKERS:-default}":         "8",
		"${UNSET:-a-{topic}:b}":       "a-{topic}:b",
		"$${WORKERS}":                 "${WORKERS}",
		"$$${WORKERS}":                "$${WORKERS}",
		"${WORKERS}$${WORKERS}":       "8${WORKERS}",
		"${file:testdata/expand.txt}": "from ${WORKERS} file",
		"${TRICK}":                    "a, workers: 99}",
	} {
		c := parseGood(t, "admin: {token: '"+written+"'}\n"+pipelineWith(""))
		if got := c.Admin.Token.Reveal(); got != want {
			t.Errorf("%s became %q, want %q", written, got, want)
		}
	}
}

// An expanded value stays within its part of the URL,
// and arrives there unchanged.
func TestExpand_StaysWithinItsPartOfURL(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		password := rapid.StringMatching(`[^\x00-\x1f\x7f-\x{9f}]{0,20}`).Draw(t, "password")
		env := func(string) (string, bool) { return password, true }
		text := pipelineWith("source: {url: 'postgres://app:${PASSWORD}@db/app?x=${PASSWORD}'}")
		c, err := Parse("f", []byte(text), env)
		if err != nil {
			t.Fatalf("%q: %v", password, err)
		}
		_, a, err := parseURL(literal(c.Pipelines[0].Source.URL.Reveal()), sourceSchemes)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(a.hosts, a.user, a.path); got != "[db:5432]app/app" {
			t.Errorf("%q changed the URL to %s", password, got)
		}
		if got := a.query.Get("x"); got != password {
			t.Errorf("%q arrived as %q", password, got)
		}
	})
}

// An expanded value is data: it cannot add keys, end a quote or begin another
// expansion.
func TestExpand_AddsNoYAML(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[^\x00-\x1f\x7f-\x{9f}]{0,30}`).Draw(t, "value")
		env := func(name string) (string, bool) { return value, name == "X" }
		for _, written := range []string{"${X}", `"${X}"`, "'${X}'", ">-\n    ${X}"} {
			c, err := Parse("f", []byte("admin:\n  token: "+written+"\n"+pipelineWith("")), env)
			if err != nil {
				t.Fatalf("%q in %s: %v", value, written, err)
			}
			if got := c.Admin.Token.Reveal(); got != value {
				t.Errorf("%q in %s became %q", value, written, got)
			}
		}
	})
}

func TestExpand_Nesting(t *testing.T) {
	t.Parallel()
	const deep = 40_000
	for _, text := range []string{
		strings.Repeat("[", deep), strings.Repeat("{a: ", deep), strings.Repeat("- ", deep), strings.Repeat("? ", deep),
		strings.Repeat("&a ", deep), strings.Repeat("!a ", deep),
	} {
		_, err := Parse("f", []byte(text), lookup)
		if err == nil || !strings.Contains(err.Error(), "nested too deeply") {
			t.Errorf("%.9q...: %v, want that it is nested too deeply", text, err)
		}
	}
}
