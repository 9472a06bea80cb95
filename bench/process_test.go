package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkProcess runs the command itself and looks at it from outside.
//
// "Idle" reports what a relay with nothing to do costs: statements a second, as
// the database counts them, and its share of a core. "Waiting" reports the
// resident memory of a relay while half a million events wait and drain.
func BenchmarkProcess(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "relay")
	build := exec.CommandContext(b.Context(), "go", "build", "-o", binary, "../cmd/relay")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	db := newDatabase(b)
	if _, err := db.pool.Exec(b.Context(), "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"); err != nil {
		b.Fatal(err)
	}
	b.Run("Idle", func(b *testing.B) { idle(b, db, binary) })
	b.Run("Waiting", func(b *testing.B) { waiting(b, db, binary) })
}

const idleFor = 20 * time.Second

func idle(b *testing.B, db *database, binary string) {
	db.fill(b, 0)
	var statements, cpu float64
	runs := 0
	for b.Loop() {
		pid := startRelay(b, binary, db.url, testserver.Redis(b).URL)
		pause(b, 5*time.Second) // what it does at start is not its idling
		from, cpuFrom := db.statements(b), cpuTime(b, pid)
		pause(b, idleFor)
		statements += (db.statements(b) - from - 1) / idleFor.Seconds() // ours is one of them
		cpu += (cpuTime(b, pid) - cpuFrom).Seconds() / idleFor.Seconds()
		runs++
	}
	b.ReportMetric(statements/float64(runs), "statements/s")
	b.ReportMetric(100*cpu/float64(runs), "%core")
	b.ReportMetric(0, "ns/op")
}

func waiting(b *testing.B, db *database, binary string) {
	const events = 500_000
	var waiting, draining float64
	for b.Loop() {
		db.fill(b, events)
		server := testserver.Redis(b)
		check(b, server.Stop())
		pid := startRelay(b, binary, db.url, server.URL) // the sink is away: all of them wait
		pause(b, 10*time.Second)
		waiting = max(waiting, peakMemory(b, pid))
		check(b, server.Start(b.Context()))
		until(b, 2*time.Minute, func() bool {
			var n int
			check(b, db.pool.QueryRow(b.Context(), "SELECT count(*) FROM (SELECT FROM outbox_events LIMIT 1) one").Scan(&n))
			return n == 0
		})
		draining = max(draining, peakMemory(b, pid))
	}
	b.ReportMetric(waiting, "MB-waiting")
	b.ReportMetric(draining, "MB-drained")
	b.ReportMetric(0, "ns/op")
}

func startRelay(b *testing.B, binary, source, sink string) (pid int) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "relay.yaml")
	yaml := fmt.Sprintf("admin: {listen: \"\"}\nlog: {level: error}\npipelines:\n- name: orders\n  source: {url: %q}\n  sink: {url: %q}\n", source, sink)
	check(b, os.WriteFile(path, []byte(yaml), 0o600))
	// The context of a benchmark ends before its cleanups, which ask for the end.
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), binary, "run", "-c", path)
	cmd.Stderr = os.Stderr
	check(b, cmd.Start())
	b.Cleanup(func() {
		check(b, cmd.Process.Signal(syscall.SIGTERM))
		check(b, cmd.Wait())
	})
	return cmd.Process.Pid
}

func (db *database) statements(b *testing.B) (calls float64) {
	b.Helper()
	check(b, db.pool.QueryRow(b.Context(), "SELECT sum(calls)::float8 FROM pg_stat_statements").Scan(&calls))
	return calls
}

// cpuTime is what /proc says a process has used.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check(b, err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] { // utime, stime; in hundredths of a second
		n, err := strconv.Atoi(f)
		check(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// peakMemory is the most a process was resident with, in MB.
func peakMemory(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	check(b, err)
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	n, err := strconv.Atoi(strings.Fields(line)[0])
	check(b, err)
	return float64(n) / 1024
}

func pause(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}

func until(b *testing.B, atMost time.Duration, done func() bool) {
	b.Helper()
	for end := time.Now().Add(atMost); !done(); pause(b, 100*time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("it did not happen in time")
		}
	}
}
