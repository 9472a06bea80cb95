package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/outboxrelay/relay/internal/testkit"
)

var relayProcess = regexp.MustCompile(`relay (?:has started|starts) \(process (\d+)\)`)

// The demo's relay is killed, its broker stopped and an event rejected; the count at the end agrees.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := do(t, []string{"TMPDIR=" + dir}, "demo", "--no-console", "--events", "2000")
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
			r := start(t, []string{"TMPDIR=" + dir}, "demo", "--no-console")
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
	r := start(t, []string{"TMPDIR=" + dir}, "demo", "--no-console")
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

// The address of the console is printed, and what fails is seen there: 7071 may be taken.
func TestDemo_Console(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	if l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:7071"); err == nil {
		t.Cleanup(func() { testkit.NoError(t, l.Close()) })
	}
	r := start(t, []string{"TMPDIR=" + t.TempDir()}, "demo")
	r.waitForLog("Watch it in a browser: ")
	found := regexp.MustCompile(`Watch it in a browser: (http://127\.0\.0\.1:70\d\d/)\n`).FindStringSubmatch(r.stderr.String())
	if found == nil || found[1] == "http://127.0.0.1:7071/" {
		t.Fatalf("the console is at %v, and port 7071 is taken", found)
	}
	for _, want := range []string{"Everything works.", "sink unavailable", "1 dead letter"} {
		testkit.Eventually(t, func() error {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, found[1], nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil { // the relay is killed
				return err
			}
			page, err := io.ReadAll(response.Body)
			if err := errors.Join(err, response.Body.Close()); err != nil {
				return err
			}
			if !strings.Contains(string(page), want) {
				return fmt.Errorf("the console does not say %q", want)
			}
			return nil
		})
	}
	r.signal(os.Interrupt)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}
