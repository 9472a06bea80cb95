package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/examples/ownsink/inbox"
	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// isTheCommand in the environment makes the test program run main.
const isTheCommand = "OWNSINK_TEST_IS_THE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(isTheCommand) != "" {
		main()
	}
	testserver.Main(m)
}

// TestCommands: the commands know the sink.
func TestCommands(t *testing.T) {
	source, target := testdb.Postgres(t, postgres.SchemaConfig{}), testserver.Postgres(t)
	app, err := pgx.Connect(t.Context(), source)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, app.Close(t.Context())) })
	other, err := pgx.Connect(t.Context(), target)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, other.Close(t.Context())) })
	_, err = other.Exec(t.Context(), inbox.Schema+"; ALTER TABLE inbox ADD CHECK (topic <> 'orders.bad')")
	testkit.NoError(t, err)
	_, err = app.Exec(t.Context(), `INSERT INTO outbox_events (topic, key, payload) SELECT CASE n WHEN 7 THEN 'orders.bad' ELSE 'orders' END, 'k' || n, '{}' FROM generate_series(1, 20) n`)
	testkit.NoError(t, err)

	url := strings.Replace(target, "postgres", "inbox", 1)
	command := func(args ...string) *exec.Cmd {
		self, err := os.Executable()
		testkit.NoError(t, err)
		c := exec.CommandContext(t.Context(), self, args...)
		c.Env = append(os.Environ(), isTheCommand+"=1", "DATABASE_URL="+source, "INBOX_URL="+url)
		return c
	}
	do := func(want string, status int, args ...string) {
		t.Helper()
		out, err := command(args...).CombinedOutput()
		exit, failed := errors.AsType[*exec.ExitError](err)
		if err != nil && !failed || failed != (status != 0) || failed && exit.ExitCode() != status || !strings.Contains(string(out), want) {
			t.Errorf("relay %s: %v\n%s\nwant status %d and %q", strings.Join(args, " "), err, out, status, want)
		}
	}
	text, err := os.ReadFile("relay.yaml")
	testkit.NoError(t, err)
	file, wrong := filepath.Join(t.TempDir(), "relay.yaml"), filepath.Join(t.TempDir(), "wrong.yaml")
	testkit.NoError(t, os.WriteFile(file, []byte("admin: {listen: ''}\n"+string(text)), 0o600))
	testkit.NoError(t, os.WriteFile(wrong, []byte(strings.Replace(string(text), "table: inbox", "tabel: inbox", 1)), 0o600))

	do("ok  orders: ", 0, "check", file)
	do("-> inbox://***@", 0, "check", file)
	do(`wrong.yaml:6:7: unknown key "tabel" in sink (did you mean table?); expected url, table or timeout`, 2, "check", wrong)
	do("INSERT INTO inbox", 0, "preview", "-c", file)
	do("OK", 0, "doctor", "-c", file)

	relay := command("run", "-c", file)
	var log testkit.Output
	relay.Stderr = &log
	testkit.NoError(t, relay.Start())
	testkit.Eventually(t, func() error {
		var arrived int
		testkit.NoError(t, other.QueryRow(t.Context(), "SELECT count(*) FROM inbox").Scan(&arrived))
		var dead int
		testkit.NoError(t, app.QueryRow(t.Context(), "SELECT count(*) FROM outbox_dead_letters").Scan(&dead))
		if arrived != 19 || dead != 1 {
			return fmt.Errorf("%d events arrived, and %d died; the log is\n%s", arrived, dead, log.String())
		}
		return nil
	})
	testkit.NoError(t, relay.Process.Signal(syscall.SIGTERM))
	testkit.NoError(t, relay.Wait())

	do("orders", 0, "status", "-c", file)
	do("inbox_topic_check", 0, "dead", "list", "-c", file)
	_, err = other.Exec(t.Context(), "ALTER TABLE inbox RENAME TO gone")
	testkit.NoError(t, err)
	do(`relation "inbox" does not exist`, 1, "doctor", "-c", file)
}
