package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 60 * time.Second // of one server, on a busy machine
	stopTimeout  = 20 * time.Second // before it is killed
	pollInterval = 20 * time.Millisecond
)

// process is a server program, which can be started repeatedly.
type process struct {
	name  string
	path  string
	args  []string
	env   []string       // added to the environment
	dir   string         // its working directory, with its log server.log
	as    *account       // nil: the user who runs the test
	stop  syscall.Signal // for a graceful shutdown
	death syscall.Signal // is sent when the test process ends
	// ready returns nil when the server accepts requests.
	ready func(context.Context) error

	mu     sync.Mutex
	run    *run // nil: not running
	killed bool // and not restarted since
}

type run struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended; err is set before
	err  error
}

// Start starts the server with the port and data it had before, and returns when it is
// ready.
func (p *process) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		return fmt.Errorf("%s is running already", p.name)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	start := p.start
	if p.killed {
		// A new PostgreSQL server refuses to start before the killed one's children have
		// ended.
		start = func(ctx context.Context) error { return until(ctx, nil, p.start) }
	}
	err := start(ctx)
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.killed = false
	return nil
}

func (p *process) start(ctx context.Context) error {
	r, err := p.launch(ctx)
	if err != nil {
		return err
	}
	if err := until(ctx, r.done, p.ready); err != nil {
		err = errors.Join(err, p.end(r, syscall.SIGKILL))
		return errors.Join(err, r.err, p.logTail())
	}
	p.run = r
	return nil
}

// launch starts the program and a goroutine that waits for its end.
func (p *process) launch(ctx context.Context) (*run, error) {
	log, err := os.OpenFile(filepath.Join(p.dir, "server.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	// ctx limits the start only.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), p.env...) // PostgreSQL on macOS does not start without a locale
	cmd.SysProcAttr = attributes(p.as, p.death)

	r := &run{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(r.done)
		// Linux reports the end of the parent thread, not of the process, so this thread
		// must wait as long as the child runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- errors.Join(err, log.Close())
		if err == nil {
			r.err = cmd.Wait()
		}
	}()
	return r, <-started
}

// Stop shuts the server down and keeps its data. It does nothing if the server is not
// running.
func (p *process) Stop() error { return p.finish(p.stop) }

// Kill kills the server (SIGKILL), like a crash, and keeps its data.
func (p *process) Kill() error { return p.finish(syscall.SIGKILL) }

// Close stops the server and removes its data.
func (p *process) Close() error {
	return errors.Join(p.Stop(), os.RemoveAll(p.dir))
}

func (p *process) finish(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		return nil
	}
	r := p.run
	p.run, p.killed = nil, sig == syscall.SIGKILL
	if err := p.end(r, sig); err != nil {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	return nil
}

// end signals a process repeatedly until it has ended, because Redis refuses to end while it
// writes its first append-only file.
func (p *process) end(r *run, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	again := time.NewTicker(10 * pollInterval)
	defer again.Stop()
	for {
		if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-r.done:
			return nil
		case <-again.C:
		case <-ctx.Done():
			err := r.cmd.Process.Kill()
			<-r.done
			return errors.Join(fmt.Errorf("it did not end within %v after %v and was killed", stopTimeout, sig), err, p.logTail())
		}
	}
}

// logTail returns the end of the server's log, as an error.
func (p *process) logTail() error {
	text, err := os.ReadFile(filepath.Join(p.dir, "server.log"))
	if err != nil {
		return err
	}
	text = bytes.TrimSpace(text)
	const maxTail = 2000
	if len(text) > maxTail {
		text = text[len(text)-maxTail:]
	}
	return fmt.Errorf("its log ends:\n%s", text)
}

// until polls condition until it returns nil, ctx is done or ended is closed.
func until(ctx context.Context, ended <-chan struct{}, condition func(context.Context) error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last error was: %w", context.Cause(ctx), err)
		case <-ended:
			return errors.New("the process ended by itself")
		case <-tick.C:
		}
	}
}
