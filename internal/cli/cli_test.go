package cli

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9/logging"

	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// beRelay in the environment makes the test program run the command, so that tests need no other binary.
const beRelay = "RELAY_TEST_IS_THE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(beRelay) != "" {
		Main("")
	}
	for _, s := range []os.Signal{syscall.SIGHUP, os.Interrupt} {
		if signal.Ignored(s) { // by nohup, or by a shell's &; the relay must not inherit that
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	logging.Disable() // testserver polls Redis until it is ready
	testserver.Main(m)
}

// relay is a running command.
type relay struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr output
	ended          chan struct{}
}

// output is what a command has written so far.
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

// start starts relay with additional environment variables, NAME=value. It is killed at the end of the test.
func start(t *testing.T, env []string, args ...string) *relay {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, env, self, args...)
}

// startProgram starts a program that starts relay.
func startProgram(t *testing.T, env []string, name string, args ...string) *relay {
	t.Helper()
	r := &relay{t: t, cmd: exec.Command(name, args...), ended: make(chan struct{})}
	r.cmd.Env = append(cleanEnv(), append(env, beRelay+"=1")...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		var exit *exec.ExitError
		if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		r.signal(os.Kill)
		<-r.ended
		if t.Failed() {
			t.Logf("relay %s\n--- stdout\n%s\n--- stderr\n%s", strings.Join(args, " "), r.stdout.String(), r.stderr.String())
		}
		// The prefix of testserver's passwords, and the secrets in tests.
		for _, secret := range []string{"secret-", "s3cret"} {
			if strings.Contains(r.stdout.String()+r.stderr.String(), secret) {
				t.Errorf("the output of relay %s contains a secret", strings.Join(args, " "))
			}
		}
	})
	return r
}

// cleanEnv is the environment without the variables that relay reads.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "RELAY_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}

func (r *relay) signal(s os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Error(err)
	}
}

// exit waits for the end and returns the exit status. A command that hangs prints its goroutines.
func (r *relay) exit() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(2 * time.Minute):
		r.signal(syscall.SIGQUIT)
		<-r.ended
		r.t.Fatal("relay hangs")
	}
	return r.cmd.ProcessState.ExitCode()
}

// waitForLog waits until standard error contains text.
func (r *relay) waitForLog(text string) {
	r.t.Helper()
	testserver.Eventually(r.t, func() error {
		var ended bool
		select {
		case <-r.ended:
			ended = true
		default:
		}
		switch {
		case strings.Contains(r.stderr.String(), text):
			return nil
		case ended:
			r.t.Fatalf("relay exited without %q; it printed:\n%s", text, r.stderr.String())
		}
		return fmt.Errorf("relay did not print %q", text)
	})
}

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// do runs relay to its end.
func do(t *testing.T, env []string, args ...string) result {
	t.Helper()
	r := start(t, env, args...)
	code := r.exit()
	return result{code, r.stdout.String(), r.stderr.String()}
}

// want checks the exit status, and that the streams contain the texts; "" means an empty stream.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit status %d, want %d", r.code, code)
	}
	for _, s := range []struct{ name, got, want string }{{"stdout", r.stdout, stdout}, {"stderr", r.stderr, stderr}} {
		if !strings.Contains(s.got, s.want) || s.want == "" && s.got != "" {
			t.Errorf("%s is %q, want %q", s.name, s.got, s.want)
		}
	}
}

// write makes a configuration file and returns its path.
func write(t *testing.T, yaml string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// database is an application's database with the relay's tables in it.
type database struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
	file *sql.DB // of a SQLite file, which has no conn
}

// newDatabase creates a migrated database.
func newDatabase(t *testing.T) *database {
	t.Helper()
	return connectTo(t, testdb.Postgres(t, postgres.SchemaConfig{}))
}

// newDatabaseAt migrates a database by the command.
func newDatabaseAt(t *testing.T, url string) *database {
	t.Helper()
	path := write(t, onePipeline("p", url, "stdout:"))
	do(t, nil, "migrate", "-c", path).want(t, 0, "p: applied 0001_", "")
	return connectTo(t, url)
}

func connectTo(t *testing.T, url string) *database {
	t.Helper()
	d := &database{t: t, url: url}
	conn, err := pgx.Connect(t.Context(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	d.conn = conn
	t.Cleanup(func() {
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err)
		}
	})
	return d
}

// newFile creates a migrated SQLite file.
func newFile(t *testing.T) *database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	d := &database{t: t, url: "sqlite://" + path}
	do(t, nil, "migrate", "-c", write(t, onePipeline("p", d.url, "stdout:"))).want(t, 0, "p: applied 00001_", "")
	var err error
	if d.file, err = sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(20000)"); err != nil {
		t.Fatal(err)
	}
	d.file.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := d.file.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// forEachDatabase runs a test with PostgreSQL and with a SQLite file.
func forEachDatabase(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) *database{"postgres": newDatabase, "sqlite": newFile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	if d.file != nil {
		if _, err := d.file.ExecContext(d.t.Context(), sql, args...); err != nil {
			d.t.Fatal(err)
		}
		return
	}
	if _, err := d.conn.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatal(err)
	}
}

func (d *database) count(sql string, args ...any) (n int) {
	d.t.Helper()
	if d.file != nil {
		if err := d.file.QueryRowContext(d.t.Context(), sql, args...).Scan(&n); err != nil {
			d.t.Fatal(err)
		}
		return n
	}
	if err := d.conn.QueryRow(d.t.Context(), sql, args...).Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}

// text returns the only value of a query.
func (d *database) text(sql string, args ...any) (text string) {
	d.t.Helper()
	var err error
	if d.file != nil {
		err = d.file.QueryRowContext(d.t.Context(), sql, args...).Scan(&text)
	} else {
		err = d.conn.QueryRow(d.t.Context(), sql, args...).Scan(&text)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return text
}

// insert commits n events.
func (d *database) insert(n int) {
	d.t.Helper()
	if d.file != nil {
		d.exec(`WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?1)
			INSERT INTO outbox_events (topic, key, payload) SELECT 'orders', 'k' || n, json_object('n', n) FROM i`, n)
		return
	}
	d.exec(`INSERT INTO outbox_events (topic, key, payload)
		SELECT 'orders', 'k' || i, jsonb_build_object('n', i) FROM generate_series(1, $1::int) i`, n)
}

// onePipeline is the configuration of one pipeline; more are lines of it.
func onePipeline(name, source, sink string, more ...string) string {
	lines := append([]string{
		"admin: {listen: \"\"}", "pipelines:",
		"  - name: " + name, "    source: {url: \"" + source + "\"}", "    sink: {url: \"" + sink + "\"}",
	}, more...)
	return strings.Join(lines, "\n") + "\n"
}
