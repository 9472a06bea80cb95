package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// CPU time is read from /proc, see proc_pid_stat(5), so the benchmarks run on Linux
// only.

// tick is the unit of the kernel (USER_HZ), 10 ms on every platform of Go.
const tick = 10 * time.Millisecond

// stat returns the fields of /proc/PID/stat from the third on; the second may
// contain spaces.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])), nil
}

// ticks adds up fields of a stat, numbered from 1 as in the manual.
func ticks(tb testing.TB, stat []string, first, last int) (sum time.Duration) {
	tb.Helper()
	for _, f := range stat[first-3 : last-2] {
		n, err := strconv.Atoi(f)
		testkit.NoError(tb, err)
		sum += time.Duration(n) * tick
	}
	return sum
}

// cpuTime returns the CPU time of a process without its children.
func cpuTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	if pid == 0 {
		return 0
	}
	s, err := stat(pid)
	testkit.NoError(tb, err)
	return ticks(tb, s, 14, 15)
}

// familyTime returns the CPU time of a process and its children. Children that have
// ended are included, because the parent waited for them.
func familyTime(tb testing.TB, parent int) time.Duration {
	tb.Helper()
	s, err := stat(parent)
	testkit.NoError(tb, err)
	sum := ticks(tb, s, 14, 17)
	all, err := filepath.Glob("/proc/[0-9]*")
	testkit.NoError(tb, err)
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		testkit.NoError(tb, err)
		if s, err := stat(pid); err == nil && s[1] == strconv.Itoa(parent) { // else it ended meanwhile
			sum += ticks(tb, s, 14, 15)
		}
	}
	return sum
}

// ownTime returns the CPU time of this process.
func ownTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	testkit.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// timeOf returns the CPU time of a process; 0 is this one.
func timeOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	if pid == 0 {
		return ownTime(tb)
	}
	return cpuTime(tb, pid)
}

// peakMemory returns the peak resident memory of a process in MB.
func peakMemory(tb testing.TB, pid int) float64 {
	tb.Helper()
	return megabytes(tb, pid, "status", "VmHWM:")
}

// residentMemory returns the resident memory of a process in MB.
func residentMemory(tb testing.TB, pid int) float64 {
	tb.Helper()
	return megabytes(tb, pid, "status", "VmRSS:")
}

// proportionalMemory returns the memory of a process in MB: what it does not share, and its part of what it does.
func proportionalMemory(tb testing.TB, pid int) float64 {
	tb.Helper()
	return megabytes(tb, pid, "smaps_rollup", "Pss:")
}

func megabytes(tb testing.TB, pid int, file, label string) float64 {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	testkit.NoError(tb, err)
	_, line, _ := strings.Cut(string(text), label)
	n, err := strconv.Atoi(strings.Fields(line)[0])
	testkit.NoError(tb, err)
	return float64(n) / 1024
}
