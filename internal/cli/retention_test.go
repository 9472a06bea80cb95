package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// A relay is killed while it deletes old events of the archive, and while it delivers: what is old goes, and nothing else.
func TestKill9_Retention(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, testKill9Retention)
}

func testKill9Retention(t *testing.T, db *database) {
	t.Helper()
	stream := redisStream(t)
	path := write(t, fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: orders\n    source: {url: %q}\n    archive: {table: kept, keep: 1d}\n    lease: 1s\n    sink: {url: %q}\n",
		db.url, stream.url))
	const old, events = 24_000, 30_000
	do(t, nil, "migrate", "-c", path)
	db.insert(events)
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM kept"); n != events {
			return fmt.Errorf("%d events are archived, want %d", n, events)
		}
		return nil
	})
	r.signal(os.Interrupt)
	r.exit()
	db.exec(fmt.Sprintf("UPDATE kept SET archived_at = '2026-01-02T03:04:05.678Z' WHERE id <= %d", old))
	left := 0
	for range 3 {
		left = db.count("SELECT count(*) FROM kept WHERE archived_at < '2026-01-03'")
		db.insert(500)
		r := start(t, nil, "run", "-c", path)
		testserver.Eventually(t, func() error {
			if n := db.count("SELECT count(*) FROM kept WHERE archived_at < '2026-01-03'"); n > left-2000 && n > 0 {
				return fmt.Errorf("%d of %d old events are left", n, left)
			}
			return nil
		})
		r.signal(os.Kill)
		r.exit()
	}
	r = start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		n, kept := db.count("SELECT count(*) FROM kept WHERE archived_at < '2026-01-03'"), db.count("SELECT count(*) FROM kept")
		if n > 0 || kept != events-old+1500 {
			return fmt.Errorf("%d events are in the archive, %d of them old, want %d", kept, n, events-old+1500)
		}
		return nil
	})
	r.signal(os.Interrupt)
	r.exit()
	if !strings.Contains(r.stderr.String(), "deleted old events of the archive") {
		t.Errorf("the log does not say it: %s", r.stderr.String())
	}
	if n := db.count("SELECT count(*) FROM kept WHERE id > 24000 AND id <= 30000"); n != events-old {
		t.Errorf("%d events are kept, want %d", n, events-old)
	}
	if n := db.count("SELECT count(*) FROM outbox_events") + db.count("SELECT count(*) FROM outbox_batches"); n != 0 {
		t.Errorf("%d rows are left in buffer and ledger", n)
	}
}
