//go:build unix

package chaos

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// process is a running program that ends with the test.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it is gone
}

// launch starts cmd. The caller may then close its files.
func launch(cmd *exec.Cmd) (*process, error) {
	dieWithTest(cmd)
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		// On Linux the end of this thread kills the child, so the thread stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // what it says is in ProcessState
		}
	}()
	return p, <-started
}

// wait waits for the end and returns the exit status, -1 after a signal.
func (p *process) wait(atMost time.Duration) (status int, err error) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(atMost):
		return 0, fmt.Errorf("%s did not end within %v", p.cmd.Path, atMost)
	}
}

// command runs a program.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// environment returns the test's environment without the relay's variables.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "RELAY_") && !strings.HasPrefix(v, "PG") {
			env = append(env, v)
		}
	}
	return env
}

func hostOf(t *testing.T, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func withHost(t *testing.T, text, host string) string {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = host
	return u.String()
}

// pause waits for d. It returns false if ctx is done earlier.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
