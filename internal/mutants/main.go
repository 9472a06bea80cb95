// Command mutants breaks the relay on purpose, one place after the other, and checks
// that the responsible test fails. A test that cannot fail keeps no promise. It works on
// a copy of the module. See `make mutants`.
//
//	go run ./internal/mutants [-run NAME]
//
// The exit status is 1 if a mutant survives.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	only := flag.String("run", "", "a regular expression: which mutants")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, ".", *only); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

var errSurvived = errors.New("mutants survived")

// run applies the mutants to a copy of the module at root.
func run(ctx context.Context, root, only string) (err error) {
	which, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "relay-mutants-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := copyTree(root, dir); err != nil {
		return err
	}
	survived := 0
	for _, m := range mutants {
		if !which.MatchString(m.name) {
			continue
		}
		began := time.Now()
		killed, err := m.killed(ctx, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		result := "killed"
		if !killed {
			result = "SURVIVED"
			survived++
		}
		fmt.Printf("%-8s  %-50s  %s %s  (%v)\n", result, m.name, m.pkg, m.test, time.Since(began).Round(time.Second))
	}
	if survived > 0 {
		return fmt.Errorf("%w: %d", errSurvived, survived)
	}
	return nil
}

// mutant is one change and the test that must fail with it.
type mutant struct {
	name      string
	file      string
	old, new  string // old occurs exactly once in the file
	pkg, test string // as go test takes them
}

// apply changes the file under dir and returns a function that reverts it.
func (m mutant) apply(dir string) (undo func() error, err error) {
	path := filepath.Join(dir, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return nil, fmt.Errorf("%s has %d places with this text; expected one: bring internal/mutants up to date\n%s", m.file, n, m.old)
	}
	changed := strings.Replace(string(text), m.old, m.new, 1)
	return func() error { return os.WriteFile(path, text, 0o600) }, os.WriteFile(path, []byte(changed), 0o600)
}

// killed reports whether the test fails. A mutant that does not compile and a test that
// does not run are errors.
func (m mutant) killed(ctx context.Context, dir string) (killed bool, err error) {
	undo, err := m.apply(dir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=5m", "-run", m.test, m.pkg)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case bytes.Contains(out, []byte("no tests to run")), bytes.Contains(out, []byte("build failed")), bytes.Contains(out, []byte("setup failed")):
		return false, fmt.Errorf("go test says:\n%s", out)
	}
	return err != nil, nil
}

// copyTree copies all files except those that begin with a dot.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case name == ".":
			return nil
		case strings.HasPrefix(d.Name(), ".") && d.IsDir():
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o750)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o600)
	})
}
