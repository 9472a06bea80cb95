package jq

import (
	"bufio"
	"bytes"
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

const (
	// childVariable makes this executable serve runs instead of its main function.
	childVariable = "RELAY_JQ_CHILD"
	// childName is the name of a child, which must have it too: somebody may set the variable for the relay.
	childName = "relay-jq"
	// hello is the first line of a child. What other packages print before it is ignored.
	hello = "relay-jq 1\n"
	// startLimit is how long a child may take to start, which depends on the machine alone.
	startLimit = 30 * time.Second
	pipeBuffer = 64 << 10

	// Exit statuses of the Go runtime after a fatal error, and of the race detector.
	exitFatal, exitRace = 2, 66
)

// process is a child process, which serves one run after the other.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	in     *bufio.Writer
	out    *bufio.Reader

	isNew     bool // it has not served a run yet
	ended     bool
	idleSince time.Time

	mu      sync.Mutex
	busy    bool
	stopped error // why the child was killed
}

// start starts a child. The error wraps ErrProcess, unless ctx ends.
func start(ctx context.Context) (*process, error) {
	path, err := executable()
	if err != nil {
		return nil, startError(err)
	}
	return startFile(ctx, path)
}

func startError(err error) error {
	return processError("no process could be started for the jq program: %v (Relay starts its own executable again: its sandbox must allow that, and limits must leave room for more processes)", err)
}

func startFile(ctx context.Context, path string) (*process, error) {
	child, err := launch(path)
	if err != nil {
		return nil, startError(err)
	}
	err = child.guard(ctx, startLimit, processError("a process for the jq program did not start within %v", startLimit), func() error {
		var before int
		for {
			line, err := child.out.ReadSlice('\n')
			if string(line) == hello {
				return nil
			}
			if before += len(line); err != nil && !errors.Is(err, bufio.ErrBufferFull) || before > 1<<20 {
				return errors.Join(err, errors.New("it does not serve jq programs"))
			}
		}
	})
	switch {
	case err == nil:
		return child, nil
	case ctx.Err() != nil:
		return nil, err
	}
	if errors.Is(err, ErrLimit) { // it has not seen the program
		err = errors.New("it gets no memory")
	}
	return nil, startError(err)
}

// launch runs the executable with pipes, and with an environment that holds no secret.
func launch(path string) (*process, error) {
	cmd := exec.CommandContext(context.Background(), path)
	cmd.Args = []string{childName}
	cmd.Env = []string{childVariable + "=1"}
	if zone, ok := os.LookupEnv("TZ"); ok {
		cmd.Env = append(cmd.Env, "TZ="+zone)
	}
	child := &process{cmd: cmd, isNew: true}
	var theirs [3]*os.File
	for i, ours := range []**os.File{&child.stdin, &child.stdout, &child.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			child.close(theirs[:]...)
			return nil, err
		}
		enlarge(w)
		if *ours, theirs[i] = r, w; i == 0 {
			*ours, theirs[i] = w, r
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err := cmd.Start(); err != nil {
		child.close(theirs[:]...)
		return nil, err
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	child.in, child.out = bufio.NewWriterSize(child.stdin, pipeBuffer), bufio.NewReaderSize(child.stdout, pipeBuffer)
	return child, nil
}

func (c *process) close(others ...*os.File) {
	for _, f := range append(others, c.stdin, c.stdout, c.stderr) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// end kills an idle child.
func (c *process) end() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.ended = true
	c.close()
}

// run runs a program. If the run must be short and is not, the error is errNotShort. A child whose run did not come to an end has ended.
func (c *process) run(ctx context.Context, p *Program, j *job, short bool) ([]byte, error) {
	limit, tooLong := p.TimeLimit, limitError("the program did not end within %v", p.TimeLimit)
	if short && shortRun < limit {
		limit, tooLong = shortRun, errNotShort
	}
	var answer kind
	var text []byte
	err := c.guard(ctx, limit, tooLong, func() error {
		if err := writeFrame(c.in, byte(j.shape), []byte(p.text), p.secrets, j.input, j.body); err != nil {
			return err
		}
		tag, parts, err := readFrame(c.out, 1, j.limit)
		if err == nil {
			answer, text = kind(tag), parts[0]
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	switch answer {
	case succeeded:
		return text, nil
	case badResult:
		return nil, &kindError{string(text), ErrResults}
	case badInput:
		return nil, &kindError{string(text), ErrInput}
	}
	return nil, errors.New(string(text))
}

// guard does something with the child, which it kills after the limit or when ctx ends. If talk fails, the child has
// ended, and the error says why.
func (c *process) guard(ctx context.Context, limit time.Duration, tooLong error, talk func() error) error {
	c.mu.Lock()
	c.busy = true
	c.mu.Unlock()
	timer := time.AfterFunc(limit, func() { c.kill(tooLong) })
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { c.kill(context.Cause(ctx)) })()
	failure := talk()
	if failure != nil {
		_ = c.stdin.Close() // it ends, if it has not
		_ = c.stdout.Close()
		_ = c.cmd.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	switch {
	case failure == nil && c.stopped != nil: // it was killed after it had answered
		c.end()
		return nil
	case failure == nil:
		return nil
	}
	c.ended = true
	defer c.close()
	if c.stopped != nil {
		return c.stopped
	}
	return c.causeOfDeath(failure)
}

func (c *process) kill(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy && c.stopped == nil {
		c.stopped = why
		_ = c.cmd.Process.Kill()
	}
}

// causeOfDeath is why a child ended by itself. The Go runtime ends a process that gets no more memory, or whose stack
// is too large, with a message; at times it writes to memory that it did not get, and the message names that signal.
func (c *process) causeOfDeath(failure error) error {
	message, _ := io.ReadAll(io.LimitReader(c.stderr, 4<<10))
	state := c.cmd.ProcessState
	if state.ExitCode() == exitMemory {
		return errMemory
	}
	first, _, _ := strings.Cut(string(bytes.TrimSpace(message)), "\n")
	if code := state.ExitCode(); code == exitFatal || code == exitRace {
		if bytes.Contains(message, []byte("OS thread")) {
			return processError("the process of the jq program could not start a thread: %s", first)
		}
		for _, word := range []string{"memory", "stack", "failed to allocate", "SIGSEGV"} {
			if bytes.Contains(message, []byte(word)) {
				return errMemory
			}
		}
		return fmt.Errorf("the program crashed: %s", first)
	}
	if first == "" {
		first = failure.Error()
	}
	return &kindError{fmt.Sprintf("the process of the jq program ended: %v (%s)", state, first), ErrKilled}
}
