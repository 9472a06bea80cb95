package jq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// stat returns the state of a process, and the CPU time it has used.
func stat(pid int) (state string, ticks int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "gone", 0
	}
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	ticks, _ = strconv.Atoi(fields[11])
	return fields[0], ticks
}

func awaitRunning(t *testing.T, pid int) {
	t.Helper()
	_, before := stat(pid)
	testkit.Eventually(t, func() error {
		if _, ticks := stat(pid); ticks < before+5 {
			return fmt.Errorf("process %d has used %d ticks; expected %d", pid, ticks, before+5)
		}
		return nil
	})
}

func awaitGone(t *testing.T, pid int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if state, _ := stat(pid); state != "gone" && state != "Z" {
			return fmt.Errorf("process %d is in the state %s", pid, state)
		}
		return nil
	})
}

// TestChild_EndsWithParent kills the parent in the middle of a run.
func TestChild_EndsWithParent(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), parentVariable+"=1")
	out, err := cmd.StdoutPipe()
	testkit.NoError(t, err)
	testkit.NoError(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	testkit.NoError(t, err)
	awaitRunning(t, pid)
	t.Cleanup(func() {
		if t.Failed() { // it runs for ever
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	testkit.NoError(t, cmd.Process.Kill())
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	awaitGone(t, pid)
}

func testChild(t *testing.T) *process {
	t.Helper()
	child, err := start(t.Context())
	testkit.NoError(t, err)
	t.Cleanup(func() {
		if !child.ended {
			child.end()
		}
	})
	return child
}

// TestChild_Killed has somebody else kill the child in the middle of a run, which is no limit of the program.
func TestChild_Killed(t *testing.T) {
	t.Parallel()
	child, p := testChild(t), compiled(t, `until(false; .)`)
	p.TimeLimit = time.Hour
	failed := make(chan error)
	go func() {
		_, err := child.run(t.Context(), p, &job{input: []byte("1"), limit: maxResult}, false)
		failed <- err
	}()
	awaitRunning(t, child.cmd.Process.Pid)
	testkit.NoError(t, syscall.Kill(child.cmd.Process.Pid, syscall.SIGKILL))
	if err := <-failed; !errors.Is(err, ErrKilled) || !errors.Is(err, ErrProcess) || errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	if !child.ended {
		t.Error("the child counts as usable")
	}
}

// TestChild_Cancelled ends ctx in the middle of a run.
func TestChild_Cancelled(t *testing.T) {
	t.Parallel()
	child, p := testChild(t), compiled(t, `until(false; .)`)
	p.TimeLimit = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := child.run(ctx, p, &job{input: []byte("1"), limit: maxResult}, false)
		failed <- err
	}()
	awaitRunning(t, child.cmd.Process.Pid)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	awaitGone(t, child.cmd.Process.Pid)
}

// TestChild_Signals has the signals that end the relay, which the child of a terminal or of a service gets too.
func TestChild_Signals(t *testing.T) {
	t.Parallel()
	child := testChild(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		testkit.NoError(t, syscall.Kill(child.cmd.Process.Pid, signal))
		if got, err := child.run(t.Context(), compiled(t, "."), &job{input: []byte("1"), limit: maxResult}, false); string(got) != "1" || err != nil {
			t.Errorf("after %v: got %s, %v", signal, got, err)
		}
	}
}

func TestStart_Failures(t *testing.T) {
	t.Parallel()
	// What the Go runtime says when the machine has no room for a child: the program is not to blame.
	full := filepath.Join(t.TempDir(), "full")
	testkit.NoError(t, os.WriteFile(full, []byte("#!/bin/sh\necho 'fatal error: runtime: cannot allocate memory' >&2\nexit 2\n"), 0o700)) //nolint:gosec // it is executed
	for path, want := range map[string]string{
		full:           "it gets no memory (Relay starts",
		os.DevNull:     "permission denied (Relay starts its own executable again",
		"/bin/true":    "does not serve jq programs",
		"/bin/cat\x00": "invalid argument",
	} {
		if _, err := startFile(t.Context(), path); !errors.Is(err, ErrProcess) || errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want %q", path, err, want)
		}
	}
}

// TestPool_Ends looks at the children themselves: those that are idle for long, and all when the last program closes.
func TestPool_Ends(t *testing.T) {
	t.Parallel()
	p := &pool{}
	for range 2 {
		p.join()
	}
	old, young := testChild(t), testChild(t)
	p.put(old)
	p.put(young)
	old.idleSince = old.idleSince.Add(-idleTime)
	p.endIdle()
	if !old.ended || young.ended {
		t.Errorf("after a minute: the idle child has ended: %v; the other one has: %v", old.ended, young.ended)
	}
	if p.leave(); young.ended {
		t.Error("a child has ended while a program uses it")
	}
	if p.leave(); !young.ended || p.timer != nil || len(p.idle) > 0 {
		t.Errorf("without a program: %+v", p)
	}
	for _, child := range []*process{old, young} {
		awaitGone(t, child.cmd.Process.Pid)
	}
}

// TestRun_UsedChild kills an idle child, which is not the next program's fault. It is not parallel, because the pool is
// that of the process.
func TestRun_UsedChild(t *testing.T) {
	one := compiled(t, ".")
	request := func(p *Program) {
		t.Helper()
		if _, err := p.Request(t.Context(), []byte("1"), JSON); err != nil {
			t.Error(err)
		}
	}
	request(one)
	child := children.idle[len(children.idle)-1]
	testkit.NoError(t, syscall.Kill(child.cmd.Process.Pid, syscall.SIGKILL))
	request(one)
	if !child.ended {
		t.Error("the child that was killed is still in use")
	}
}

// TestChild_Environment expects no secret of the relay in the child.
func TestChild_Environment(t *testing.T) {
	t.Parallel()
	child := testChild(t)
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child.cmd.Process.Pid))
	testkit.NoError(t, err)
	for variable := range strings.SplitSeq(strings.TrimRight(string(environment), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(variable, "="); name != childVariable && name != "TZ" {
			t.Errorf("it has %s", name)
		}
	}
}
