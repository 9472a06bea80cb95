package sqlite_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// The age of waiting events is measured by created_at or the column that the configuration names, claimed or not. Without one it
// is unknown, and never 0 or the time since the claim.
func TestStatus_CustomAges(t *testing.T) {
	t.Parallel()
	const ago = "DEFAULT (datetime('now', '-3 hours'))"
	for name, try := range map[string]struct {
		columns, created string
		known            bool
	}{
		"created_at": {", Created_At TEXT " + ago, "", true},
		"configured": {`, "insertedAt" TEXT ` + ago + ", created_at TEXT DEFAULT CURRENT_TIMESTAMP", "insertedAt", true},
		"none":       {", inserted_at TEXT " + ago, "", false},
	} {
		db, b := newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, payload"+try.columns+", group_id TEXT)",
			sqlite.Config{Custom: buffer.CustomTable{CreatedAt: try.created, Project: byKey}})
		run(t, db, "INSERT INTO t (payload) VALUES ('{}'), ('{}')")
		for _, when := range []string{"waiting", "claimed"} {
			s, err := b.Status(t.Context())
			testkit.NoError(t, err)
			if age := s.OldestPending; s.AgeUnknown == try.known || try.known && (age < 3*time.Hour-time.Minute || age > 3*time.Hour+5*time.Minute) || !try.known && age != 0 {
				t.Errorf("%s, %s: the age is %v, unknown %t", name, when, age, s.AgeUnknown)
			}
			if when == "waiting" {
				if batch := claimed(t, b); try.known && batch.ClaimedAt.Sub(batch.Events[0].CreatedAt) < 2*time.Hour {
					t.Errorf("%s: created at %v, claimed at %v", name, batch.Events[0].CreatedAt, batch.ClaimedAt)
				}
			}
		}
		warns := false
		for _, f := range b.Diagnose(t.Context()) {
			warns = warns || strings.Contains(f.Text, "the age of waiting events is unknown")
		}
		if warns == try.known {
			t.Errorf("%s: doctor warns: %t", name, warns)
		}
	}
}
