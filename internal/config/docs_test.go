package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// documented returns all keys with their paths.
func documented() []row {
	var rows []row
	var walk func(path []string, s section)
	walk = func(path []string, s section) {
		for _, k := range s.keys() {
			here := append(slices.Clone(path), k.name)
			rows = append(rows, row{key: k, path: here})
			switch v := k.value.(type) {
			case mapping:
				walk(here, v.section)
			case optional:
				walk(here, v.section)
			case pipelines:
				walk(here, &Pipeline{})
			case routedSinks:
				walk(here, own{&RoutedSink{}})
			case tokens:
				walk(here, &Token{})
			}
		}
	}
	walk(nil, &Config{})
	return rows
}

// own is one of several sinks without the keys that every sink has.
type own struct{ *RoutedSink }

func (o own) keys() []key { return o.ownKeys() }

type row struct {
	key
	path []string
}

func (r row) String() string { return strings.Join(r.path, ".") }

// file is a configuration with the key and little else.
func (r row) file(value string) string {
	var text strings.Builder
	indent := ""
	for i, name := range r.path {
		if i == len(r.path)-1 {
			fmt.Fprintf(&text, "%s%s: %s\n", indent, name, value)
			break
		}
		fmt.Fprintf(&text, "%s%s:\n", indent, name)
		indent += "  "
		if name == "pipelines" || name == "sinks" || name == "tokens" {
			fmt.Fprintf(&text, "%s- name: x\n", indent)
			indent += "  "
		}
	}
	return text.String()
}

func TestGoodFiles_HaveEveryKey(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, path := range files(t, "*.good.yaml") {
		file, err := parser.ParseFile(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range file.Docs {
			collect(doc.Body, "", used)
		}
	}
	for _, r := range documented() {
		if !used[r.String()] {
			t.Errorf("no good file has %s", r)
		}
	}
}

func collect(n ast.Node, path string, used map[string]bool) {
	switch n := n.(type) {
	case *ast.SequenceNode:
		for _, v := range n.Values {
			collect(v, path, used)
		}
	case *ast.MappingNode:
		for _, v := range n.Values {
			key := strings.TrimPrefix(path+"."+v.Key.GetToken().Value, ".")
			used[key] = true
			collect(v.Value, key, used)
		}
	}
}

const (
	docs  = "../../docs/configuration.md"
	begin = "<!-- keys: generated from internal/config/schema.go by go test ./internal/config -update -->\n"
	end   = "<!-- end of keys -->\n"
)

func TestDocumentation_IsUpToDate(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.FromSlash(docs))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines\n%s%s", docs, begin, end)
	}
	fresh := before + begin + tables() + end + after
	if *update {
		if err := os.WriteFile(docs, []byte(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if fresh != string(text) {
		t.Errorf("%s is out of date: go test ./internal/config -update", docs)
	}
}

// tables renders one table for each section.
func tables() string {
	var out strings.Builder
	section := "-"
	for _, r := range sectioned(documented()) {
		if s := strings.Join(r.path[:len(r.path)-1], "."); s != section {
			section = s
			heading := "The file"
			if s != "" {
				heading = "`" + strings.Replace(s, "pipelines", "pipelines[]", 1) + "`"
			}
			fmt.Fprintf(&out, "\n### %s\n\n| key | takes | default | meaning |\n| --- | --- | --- | --- |\n", heading)
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.name, r.takes(), r.defaultText(), r.meaning())
	}
	return out.String() + "\n"
}

// sectioned groups the keys by section, in the order of first appearance.
func sectioned(rows []row) []row {
	var order []string
	by := map[string][]row{}
	for _, r := range rows {
		s := strings.Join(r.path[:len(r.path)-1], ".")
		if by[s] == nil {
			order = append(order, s)
		}
		by[s] = append(by[s], r)
	}
	var out []row
	for _, s := range order {
		out = append(out, by[s]...)
	}
	return out
}

func (r row) takes() string {
	switch r.value.(type) {
	case mapping, optional:
		return "a mapping, below"
	case hook:
		return "a mapping of the keys of `sink`"
	}
	return strings.NewReplacer("|", `\|`, "{", "`{", "}", "}`").Replace(r.value.expects())
}

func (r row) defaultText() string {
	switch {
	case r.required:
		return "**required**"
	case r.def == "":
		return "–"
	}
	return "`" + r.def + "`"
}

func (r row) meaning() string {
	text := r.help
	if len(r.variants) > 0 {
		text = "*" + strings.Join(r.variants, ", ") + "*: " + text
	}
	return strings.ReplaceAll(text, "|", `\|`)
}
