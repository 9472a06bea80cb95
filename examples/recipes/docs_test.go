package recipes_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocs checks that each page shows its recipe's files.
func TestDocs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/relay.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recipes: %v", err)
	}
	text := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	index := text("../../docs/recipes/README.md")
	for _, file := range files {
		name := filepath.Dir(file)
		page := text("../../docs/recipes/" + name + ".md")
		for _, kind := range []struct{ language, file string }{{"yaml", "relay.yaml"}, {"sql", "schema.sql"}} {
			path := "examples/recipes/" + name + "/" + kind.file
			block := "<!-- file: " + path + " -->\n```" + kind.language + "\n" + text(filepath.Join(name, kind.file)) + "```\n"
			if !strings.Contains(page, block) {
				t.Errorf("docs/recipes/%s.md does not show %s", name, path)
			}
		}
		if !strings.Contains(index, "]("+name+".md)") {
			t.Errorf("docs/recipes/README.md does not name %s", name)
		}
	}
}
