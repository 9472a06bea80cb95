package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := do(t, []string{"TMPDIR=" + dir}, "demo", "--events", "2000")
	r.want(t, 0, "committed 2000, rolled back ", "A demo shop writes orders to a SQLite database")
	result := regexp.MustCompile(`^committed 2000, rolled back [1-9]\d*, delivered 2000
missing 0, duplicates 0, phantom 0 \(rolled back but delivered\)
events/s [1-9]\d*, latency p50 [1-9]\S*s, p99 [1-9]\S*s \(commit to arrival\)
$`)
	if !result.MatchString(r.stdout) {
		t.Errorf("the result is\n%s", r.stdout)
	}
	if strings.Contains(r.stderr, "\x1b") {
		t.Errorf("stderr has control sequences: %q", r.stderr)
	}
	wantEmpty(t, dir)
}

func TestDemo_Signal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, []string{"TMPDIR=" + dir}, "demo")
	r.waitForLog("in flight")
	r.signal(os.Interrupt)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if !strings.Contains(r.stdout.String(), "missing 0, duplicates 0, phantom 0") {
		t.Errorf("the result is %q", r.stdout.String())
	}
	wantEmpty(t, dir)
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the temporary folder has %v, %v", left, err)
	}
}
