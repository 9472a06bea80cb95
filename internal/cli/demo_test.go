package cli

import (
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

var relayProcess = regexp.MustCompile(`relay (?:has started|starts) \(process (\d+)\)`)

// The demo's relay is killed, its broker stopped and an event rejected; the count at the end agrees.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := do(t, []string{"TMPDIR=" + dir}, "demo", "--events", "2000")
	r.want(t, 0, "committed 2001, rolled back ", "A demo shop writes orders to a SQLite database")
	result := regexp.MustCompile(`^committed 2001, rolled back [1-9]\d*, delivered 2000, dead letters 1
missing 0, duplicates 0, phantom 0 \(rolled back but delivered\)
[1-9]\d* events/s, commit to arrival: p50 [1-9]\S*s, p99 [1-9]\S*s
$`)
	if !result.MatchString(r.stdout) {
		t.Errorf("the result is\n%s", r.stdout)
	}
	steps := regexp.MustCompile(`(?s)topic +orders\.placed.*payload +\{"order": 1,.*Nats-Msg-Id  demo:1:.*data +\{"order": 1,` +
		`.*FAULT 1 .*SIGKILL.*A new relay starts.*the [1-9]\d* events that waited are delivered` +
		`.*FAULT 2 .*broker is stopped.*broker is back.*the [1-9]\d* events that waited are delivered` +
		`.*FAULT 3 .*It is a dead letter.*\n +attempts  1\n +error .*message size exceeds`)
	if !steps.MatchString(r.stderr) {
		t.Errorf("a step is missing in\n%s", r.stderr)
	}
	if strings.Contains(r.stderr, "\x1b") {
		t.Errorf("stderr has control sequences: %q", r.stderr)
	}
	for line := range strings.Lines(r.stderr + r.stdout) {
		if utf8.RuneCountInString(line) > 81 { // 80 columns and the line break
			t.Errorf("a line is longer than 80 columns: %q", line)
		}
	}
	pids := wantNoRelays(t, r.stderr)
	if len(pids) != 2 || pids[0] == pids[1] {
		t.Errorf("the relays' processes are %v; expected two", pids)
	}
	wantEmpty(t, dir)
}

// Ctrl-C ends the demo at any moment: all that was committed is delivered, and nothing remains.
func TestDemo_Signal(t *testing.T) {
	t.Parallel()
	for name, moment := range map[string]string{
		"AtOnce": "A demo shop", "Running": "in flight", "RelayKilled": "FAULT 1", "BrokerStopped": "FAULT 2", "Counted": "That was all.",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := start(t, []string{"TMPDIR=" + dir}, "demo")
			r.waitForLog(moment)
			r.signal(os.Interrupt)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if !strings.Contains(r.stdout.String(), "missing 0, duplicates 0, phantom 0") {
				t.Errorf("the result is %q", r.stdout.String())
			}
			wantNoRelays(t, r.stderr.String())
			wantEmpty(t, dir)
		})
	}
}

// A second Ctrl-C does not wait for the events in flight.
func TestDemo_SecondSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, []string{"TMPDIR=" + dir}, "demo")
	r.waitForLog("FAULT 1")
	r.signal(os.Interrupt)
	r.waitForLog("Waiting for events in flight")
	r.signal(os.Interrupt)
	if code := r.exit(); code != 1 && !strings.Contains(r.stdout.String(), "missing 0") { // it may have been faster
		t.Errorf("exit status %d", code)
	}
	wantNoRelays(t, r.stderr.String())
	wantEmpty(t, dir)
}

// wantNoRelays checks that the relays that a demo printed have ended, and returns their process ids.
func wantNoRelays(t *testing.T, log string) (pids []int) {
	t.Helper()
	for _, found := range relayProcess.FindAllStringSubmatch(log, -1) {
		pid, err := strconv.Atoi(found[1])
		if err != nil {
			t.Fatal(err)
		}
		if runtime.GOOS != "windows" {
			p, err := os.FindProcess(pid)
			if err == nil && p.Signal(syscall.Signal(0)) == nil {
				t.Errorf("relay %d still runs", pid)
			}
		}
		pids = append(pids, pid)
	}
	return pids
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the temporary folder has %v, %v", left, err)
	}
}
