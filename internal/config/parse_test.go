package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/ast"
	"pgregory.net/rapid"
)

// Every name and value has its place, regardless of the text around it. Each is a unique word here, so that a search
// finds its place too.
func TestPlace_OfNodes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := layout(t)
		r := newReader("f", lookup, nil)
		root, ok := r.parse([]byte(text))
		if !ok {
			t.Fatalf("%v\n%s", r.errs, text)
		}
		found := 0
		ast.Walk(visitor(func(n ast.Node) {
			s, ok := n.(*ast.StringNode)
			if !ok {
				return
			}
			word := strings.Fields(s.Value)[0]
			before, _, _ := strings.Cut(text, word)
			want := Place{"f", 1, 1}.after(strings.TrimRight(before, `"'`))
			if got := r.tokenPlace(s.GetToken()); got != want {
				t.Errorf("%s is at %v, not %v, in\n%s", word, want, got, text)
			}
			found++
		}), root)
		if found == 0 {
			t.Fatal("the file has no nodes")
		}
	})
}

type visitor func(ast.Node)

func (v visitor) Visit(n ast.Node) ast.Visitor { v(n); return v }

// layout draws a file of block mappings, lists, flows and all kinds of scalars,
// with comments and white space wherever they may be.
func layout(t *rapid.T) string {
	var b strings.Builder
	words := 0
	word := func() string { words++; return fmt.Sprintf("wé%d.", words) }
	space := func() string { return rapid.SampledFrom([]string{" ", "  ", " \t"}).Draw(t, "space") }
	end := func() string {
		return rapid.SampledFrom([]string{"\n", " # é\n", "   \n", "\n\n  \n", "\n# é\n  # é\n", "\t\n", "\r\n", " # é\r\n\r\n"}).Draw(t, "end")
	}
	value := func(indent string) string {
		switch rapid.IntRange(0, 8).Draw(t, "value") {
		case 0:
			return space() + word() + end()
		case 1:
			return space() + `"` + word() + ` \" x"` + end()
		case 2:
			return space() + "'" + word() + " '' x'" + end()
		case 3:
			return space() + "{" + word() + ": " + word() + ", " + word() + `: ["` + word() + `", ` + word() + "]}" + end()
		case 4:
			return space() + word() + "\n" + indent + "  more" + end()
		case 5:
			return space() + `"` + word() + "\n" + indent + `  more"` + end()
		case 6:
			return space() + "|\n" + indent + "  " + word() + "\n\n" + indent + "  more\n"
		case 7:
			return space() + ">-\n" + indent + "  " + word() + "\n" + indent + "  more\n"
		default:
			return space() + "[\n" + indent + word() + ",\n" + indent + "'" + word() + "' ]" + end()
		}
	}
	for range rapid.IntRange(1, 4).Draw(t, "keys") {
		b.WriteString(word() + ":")
		if !rapid.Bool().Draw(t, "list") {
			b.WriteString(value("    "))
			continue
		}
		b.WriteString(end())
		for range rapid.IntRange(1, 3).Draw(t, "items") {
			b.WriteString("  - " + word() + ":" + value("      ") + "    " + word() + ":" + value("      "))
		}
	}
	return b.String()
}
