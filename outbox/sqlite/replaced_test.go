package sqlite_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// replaceable is a migrated file that is replaced in a test, and a buffer on it.
func replaceable(t *testing.T, ddl string, c sqlite.Config) (file string, b *sqlite.Buffer) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "app.db")
	c.URL, c.Pipeline = urlOf(file), "orders"
	if ddl != "" {
		change(t, file, ddl)
	}
	migrate(t, c.URL, sqlite.SchemaConfig{Table: c.Table, Custom: c.Custom.Is()})
	b, err := sqlite.Open(c)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return file, b
}

// change executes statements on a connection of their own.
func change(t *testing.T, file, statements string) {
	t.Helper()
	db, err := sql.Open("sqlite", applicationDSN(file))
	testkit.NoError(t, err)
	exec(t, db, statements)
	testkit.NoError(t, db.Close())
}

// restore puts a backup in place of the file.
func restore(t *testing.T, backup, file string) {
	t.Helper()
	testkit.NoError(t, os.Rename(backup, file))
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(file + suffix); !errors.Is(err, fs.ErrNotExist) {
			testkit.NoError(t, err)
		}
	}
}

// copyOver restores a backup as `rm -f app.db-wal app.db-shm; cp backup.db app.db` does: the file stays the same one.
func copyOver(t *testing.T, backup, file string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		testkit.NoError(t, os.Remove(file+suffix))
	}
	content, err := os.ReadFile(backup)
	testkit.NoError(t, err)
	testkit.NoError(t, os.WriteFile(file, content, 0o600))
}

// applicationFile is the environment variable that makes this program an application with the file open. It must be
// another process: connections of one process share what SQLite knows of a file.
const applicationFile = "RELAY_TEST_APPLICATION"

// runApplication inserts an event into each table, and keeps the file open until its input ends.
func runApplication(file string) {
	db, err := sql.Open("sqlite", applicationDSN(file))
	if err == nil {
		_, err = db.ExecContext(context.Background(), insertBoth)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("inserted")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = db.Close()
}

const (
	insertFirst = "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')"
	insertBoth  = insertFirst + "; INSERT INTO second_events (topic, payload) VALUES ('t', '1')"
)

// application starts another process that inserts an event into each table. stop ends it.
func application(t *testing.T, file string) (stop func()) {
	t.Helper()
	self, err := os.Executable()
	testkit.NoError(t, err)
	program := osexec.CommandContext(t.Context(), self)
	program.Env = append(os.Environ(), applicationFile+"="+file)
	input, err := program.StdinPipe()
	testkit.NoError(t, err)
	output, err := program.StdoutPipe()
	testkit.NoError(t, err)
	testkit.NoError(t, program.Start())
	line, _ := bufio.NewReader(output).ReadString('\n')
	testkit.Equal(t, "the application's output", line, "inserted\n")
	return func() {
		testkit.NoError(t, input.Close())
		testkit.NoError(t, program.Wait())
	}
}

// TestReplacedFile_CopiedOver: a backup that is copied over the open file is read by all buffers of the process, in any
// order of opening, and nothing that was written before gets into it.
func TestReplacedFile_CopiedOver(t *testing.T) {
	t.Parallel()
	for _, opener := range []string{"application", "relay"} {
		t.Run(opener, func(t *testing.T) {
			t.Parallel()
			file, b := replaceable(t, "", sqlite.Config{})
			migrate(t, urlOf(file), sqlite.SchemaConfig{Table: "second_events"})
			second, err := sqlite.Open(sqlite.Config{URL: urlOf(file), Pipeline: "second", Table: "second_events"})
			testkit.NoError(t, err)
			change(t, file, insertBoth)
			old := claim(t, b, 10)
			expectIDs(t, "claimed by the second buffer", claim(t, second, 10).IDs(), []int64{1})
			backup := file + ".backup"
			change(t, file, fmt.Sprintf("VACUUM INTO '%s'", backup))
			change(t, backup, "PRAGMA journal_mode = WAL")
			for range 5 {
				change(t, file, insertFirst)
				claim(t, b, 10)
			}
			copyOver(t, backup, file)

			if opener == "relay" {
				_, err := b.CountBacklog(t.Context(), 10)
				testkit.NoError(t, err)
			}
			stop := application(t, file)
			expectIDs(t, "claimed", claim(t, b, 10).IDs(), []int64{2})
			expectIDs(t, "claimed by the second buffer", claim(t, second, 10).IDs(), []int64{2})
			if err := b.Settle(t.Context(), old, []buffer.Outcome{{Verdict: buffer.Delivered}}); !errors.Is(err, buffer.ErrLeaseLost) {
				t.Errorf("settled in another file: %v", err)
			}
			stop()
			testkit.NoError(t, b.Close())
			testkit.NoError(t, second.Close())
			db, err := sql.Open("sqlite", applicationDSN(file))
			testkit.NoError(t, err)
			var integrity string
			var events int
			testkit.NoError(t, db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&integrity))
			testkit.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events").Scan(&events))
			testkit.NoError(t, db.Close())
			testkit.Equal(t, "integrity", integrity, "ok")
			testkit.Equal(t, "events", events, 2)
		})
	}
}

// TestReplacedFile: events of a file that was put in place of the open one are claimed, and a batch of the old one settles
// nothing, although the backup has the same batch.
func TestReplacedFile(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')"
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			file, b := replaceable(t, "", sqlite.Config{Claim: mode})
			change(t, file, insert)
			old := claim(t, b, 10)
			backup := file + ".backup"
			change(t, file, fmt.Sprintf("VACUUM INTO '%s'", backup))
			for range 5 { // they are claimed, so that the cursor is beyond those of the backup
				change(t, file, insert)
				claim(t, b, 10)
			}
			restore(t, backup, file)
			change(t, file, insert)
			var log bytes.Buffer
			b.SetLog(slog.New(slog.NewTextHandler(&log, nil)))

			expectIDs(t, "claimed", claim(t, b, 10).IDs(), []int64{2})
			if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "file="+file) {
				t.Errorf("the log has %d warnings:\n%s\nexpected one that names %s", n, log.String(), file)
			}
			for what, err := range map[string]error{
				"settle": b.Settle(t.Context(), old, []buffer.Outcome{{Verdict: buffer.Delivered}}),
				"mark":   b.MarkDelivered(t.Context(), old, old.IDs()),
				"renew":  b.Renew(t.Context(), old, time.Hour),
				"read":   b.Read(t.Context(), old),
			} {
				if !errors.Is(err, buffer.ErrLeaseLost) {
					t.Errorf("%s: got %v; expected ErrLeaseLost", what, err)
				}
			}
			change(t, file, "UPDATE outbox_batches SET due_at = '2020-01-02T03:04:05.678Z' WHERE first_id = 1")
			again, err := testkit.TakeOver(t.Context(), b, time.Hour)
			testkit.NoError(t, err)
			expectIDs(t, "taken over", again.IDs(), []int64{1})
			testkit.NoError(t, b.Settle(t.Context(), again, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		})
	}
}

// TestReplacedFile_CustomTable: the table of another file may have other columns in the same version of its schema, and its
// projection runs in that file.
func TestReplacedFile_CustomTable(t *testing.T) {
	t.Parallel()
	c := sqlite.Config{Table: "t", Custom: buffer.CustomTable{ID: "id", Project: "SELECT id, payload FROM {events}"}}
	text := "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, a, group_id TEXT); INSERT INTO t (payload) VALUES ('1')"
	blob := "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, b, group_id BLOB); INSERT INTO t (payload) VALUES ('2')"
	file, b := replaceable(t, text, c)
	other, _ := replaceable(t, blob, c)
	old := claimed(t, b)
	change(t, other, "PRAGMA wal_checkpoint(TRUNCATE)")
	restore(t, other, file)

	batch := claimed(t, b)
	testkit.NoError(t, batch.ProjectErr)
	testkit.Equal(t, "payload", string(batch.Events[0].Payload), "2")
	if err := b.Settle(t.Context(), old, []buffer.Outcome{{Verdict: buffer.Delivered}}); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Errorf("settled in another file: %v", err)
	}
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead}})) // with its row
}

// TestReplacedFile_Away: without a file at the path nothing is claimed; if the same file comes back, leases go on.
func TestReplacedFile_Away(t *testing.T) {
	t.Parallel()
	file, b := replaceable(t, "", sqlite.Config{})
	change(t, file, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2')")
	batch := claim(t, b, 1)
	testkit.NoError(t, os.Rename(file, file+".away"))
	if _, err := b.Claim(t.Context(), 1, time.Hour); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("claimed without the file: %v", err)
	}
	testkit.NoError(t, os.Rename(file+".away", file))
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	expectIDs(t, "claimed", claim(t, b, 1).IDs(), []int64{2})
}

// TestReplacedFile_Sinks: events of a file that was put in place of the open one are routed to the sinks, which are registered there; what was routed
// in the old one settles nothing.
func TestReplacedFile_Sinks(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO outbox_events (topic, payload) VALUES ('a.x', '1')"
	file, b := replaceable(t, "", sqlite.Config{Sinks: dropSinks})
	backup := file + ".backup"
	migrate(t, urlOf(backup), sqlite.SchemaConfig{})
	change(t, backup, insert+";"+insert)
	change(t, file, insert)
	routed, err := b.Route(t.Context(), 10, lease, func(sink string) bool { return sink == "all" })
	testkit.NoError(t, err)
	restore(t, backup, file)
	for _, name := range []string{"all", "crm"} {
		if batch, err := b.Sink(name).TakeOver(t.Context(), lease, buffer.DueRetry); batch != nil || err != nil {
			t.Fatalf("took over %+v, %v", batch, err)
		}
	}
	if err := b.Sink("all").Settle(t.Context(), routed.Leases[0].Lease, []buffer.Outcome{{Verdict: buffer.Delivered}}); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Errorf("settled in another file: %v", err)
	}
	routeAll(t, b, "[all crm]")
	for _, name := range []string{"all", "crm"} {
		deliverAll(t, b.Sink(name), takeOverOf(t, b.Sink(name), "a.x", "a.x"))
	}
}
