package cli

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

// Tables as Rails and Doctrine create them on SQLite.
func TestPresets_SQLite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source, table, ddl, rows string
		want                     []arrived
		left                     string // rows that are still events
	}{
		"rails": {
			"preset: rails, table: outboxes", "outboxes",
			`CREATE TABLE "outboxes" ("id" integer PRIMARY KEY AUTOINCREMENT NOT NULL, "identifier" varchar NOT NULL, "event" varchar NOT NULL,
			 "payload" varchar, "aggregate" varchar NOT NULL, "aggregate_identifier" varchar NOT NULL,
			 "created_at" datetime(6) NOT NULL, "updated_at" datetime(6) NOT NULL)`,
			`INSERT INTO outboxes (identifier, event, payload, aggregate, aggregate_identifier, created_at, updated_at)
			 VALUES ('i', 'USER_CREATED', '{"after":{"id":7}}', 'User', '7', '2026-01-02 03:04:05.123456', '2026-01-02 03:04:05.123456')`,
			[]arrived{{
				ID: "1", Topic: "USER_CREATED", Key: "7", Payload: map[string]any{"after": map[string]any{"id": 7.0}},
				Headers: map[string]string{"identifier": "i", "aggregate": "User"},
			}},
			"true",
		},
		"symfony": {
			"preset: symfony, table: messenger_messages", "messenger_messages",
			`CREATE TABLE messenger_messages (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, body CLOB NOT NULL, headers CLOB NOT NULL,
			 queue_name VARCHAR(190) NOT NULL, created_at DATETIME NOT NULL, available_at DATETIME NOT NULL, delivered_at DATETIME DEFAULT NULL)`,
			symfonyOnSQLite,
			[]arrived{
				{ID: "1", Topic: "default", Payload: map[string]any{"orderId": 1.0}, Headers: map[string]string{"type": `App\Message`}},
				{ID: "2", Topic: "async", Bytes: []byte("O:36:x")},
			},
			"queue_name <> 'failed'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "app.db")+"?_pragma=busy_timeout(10000)")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			}()
			for _, statement := range []string{c.ddl, "ALTER TABLE " + c.table + " ADD COLUMN group_id text", c.rows} {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(dir, "events.ndjson")
			path := write(t, "admin: {listen: \"\"}\npipelines:\n  - name: p\n    source: {url: \"sqlite://"+dir+"/app.db\", "+c.source+"}\n    sink: {url: \"file://"+file+"\"}\n")
			do(t, nil, "migrate", "-c", path).want(t, 0, "p: applied", "")
			run := start(t, nil, "run", "-c", path)
			testserver.Eventually(t, func() error {
				var left int
				if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+c.table+" WHERE "+c.left).Scan(&left); err != nil || left > 0 {
					return errors.Join(err, fmt.Errorf("%d events are left", left))
				}
				return nil
			})
			run.signal(os.Interrupt)
			if code := run.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			got := arrivals(t, file)
			for i := range got {
				got[i].CreatedAt = ""
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
		})
	}
}

const symfonyOnSQLite = `INSERT INTO messenger_messages (body, headers, queue_name, created_at, available_at) VALUES
	('{"orderId":1}', '{"type":"App\\Message"}', 'default', '2026-01-02 03:04:05', '2026-01-02 03:04:05'),
	('O:36:x', '[]', 'async', '2026-01-02 03:04:05', '2026-01-02 03:04:05'),
	('{"orderId":2}', '[]', 'failed', '2026-01-02 03:04:05', '2026-01-02 03:04:05')`
