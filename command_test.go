package relay_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// place is where something stands; i counts from 0.
func place(path string, i int) string { return path + ":" + strconv.Itoa(i+1) }

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

// terminal is where a reader of the documents would sit: a folder, and an
// environment.
type terminal struct {
	t    *testing.T
	dir  string
	path []string // in front of the PATH
	env  []string
}

// newTerminal has the programs of a folder in its PATH.
func newTerminal(t *testing.T, programs string, env ...string) *terminal {
	t.Helper()
	// psql, where a package manager put it beside the PATH.
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

// sh runs a script to its end and returns what it wrote.
func (term *terminal) sh(script string) (output string, err error) {
	out, err := term.command("sh", "-euc", script).CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

// must is sh for what has to succeed.
func (term *terminal) must(script string) string {
	term.t.Helper()
	out, err := term.sh(script)
	if err != nil {
		term.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return out
}

// running is a program in the background.
type running struct {
	term           *terminal
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{}
}

// output is what a program has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts a program, which is killed when the test is over.
func (term *terminal) start(name string, args ...string) *running {
	term.t.Helper()
	r := &running{term: term, cmd: term.command(name, args...), ended: make(chan struct{})}
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

func (r *running) signal(s os.Signal) {
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.term.t.Error(err)
	}
}

// stop ends the program as a supervisor would.
func (r *running) stop(s os.Signal) {
	r.term.t.Helper()
	r.signal(s)
	r.wait()
}

// wait waits for the program's end, and wants a good one.
func (r *running) wait() {
	r.term.t.Helper()
	testserver.Eventually(r.term.t, func() error {
		select {
		case <-r.ended:
			return nil
		default:
			return fmt.Errorf("%v does not end", r.cmd.Args)
		}
	})
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.term.t.Fatalf("%v: exit status %d\n%s", r.cmd.Args, code, r.stderr.String())
	}
}

// says waits until text is in what one of the program's streams has shown, seen
// through mask.
func (r *running) says(o *output, mask func(string) string, text string) {
	r.term.t.Helper()
	testserver.Eventually(r.term.t, func() error {
		if said := o.String(); !strings.Contains(mask(said), mask(text)) {
			return fmt.Errorf("%v did not say\n%s\nbut\n%s", r.cmd.Args, text, said)
		}
		return nil
	})
}

func asItIs(text string) string { return text }
