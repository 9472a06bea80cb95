package sqlite_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestOwnership: a pipeline with another name claims nothing from a buffer, until it gets the buffer and the dead letters.
func TestOwnership(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	open := func(pipeline string) *sqlite.Buffer {
		b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: pipeline})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		return b
	}
	exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2'), ('t', '3'), ('t', '4')")
	old, same, b := open("orders"), open("orders"), open("new-orders")
	dead := claim(t, old, 1)
	testkit.NoError(t, old.Settle(t.Context(), dead, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
	abandoned := claim(t, same, 1)
	exec(t, db, "UPDATE outbox_batches SET due_at = '2020-01-02T03:04:05.678Z'")

	testkit.NoError(t, b.Check(t.Context()))
	refused := map[string]error{}
	_, refused["claim"] = b.Claim(t.Context(), 10, time.Minute)
	_, refused["take over"] = testkit.TakeOver(t.Context(), b, time.Minute)
	_, refused["count"] = b.CountBacklog(t.Context(), 10)
	_, refused["claim dead letters"] = b.DeadLetterQueue().Claim(t.Context(), 10, time.Minute)
	for what, err := range refused {
		if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "pipeline orders owns buffer outbox_events since 20") ||
			!strings.Contains(err.Error(), "relay migrate --rename-pipeline orders -c relay.yaml") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if text := findings(t, b, "owner"); !strings.Contains(text, "error ") {
		t.Errorf("doctor: %q", text)
	}

	r, err := b.Rename(t.Context(), "orders")
	testkit.NoError(t, err)
	testkit.Equal(t, "renamed", r, buffer.Renamed{Owner: true, Owns: true, Letters: 1})
	testkit.Equal(t, "claimed", claim(t, b, 10).Len(), 2)
	taken, err := testkit.TakeOver(t.Context(), b, time.Minute)
	testkit.NoError(t, err)
	expectIDs(t, "taken over", taken.IDs(), abandoned.IDs())
	letters, err := b.DeadLetterQueue().Claim(t.Context(), 10, time.Minute)
	testkit.NoError(t, err)
	expectIDs(t, "dead letters for the hook", letters.IDs(), dead.IDs())
	if _, err := old.Claim(t.Context(), 10, time.Minute); !errors.Is(err, buffer.ErrNotReady) {
		t.Errorf("the old name claims: %v", err)
	}
}

// TestOwnership_OrphanedLetters: doctor and run name open dead letters that no pipeline looks after.
func TestOwnership_OrphanedLetters(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
	testkit.NoError(t, b.Settle(t.Context(), claim(t, b, 1), []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
	exec(t, db, "UPDATE outbox_dead_letters SET pipeline = 'before'")
	for what, text := range map[string]string{
		"doctor": findings(t, b, "dead letters"), "run": strings.Join(b.Warnings(t.Context()), "\n"),
	} {
		if !strings.Contains(text, "1 open dead letters belong to pipeline before") || !strings.Contains(text, "--rename-pipeline before") {
			t.Errorf("%s: %q", what, text)
		}
	}
	r, err := b.Rename(t.Context(), "before")
	testkit.NoError(t, err)
	testkit.Equal(t, "renamed", r, buffer.Renamed{Owns: true, Letters: 1})
	testkit.Equal(t, "warnings", len(b.Warnings(t.Context())), 0)
}

func findings(t *testing.T, b buffer.Diagnoser, subject string) (text string) {
	t.Helper()
	for _, f := range b.Diagnose(context.WithoutCancel(t.Context())) {
		if f.Subject == subject {
			text += f.Level.String() + " " + f.Text + ": " + f.Fix + "\n"
		}
	}
	return text
}

// TestNumbering: the ids begin again while the relay is idle, and have passed its cursor when it looks again: the next
// count finds them.
func TestNumbering(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := harness("outbox_events", mode).Open(t, byRange)
			count := func() int {
				backlog, err := f.Buffer.CountBacklog(t.Context(), 1000)
				testkit.NoError(t, err)
				return backlog.Unclaimed
			}
			f.Insert(t, ones(100)...)
			deliver(t, f.Buffer, claim(t, f.Buffer, 1000))
			count()
			f.Exec(t, "DELETE FROM outbox_events")
			f.Exec(t, "DELETE FROM sqlite_sequence WHERE name = 'outbox_events'")
			for range 2 { // the cursor does not go back to where it was
				ids := f.Insert(t, ones(75)...)
				testkit.Equal(t, "counted", count(), len(ids))
				batch := claim(t, f.Buffer, 1000)
				if !slices.Equal(batch.IDs(), ids) {
					t.Errorf("claimed %v, want %v", batch.IDs(), ids)
				}
				deliver(t, f.Buffer, batch)
			}
		})
	}
}
