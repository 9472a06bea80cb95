package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := do(t, []string{"TMPDIR=" + dir}, "demo", "--events", "2000")
	r.want(t, 0, "committed 2000, rolled back ", "A demo shop writes orders to a SQLite database")
	account := regexp.MustCompile(`^committed 2000, rolled back [1-9]\d*, delivered 2000
missing 0, duplicates 0, phantom 0 \(rolled back but delivered\)
events/s [1-9]\d*, latency p50 [1-9]\S*s, p99 [1-9]\S*s \(commit to arrival\)
$`)
	if !account.MatchString(r.stdout) {
		t.Errorf("the account is\n%s", r.stdout)
	}
	if strings.Contains(r.stderr, "\x1b") {
		t.Errorf("stderr is no terminal and gets control sequences: %q", r.stderr)
	}
	wantEmpty(t, dir)
}

func TestDemoEndsWithASignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, []string{"TMPDIR=" + dir}, "demo")
	r.says("in flight")
	r.signal(os.Interrupt)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if !strings.Contains(r.stdout.String(), "missing 0, duplicates 0, phantom 0") {
		t.Errorf("the account is %q", r.stdout.String())
	}
	wantEmpty(t, dir)
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left in the temporary folder, %v", left, err)
	}
}

// The account tells what is wrong.
func TestAudit(t *testing.T) {
	t.Parallel()
	a := newAudit()
	now := time.Now()
	for order := range int64(5) {
		a.committed(order, now)
	}
	a.rolledBack()
	for _, order := range []int64{0, 1, 2, 2, 70} { // 3 and 4 are missing, 2 came twice, 70 was rolled back
		a.arrived(order, now.Add(time.Second))
	}
	if a.allArrived() {
		t.Error("two have not arrived, and yet all is settled")
	}
	result := a.result()
	for order := range int64(5) {
		result.addOrder(order)
	}
	if result.missing() != 2 || result.duplicates != 1 || result.phantom() != 1 || result.delivered != 3 || result.check() == nil {
		t.Errorf("the account is\n%v", result)
	}
	if !strings.Contains(result.String(), "missing 2, duplicates 1, phantom 1") {
		t.Errorf("the account is\n%v", result)
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var q quantiles
	if q.at(.5) != 0 {
		t.Errorf("the median of nothing is %v", q.at(.5))
	}
	for i := range 1000 {
		q.add(time.Duration(i+1) * time.Millisecond)
	}
	q.add(100 * time.Hour) // no bucket is that high
	q.add(-time.Second)
	for share, want := range map[float64]time.Duration{.5: 500 * time.Millisecond, .99: 990 * time.Millisecond} {
		if got := q.at(share); got < want*9/10 || got > want*11/10 {
			t.Errorf("quantile %v is %v, about %v was expected", share, got, want)
		}
	}
}
