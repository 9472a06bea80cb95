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
	pollEvery    = 20 * time.Millisecond
)

// process is a server program: how to start it, and the one that runs.
type process struct {
	name  string
	path  string
	args  []string
	dir   string         // its working folder; the log is server.log in it
	as    *account       // nil: whoever runs the test
	stop  syscall.Signal // asks it to end in good order
	death syscall.Signal // what it gets when the test process dies
	// answers tells whether the server is ready.
	answers func(context.Context) error

	mu     sync.Mutex
	run    *run // nil: not running
	killed bool // and not started again since
}

type run struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process is gone; err is set then
	err  error
}

// Start starts the server, on the port and the data it had before, and returns
// when it answers.
func (p *process) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		return fmt.Errorf("%s runs already", p.name)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	start := p.start
	if p.killed {
		// PostgreSQL's children need a moment to notice that it was killed, and
		// a new server refuses to start beside them.
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
	if err := until(ctx, r.done, p.answers); err != nil {
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
	// The server outlives ctx, which is for its start.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.Env = append(os.Environ(), "LC_ALL=C") // PostgreSQL on macOS does not start without a locale
	cmd.SysProcAttr = attributes(p.as, p.death)

	r := &run{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(r.done)
		// The parent whose death Linux reports is the thread, not the process:
		// this one stays, waiting, as long as the child lives.
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

// Stop ends the server in good order; its data stays. Nothing happens if it does
// not run.
func (p *process) Stop() error { return p.finish(p.stop) }

// Kill ends the server as a crash would (SIGKILL); its data stays.
func (p *process) Kill() error { return p.finish(syscall.SIGKILL) }

// Close ends the server and removes its data.
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

// end signals a process until it is gone: Redis refuses to end while it writes
// its first append-only file.
func (p *process) end(r *run, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	again := time.NewTicker(10 * pollEvery)
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
			return errors.Join(fmt.Errorf("it did not end within %v of %v and was killed", stopTimeout, sig), err, p.logTail())
		}
	}
}

// logTail is the end of what the server said, as an error.
func (p *process) logTail() error {
	text, err := os.ReadFile(filepath.Join(p.dir, "server.log"))
	if err != nil {
		return err
	}
	text = bytes.TrimSpace(text)
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return fmt.Errorf("its log ends:\n%s", text)
}

// until asks again and again until ask says nil, ctx is over or gone is closed.
func until(ctx context.Context, gone <-chan struct{}, ask func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer was: %w", context.Cause(ctx), err)
		case <-gone:
			return errors.New("it ended by itself")
		case <-tick.C:
		}
	}
}
