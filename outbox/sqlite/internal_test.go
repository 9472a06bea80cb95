package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// prepared is a migrated file and a buffer on it.
func prepared(t *testing.T, mode string) *Buffer {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "app.db")
	if _, err := Migrate(t.Context(), url, SchemaConfig{Archive: defaultArchive}); err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{URL: url, Pipeline: "orders", Archive: defaultArchive})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.db.Close(); err != nil {
		t.Fatal(err)
	}
	if b.db, err = open(b.file, mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestPlans: no statement about a batch walks the whole buffer, whatever is in
// it. SQLite has gathered no statistics, and nothing makes it do so.
func TestPlans(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	for name, statement := range map[string]string{
		"pick": pickSQL, "pickFree": pickFreeSQL, "window": windowSQL, "held": heldSQL, "stampFree": stampFreeSQL, "stamp": stampSQL, "eventsOf": eventsOfSQL, "delete": deleteSQL, "bury": burySQL,
		"move": moveSQL, "openPart": openPartSQL, "look": lookSQL, "status": statusSQL, "takeOver": takeOverSQL,
		"wake": wakeSQL, "away": awaySQL, "archive": archiveSQL, "putIn": putInSQL, "replayLedger": replayLedgerSQL,
		"pickReplay": pickReplaySQL, "discard": discardSQL, "deadOpen": deadOpenSQL, "dead": deadSQL, "closeLetters": closeLettersSQL,
		"pickLetters": pickLettersSQL, "stampLetters": stampLettersSQL, "lettersOf": lettersOfSQL, "tell": tellSQL,
		"moveLetters": moveLettersSQL, "openLettersPart": openLettersPartSQL, "lookLetters": lookLettersSQL,
		"strayLetters": strayLettersSQL, "freeLetters": freeLettersSQL, "lettersStatus": lettersStatusSQL,
	} {
		plan := explain(t, b, statement)
		for _, step := range plan {
			if strings.HasPrefix(step, "SCAN outbox_events") || strings.HasPrefix(step, "SCAN outbox_batches") || strings.HasPrefix(step, "SCAN outbox_dead_letters") ||
				strings.HasPrefix(step, "SCAN d") || step == "SCAN e" || step == "SCAN l" || strings.HasPrefix(step, "USE TEMP B-TREE FOR ORDER BY") || strings.HasPrefix(step, "USE TEMP B-TREE FOR GROUP BY") {
				t.Errorf("%s: %q in the plan\n%s", name, step, strings.Join(plan, "\n"))
			}
		}
	}
}

// TestPlansOfLetters: what is closed or told may be kept for ever, and nothing
// that a relay does again and again walks over it.
func TestPlansOfLetters(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	for name, c := range map[string]struct{ statement, index string }{
		"status":        {statusSQL, "outbox_dead_letters_listed"},
		"pickReplay":    {pickReplaySQL, "outbox_dead_letters_listed"},
		"discard":       {discardSQL, "outbox_dead_letters_listed"},
		"deadOpen":      {deadOpenSQL, "outbox_dead_letters_listed"},
		"pickLetters":   {pickLettersSQL, "outbox_dead_letters_unnotified"},
		"lookLetters":   {lookLettersSQL, "outbox_dead_letters_unnotified"},
		"lettersStatus": {lettersStatusSQL, "outbox_dead_letters_unnotified"},
		"lettersOf":     {lettersOfSQL, "outbox_dead_letters_notifying"},
		"tell":          {tellSQL, "outbox_dead_letters_notifying"},
		"moveLetters":   {moveLettersSQL, "outbox_dead_letters_notifying"},
		"lettersPart":   {openLettersPartSQL, "outbox_dead_letters_notifying"},
		"strayLetters":  {strayLettersSQL, "outbox_dead_letters_notifying"},
		"freeLetters":   {freeLettersSQL, "outbox_dead_letters_notifying"},
	} {
		plan := strings.Join(explain(t, b, c.statement), "\n")
		if !strings.Contains(plan, c.index) {
			t.Errorf("%s: %s is not in the plan\n%s", name, c.index, plan)
		}
	}
}

func explain(t *testing.T, b *Buffer, statement string) (plan []string) {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+b.names.Replace(statement), arguments(statement)...)
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id, parent, unused int
			detail             string
		)
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

func arguments(statement string) []any {
	var args []any
	for strings.Contains(statement, fmt.Sprintf("?%d", 1+len(args))) {
		args = append(args, sql.NullString{})
	}
	return args
}

func TestCheckReadOnly(t *testing.T) {
	t.Parallel()
	b := prepared(t, "ro")
	for _, err := range []error{b.Check(t.Context()), b.MarkDelivered(t.Context(), &buffer.Lease{}, []int64{1})} {
		if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("got error %v, want one that says the file is read-only", err)
		}
	}
}

// TestMigrationOnce: of two processes that want to apply the same migration, one
// is refused and takes back what it did.
func TestMigrationOnce(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	store, err := database.NewStore(goose.DialectSQLite3, quote("outbox_events_migrations"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (once{store}).Insert(t.Context(), b.db, database.InsertRequest{Version: 1}); !errors.Is(err, errAppliedBefore) {
		t.Fatalf("a migration that was applied before: got error %v", err)
	}
	if err := (once{store}).Insert(t.Context(), b.db, database.InsertRequest{Version: 1000}); err != nil {
		t.Fatalf("a migration that was not applied before: %v", err)
	}
}

// TestCursor: every few minutes it is at the beginning again, and comes back from
// there as soon as nothing was found.
func TestCursor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c cursor
		at := func(want int64, due bool) {
			t.Helper()
			if got := c.from(); got != want || c.sweepDue() != due {
				t.Fatalf("the cursor is at %d, sweep due %t; want %d, %t", got, c.sweepDue(), want, due)
			}
		}
		at(0, true)
		c.sweep()
		c.claimed(0, 1000, 0)
		at(1000, false)
		c.nothingBeyond(1000)
		at(1000, false)
		<-time.After(sweepEvery)
		at(1000, true)
		c.sweep()
		at(0, false)
		c.claimed(0, 17, 0)   // somebody had taken its stamp away
		c.nothingBeyond(1000) // a look that began before the sweep
		at(17, false)
		c.nothingBeyond(17)
		at(1000, false)
		c.restart()
		at(0, false)
		c.claimed(0, 2000, 0)
		c.nothingBeyond(0) // a look that began before the claim
		at(2000, false)
		c.claimed(2000, 3000, 2101) // some in between were left behind
		at(2100, false)
		c.sweep()
		c.claimed(2100, 4000, 0) // it looked before the sweep began
		at(0, false)
		c.nothingBeyond(0)
		at(4000, false)
	})
}
