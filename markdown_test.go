package relay_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a document.
type block struct {
	where   string // file:line
	section string // its second-level heading
	hint    string // a comment just above: <!-- file: relay.yaml -->
	lang    string
	text    string // without the last line break
}

// file returns the file name in the hint, "" if there is none.
func (b block) file() string {
	name, ok := strings.CutPrefix(b.hint, "file: ")
	if !ok {
		return ""
	}
	return name
}

// documents returns all documents for users, without decisions.
func documents(t *testing.T) []string {
	t.Helper()
	top, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes, err := filepath.Glob("docs/recipes/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(top, more, recipes, []string{"examples/README.md"})
}

var comment = regexp.MustCompile(`^<!-- (.*) -->$`)

// blocks returns the fenced blocks of a document.
func blocks(t *testing.T, path string) []block {
	t.Helper()
	var (
		all           []block
		open          *block
		section, hint string
	)
	for i, line := range strings.Split(read(t, path), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case open != nil && isFence:
			open.text = strings.TrimSuffix(open.text, "\n")
			all = append(all, *open)
			open, hint = nil, ""
		case open != nil:
			open.text += line + "\n"
		case isFence:
			open = &block{where: fileLine(path, i), section: section, hint: hint, lang: fence}
		case comment.MatchString(line):
			hint = comment.FindStringSubmatch(line)[1]
		default:
			hint = ""
			if title, ok := strings.CutPrefix(line, "## "); ok {
				section = title
			}
		}
	}
	if open != nil {
		t.Fatalf("%s: the block is not closed", open.where)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
