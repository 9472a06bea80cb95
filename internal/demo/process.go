package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// relays runs `relay run` in child processes, one at a time. Safe for concurrent use.
type relays struct {
	config string
	failed func(error)

	mu      sync.Mutex
	closed  bool
	current *child
}

// child is a running relay. It stops when its standard input is closed, also if the demo is killed.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	log   strings.Builder
	ended chan struct{} // closed after the process was waited for
	// expected is closed before the process is told to end.
	expected chan struct{}
}

// command is this executable with other arguments. It has no part in the terminal's signals.
func command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...) //nolint:gosec // this very program
	cmd.SysProcAttr = ownGroup()
	return cmd, nil
}

// start starts a relay unless one runs, and returns its process id.
func (r *relays) start() (pid int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, errors.New("the demo has ended")
	}
	if r.current != nil {
		return r.current.cmd.Process.Pid, nil
	}
	cmd, err := command(context.Background(), "demo", "relay", "-c", r.config)
	if err != nil {
		return 0, err
	}
	c := &child{cmd: cmd, ended: make(chan struct{}), expected: make(chan struct{})}
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return 0, err
	}
	cmd.Stderr = &c.log
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting the relay: %w", err)
	}
	go func() {
		err := cmd.Wait()
		close(c.ended)
		select {
		case <-c.expected:
		default:
			r.failed(fmt.Errorf("the relay ended by itself (%w): %s", errors.Join(err), strings.TrimSpace(c.log.String())))
		}
	}()
	r.current = c
	return cmd.Process.Pid, nil
}

// kill ends the relay with SIGKILL and waits until it is gone.
func (r *relays) kill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end(func(c *child) error { return c.cmd.Process.Kill() })
}

// close stops the relay; it is killed if it does not end within a few seconds. No other starts.
func (r *relays) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.end(func(c *child) error {
		err := c.stdin.Close()
		timer := time.NewTimer(2 * shutdownTimeout)
		defer timer.Stop()
		select {
		case <-c.ended:
			return err
		case <-timer.C:
			return errors.Join(err, c.cmd.Process.Kill())
		}
	})
}

func (r *relays) end(how func(*child) error) error {
	c := r.current
	if c == nil {
		return nil
	}
	r.current = nil
	close(c.expected)
	err := how(c)
	<-c.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
