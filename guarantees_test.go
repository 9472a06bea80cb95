package relay_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile(`\bTest[A-Z]\w*`)
	namedCase = regexp.MustCompile("`([a-z]+/[^`]+)`")
	declared  = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(t \*testing\.T\)`)
	caseName  = regexp.MustCompile(`name: +"([a-z]+/[^"]+)"`)
)

// TestGuarantees checks that every test and case in docs/guarantees.md exists, and
// that every promise has its section.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	tests, cases := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		if strings.HasPrefix(path, "outbox/buffertest/") {
			for _, m := range caseName.FindAllStringSubmatch(string(text), -1) {
				cases[m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "docs/guarantees.md")
	for _, name := range namedTest.FindAllString(text, -1) {
		if name != "TestX" && !tests[name] {
			t.Errorf("docs/guarantees.md names %s, which does not exist", name)
		}
	}
	for _, m := range namedCase.FindAllStringSubmatch(text, -1) {
		if name, all := strings.CutSuffix(m[1], "..."); all {
			if !hasPrefix(cases, name) {
				t.Errorf("docs/guarantees.md names cases %q; none exists", m[1])
			}
		} else if strings.Contains(m[1], " ") && !cases[m[1]] {
			t.Errorf("docs/guarantees.md names the case %q, which does not exist", m[1])
		}
	}
	for _, promise := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"} {
		if !strings.Contains(text, "\n## "+promise+". ") {
			t.Errorf("docs/guarantees.md has no section for promise %s", promise)
		}
	}
}

func hasPrefix(cases map[string]bool, prefix string) bool {
	for name := range cases {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
