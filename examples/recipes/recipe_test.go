// Package recipes_test runs the recipes as a user does: the relay as a program, with the
// recipe's own relay.yaml and tables, against a server that answers as the API's
// documentation says, with faults.
package recipes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestRecipes(t *testing.T) {
	t.Parallel()
	program := build(t)
	for name, test := range map[string]func(t *testing.T, program string){
		"hubspot":       hubspot,
		"postmark":      postmark,
		"elasticsearch": elasticsearch,
		"stripe":        stripe,
		"slack":         slack,
		"salesforce":    salesforce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, program)
		})
	}
}

// build compiles the relay and returns the program.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "relay")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/relay").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

// recipe is a running recipe.
type recipe struct {
	t       *testing.T
	program string
	file    string // its relay.yaml, without the admin's listener
	env     []string
	db      *pgx.Conn
	// buffer and ledger are the tables of events and of batches.
	buffer, ledger string
}

// cook creates a database with a recipe's tables. env are more environment variables
// for its relay.yaml, NAME=value.
func cook(t *testing.T, program, name string, env ...string) *recipe {
	t.Helper()
	yaml, err := os.ReadFile(filepath.Join(name, "relay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile(filepath.Join(name, "schema.sql"))
	if err != nil {
		t.Fatal(err)
	}
	return prepare(t, program, string(yaml), string(schema), env...)
}

func prepare(t *testing.T, program, yaml, schema string, env ...string) *recipe {
	t.Helper()
	url := testserver.Postgres(t)
	r := &recipe{
		t: t, program: program, file: filepath.Join(t.TempDir(), "relay.yaml"),
		buffer: "outbox_events", ledger: "outbox_batches",
	}
	r.env = append(env, "DATABASE_URL="+url, "PATH="+os.Getenv("PATH"))
	if err := os.WriteFile(r.file, []byte("admin: {listen: \"\"}\n"+yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.db, err = pgx.Connect(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.db.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	r.exec(schema)
	r.relay("check")
	r.relay("migrate")
	return r
}

// customTable sets the buffer to a custom table.
func (r *recipe) customTable(name string) { r.buffer, r.ledger = name, "relay.outbox_batches" }

func (r *recipe) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// id runs a statement that returns an id.
func (r *recipe) id(sql string, args ...any) (id int64) {
	r.t.Helper()
	if err := r.db.QueryRow(r.t.Context(), sql, args...).Scan(&id); err != nil {
		r.t.Fatal(err)
	}
	return id
}

// relay runs a command and returns its standard output.
func (r *recipe) relay(args ...string) []byte {
	r.t.Helper()
	cmd := r.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("relay %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.Bytes()
}

func (r *recipe) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.program, append(args, "-c", r.file)...)
	cmd.Env = r.env
	return cmd
}

// deliver runs the relay until all events are delivered, and stops it.
func (r *recipe) deliver() {
	r.t.Helper()
	run := r.start()
	r.drained()
	run.stop()
}

// drained waits until nothing is left, while the number decreases.
func (r *recipe) drained() {
	r.t.Helper()
	r.drainedWith(func() {})
}

// drainedWith is drained, and calls more whenever the number has not decreased.
func (r *recipe) drainedWith(more func()) {
	r.t.Helper()
	sql := fmt.Sprintf("SELECT (SELECT count(*) FROM %s) + (SELECT count(*) FROM %s)", r.buffer, r.ledger)
	for left := r.id(sql); left > 0; {
		before := left
		testkit.Eventually(r.t, func() error {
			if left = r.id(sql); left >= before {
				more()
				return fmt.Errorf("%d events and batches are left", left)
			}
			return nil
		})
	}
}

// running is a running relay.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr testkit.Output
	ended  chan struct{}
}

// start starts `relay run`, which is killed when the test ends.
func (r *recipe) start() *running {
	r.t.Helper()
	run := &running{t: r.t, cmd: r.command("run"), ended: make(chan struct{})}
	run.cmd.Stderr = &run.stderr
	if err := run.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(run.ended)
		var exit *exec.ExitError
		if err := run.cmd.Wait(); err != nil && !errors.As(err, &exit) {
			r.t.Error(err)
		}
	}()
	r.t.Cleanup(func() {
		run.signal(os.Kill)
		<-run.ended
		if said := run.stderr.String(); r.t.Failed() {
			r.t.Logf("relay run said\n%s", said)
		} else if strings.Contains(said, "s3cret") {
			r.t.Errorf("relay run shows a secret:\n%s", said)
		}
	})
	return run
}

func (run *running) signal(s os.Signal) {
	if err := run.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		run.t.Error(err)
	}
}

// stop ends the relay as a process manager would, and expects exit status 0.
func (run *running) stop() {
	run.t.Helper()
	run.signal(os.Interrupt)
	testkit.Eventually(run.t, func() error {
		select {
		case <-run.ended:
			return nil
		default:
			return errors.New("relay run does not end")
		}
	})
	if code := run.cmd.ProcessState.ExitCode(); code != 0 {
		run.t.Errorf("relay run: exit status %d", code)
	}
}

// dead returns the errors in `relay dead list --json`, by the event's id.
func (r *recipe) dead() map[string]string {
	r.t.Helper()
	var deadLetters []struct {
		ID    json.Number `json:"event_id"`
		Error string      `json:"error"`
	}
	if err := json.Unmarshal(r.relay("dead", "list", "--json"), &deadLetters); err != nil {
		r.t.Fatal(err)
	}
	errors := make(map[string]string, len(deadLetters))
	for _, l := range deadLetters {
		if _, twice := errors[l.ID.String()]; twice {
			r.t.Errorf("event %s has two dead letters", l.ID)
		}
		errors[l.ID.String()] = l.Error
	}
	return errors
}
