package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMutants checks that every mutant can be applied and that its test exists. Running
// the tests is left to `make mutants`, which takes minutes.
func TestMutants(t *testing.T) {
	t.Parallel()
	const root = "../.."
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("%s: the name is there twice", m.name)
		}
		names[m.name] = true
		text, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("%s: %s has %d places with this text; expected one:\n%s", m.name, m.file, n, m.old)
		}
		if m.old == m.new {
			t.Errorf("%s changes nothing", m.name)
		}
		test, _, _ := strings.Cut(strings.Trim(m.test, "^$"), "/")
		if !declares(t, filepath.Join(root, m.pkg), test) {
			t.Errorf("%s: %s has no test %s", m.name, m.pkg, test)
		}
	}
}

func declares(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(strings.TrimSuffix(test, "$")) + `\(t`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if declared.Match(text) {
			return true
		}
	}
	return false
}
