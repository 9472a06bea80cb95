package relay_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// fileLine formats a position; i counts from 0.
func fileLine(path string, i int) string { return path + ":" + strconv.Itoa(i+1) }

// build compiles the command and the example programs and returns their folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/relay", "./examples/producer", "./examples/jetstream", "./examples/receiver")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// terminal runs commands as a reader of the documents would: in a folder and
// with an environment.
type terminal struct {
	t    *testing.T
	dir  string
	path []string // put before PATH
	env  []string
}

// newTerminal returns a terminal with a folder of programs in its PATH.
func newTerminal(t *testing.T, programs string, env ...string) *terminal {
	t.Helper()
	// psql from Homebrew, which is not in PATH.
	found, err := filepath.Glob("/opt/homebrew/opt/postgresql*/bin")
	if err != nil {
		t.Fatal(err)
	}
	return &terminal{t: t, dir: t.TempDir(), path: append([]string{programs}, found...), env: env}
}

func (term *terminal) write(name, text string) { write(term.t, filepath.Join(term.dir, name), text) }

func (term *terminal) command(name string, args ...string) *exec.Cmd {
	if found := filepath.Join(term.path[0], name); exists(found) {
		name = found
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = term.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "RELAY_") && !strings.HasPrefix(v, "PG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+strings.Join(append(term.path, os.Getenv("PATH")), string(os.PathListSeparator)))
	cmd.Env = append(cmd.Env, term.env...)
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sh runs a script and returns its output.
func (term *terminal) sh(script string) (output string, err error) {
	out, err := term.command("sh", "-euc", script).CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

// must is sh for a script that must succeed.
func (term *terminal) must(script string) string {
	term.t.Helper()
	out, err := term.sh(script)
	if err != nil {
		term.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return out
}

// process is a program in the background.
type process struct {
	term           *terminal
	cmd            *exec.Cmd
	stdout, stderr testkit.Output
	ended          chan struct{}
}

// start starts a program, which is killed when the test ends.
func (term *terminal) start(name string, args ...string) *process {
	term.t.Helper()
	r := &process{term: term, cmd: term.command(name, args...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if err := r.cmd.Start(); err != nil {
		term.t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		var exit *exec.ExitError
		if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
			term.t.Error(err)
		}
	}()
	term.t.Cleanup(func() {
		r.signal(os.Kill)
		<-r.ended
		if term.t.Failed() {
			term.t.Logf("%v\n--- stdout\n%s\n--- stderr\n%s", r.cmd.Args, r.stdout.String(), r.stderr.String())
		}
	})
	return r
}

func (r *process) signal(s os.Signal) {
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.term.t.Error(err)
	}
}

// stop ends the program as a process manager would.
func (r *process) stop(s os.Signal) {
	r.term.t.Helper()
	r.signal(s)
	r.wait()
}

// wait waits until the program exits and expects status 0.
func (r *process) wait() {
	r.term.t.Helper()
	testkit.Eventually(r.term.t, func() error {
		select {
		case <-r.ended:
			return nil
		default:
			return fmt.Errorf("%v is still running", r.cmd.Args)
		}
	})
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.term.t.Fatalf("%v: exit status %d\n%s", r.cmd.Args, code, r.stderr.String())
	}
}

// waitFor waits until an output contains text, both seen through mask.
func (r *process) waitFor(o *testkit.Output, mask func(string) string, text string) {
	r.term.t.Helper()
	testkit.Eventually(r.term.t, func() error {
		if got := o.String(); !strings.Contains(mask(got), mask(text)) {
			return fmt.Errorf("%v: got\n%s\nwant\n%s", r.cmd.Args, got, text)
		}
		return nil
	})
}

func verbatim(text string) string { return text }
