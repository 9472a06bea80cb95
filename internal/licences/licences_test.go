// Package licences checks the licences of the modules that the program contains.
package licences

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write THIRD_PARTY.md anew")

const list = "../../THIRD_PARTY.md"

// allowed are the licences that a dependency may have, each with words of its text.
var allowed = []struct{ name, words string }{
	{"Apache-2.0", "Apache License Version 2.0"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"BSD-3-Clause", "nor the names of"},
	{"BSD-3-Clause", "may be used to endorse or promote products derived from this software"},
	{"BSD-2-Clause", "Redistribution and use in source and binary forms"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"Unlicense", "This is free and unencumbered software released into the public domain"},
	{"public domain", "in the public domain"},
	{"public domain", "SQLite Is Public Domain"},
}

// licences are the names of the allowed licences in a text; nil if it has none.
func licences(text []byte) (names []string) {
	words := strings.Join(strings.Fields(string(text)), " ")
	for _, l := range allowed {
		threeClauses := l.name == "BSD-2-Clause" && slices.Contains(names, "BSD-3-Clause")
		if strings.Contains(words, l.words) && !threeClauses && !slices.Contains(names, l.name) {
			names = append(names, l.name)
		}
	}
	return names
}

// licencesIn are the names of the licences in a module's folder.
func licencesIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		upper := strings.ToUpper(e.Name())
		isLicence := strings.HasPrefix(upper, "LICENSE") || strings.HasPrefix(upper, "LICENCE") || strings.HasPrefix(upper, "COPYING") || upper == "UNLICENSE"
		if e.IsDir() || !isLicence || strings.Contains(upper, "LOGO") || strings.Contains(upper, "3RD-PARTY") {
			continue // a logo is not in the program, and a list of others' licences has files of its own
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		found := licences(text)
		if found == nil {
			return nil, fmt.Errorf("%s is none of the allowed licences", filepath.Join(filepath.Base(dir), e.Name()))
		}
		for _, name := range found {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if names == nil {
		err = fmt.Errorf("%s has no licence", filepath.Base(dir))
	}
	return names, err
}

// Every module that is linked into a program has an allowed licence, and THIRD_PARTY.md has all of them.
func TestLicences(t *testing.T) {
	t.Parallel()
	linked := map[string]string{}
	for _, platform := range []string{"linux", "darwin"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}", "../../cmd/relay")
		cmd.Env = append(os.Environ(), "GOOS="+platform, "CGO_ENABLED=0")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
		}
		for line := range strings.Lines(string(out)) {
			if path, dir, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
				linked[path] = dir
			}
		}
	}
	if len(linked) < 20 {
		t.Fatalf("go list names %d modules", len(linked))
	}
	var rows []string
	for path, dir := range linked {
		names, err := licencesIn(dir)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |\n", path, strings.Join(names, ", ")))
	}
	vendored, err := filepath.Glob("../console/assets/*.LICENSE")
	if err != nil || len(vendored) == 0 {
		t.Fatalf("the console's assets have no licence: %v", err)
	}
	for _, path := range vendored {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		names := licences(text)
		if names == nil {
			t.Errorf("%s is none of the allowed licences", path)
		}
		rows = append(rows, fmt.Sprintf("| %s, in internal/console/assets | %s |\n", strings.TrimSuffix(filepath.Base(path), ".LICENSE"), strings.Join(names, ", ")))
	}
	slices.Sort(rows)
	fresh := "# Third-party software\n\nThe program `relay` contains these modules, besides Go's standard library (BSD-3-Clause). Their licences are in the modules:\n" +
		"`go list -m -f '{{.Dir}}' MODULE`. This list is written by `go test ./internal/licences -update`.\n\n| module | licence |\n| --- | --- |\n" + strings.Join(rows, "")
	if *update {
		if err := os.WriteFile(list, []byte(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	written, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(written), fresh); diff != "" {
		t.Errorf("THIRD_PARTY.md is out of date; is each licence acceptable? Then go test ./internal/licences -update (-written +fresh):\n%s", diff)
	}
}

func TestLicence_Unknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if names, err := licencesIn(dir); err == nil {
		t.Errorf("a folder without a licence has %q", names)
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := licencesIn(dir); err == nil {
		t.Errorf("the GPL is %q", names)
	}
}
