package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// command is the relay binary and its configuration.
type command struct {
	binary string
	db     *database
}

// build builds the relay.
func build(b *testing.B, db *database) command {
	b.Helper()
	c := command{binary: filepath.Join(b.TempDir(), "relay"), db: db}
	out, err := exec.CommandContext(b.Context(), "go", "build", "-o", c.binary, "../cmd/relay").CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return c
}

// settings of the one pipeline.
type settings struct {
	table      string // outbox_events when empty
	wake       string // auto when empty
	supervisor bool
	sink       string // a URL; stdout when empty
	maxlen     int    // of the sink's stream; 0: it is not trimmed
	address    string // a key of the sink and its value: "stream: orders"
	batch      int    // batch_size; 0: the default
}

func (c command) configure(b *testing.B, s settings) (path string) {
	b.Helper()
	supervisor, trimmed := "", ""
	if s.supervisor {
		supervisor = ", supervisor: {warn_after: 5m}"
	}
	if s.maxlen > 0 {
		trimmed = fmt.Sprintf(", maxlen: %d", s.maxlen)
	}
	if s.address != "" {
		trimmed += ", " + s.address
	}
	yaml := fmt.Sprintf(`admin: {listen: ""}
log: {level: error}
pipelines:
- name: orders
  source: {url: %q, table: %s%s}
  wake: %s
  batch_size: %d
  sink: {url: %q%s}
`, c.db.url, cmp.Or(s.table, eventsTable), supervisor, cmp.Or(s.wake, "auto"), cmp.Or(s.batch, batchSize), cmp.Or(s.sink, "stdout:"), trimmed)
	path = filepath.Join(b.TempDir(), "relay.yaml")
	testkit.NoError(b, os.WriteFile(path, []byte(yaml), 0o600))
	return path
}

// migrate creates the tables for the settings, and the trigger.
func (c command) migrate(b *testing.B, s settings) {
	b.Helper()
	c.migrateAll(b, c.configure(b, s))
	const insertTriggersSQL = `
SELECT count(*) FROM pg_trigger WHERE tgrelid = $1::regclass AND NOT tgisinternal AND tgtype & 4 <> 0`
	if n := queryValue[int](b, c.db, insertTriggersSQL, cmp.Or(s.table, eventsTable)); s.wake == "notify" && n == 0 {
		b.Fatal("migrate made no trigger for wake: notify")
	}
}

// migrateAll creates the tables of all pipelines in a configuration.
func (c command) migrateAll(b *testing.B, path string) {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), c.binary, "migrate", "-c", path).CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
}

// run starts the relay. It runs until stop is called or the benchmark ends.
func (c command) run(b *testing.B, s settings) (pid int, stop func()) {
	b.Helper()
	return c.start(b, c.configure(b, s))
}

// start runs all pipelines of a configuration until stop is called or the benchmark ends.
func (c command) start(b *testing.B, path string) (pid int, stop func()) {
	b.Helper()
	// A benchmark's context ends before its cleanups, which stop the relay.
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), c.binary, "run", "-c", path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.NoError(b, cmd.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		testkit.NoError(b, cmd.Process.Signal(syscall.SIGTERM))
		testkit.NoError(b, cmd.Wait())
	}
	b.Cleanup(stop)
	return cmd.Process.Pid, stop
}
