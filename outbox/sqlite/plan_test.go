package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
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
	if b.db, err = db.Open(b.file, mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// SQLite has gathered no statistics, and nothing makes it do so.
func TestPlans_ReadNoWholeTable(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	for name, statement := range map[string]string{
		"pick": pickSQL, "pickDue": pickDueSQL, "keysOfIDs": keysOfIDsSQL, "renumbered": renumberedSQL, "availableAt": availableAtSQL, "pickFree": pickFreeSQL, "liveMembers": liveMembersSQL, "stamp": stampSQL, "eventsOf": eventsOfSQL, "delete": deleteSQL, "bury": burySQL,
		"regroup": regroupSQL, "openPart": openPartSQL, "countBacklog": countBacklogSQL, "status": statusSQL, "takeOver": takeOverSQL,
		"retryNow": retryNowSQL, "deferredAddresses": deferredAddressesSQL, "archive": archiveSQL, "putBack": putBackSQL, "openReplayed": openReplayedSQL,
		"pickReplay": pickReplaySQL, "discard": discardSQL, "listOpen": listOpenSQL, "listAll": listAllSQL, "closeReplayed": closeReplayedSQL,
		"pickDeadLetters": pickDeadLettersSQL, "stampDeadLetters": stampDeadLettersSQL, "deadLettersOf": deadLettersOfSQL, "markNotified": markNotifiedSQL,
		"regroupDeadLetters": regroupDeadLettersSQL, "openQueuePart": openQueuePartSQL, "countQueue": countQueueSQL,
		"hasOrphaned": hasOrphanedSQL, "releaseOrphaned": releaseOrphanedSQL, "queueStatus": queueStatusSQL,
		"claimMembers": claimMembersSQL, "unroutedFence": unroutedFenceSQL, "openRow": openRowSQL, "join": joinSQL, "countSink": countSinkSQL, "sinkStatus": sinkStatusSQL,
		"topicsOf": topicsOfSQL, "holders": holdersSQL, "openJoined": openJoinedSQL, "existing": existingSQL, "takeOverEnding": takeOverEndingSQL, "ending": endingSQL,
		"wakeKept": wakeKeptSQL, "moveBatches": moveBatchesSQL,
		"turns": turnsSQL, "nextSeq": nextSeqSQL, "keyed": keyedSQL, "cut": cutSQL, "cutRest": cutRestSQL, "number": numberSQL,
		"fillHeld": fillHeldSQL, "fillEvents": fillEventsSQL, "fillShare": fillShareSQL, "fillMark": fillMarkSQL, "fillPage": fillPageSQL, "fillPut": putArchivedSQL,
	} {
		plan := explain(t, b, statement)
		for _, step := range plan {
			if strings.HasPrefix(step, "SCAN outbox_events") || strings.HasPrefix(step, "SCAN outbox_batches") || strings.HasPrefix(step, "SCAN outbox_dead_letters") ||
				strings.HasPrefix(step, "SCAN d") || step == "SCAN p" || step == "SCAN e" || step == "SCAN l" || strings.HasPrefix(step, "USE TEMP B-TREE FOR ORDER BY") || strings.HasPrefix(step, "USE TEMP B-TREE FOR GROUP BY") {
				t.Errorf("%s: %q in the plan\n%s", name, step, strings.Join(plan, "\n"))
			}
		}
	}
}

// Closed and notified dead letters may be kept for ever; nothing that a relay does regularly reads them.
func TestPlans_UseDeadLetterIndexes(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	for name, c := range map[string]struct{ statement, index string }{
		"status":             {statusSQL, "outbox_dead_letters_listed"},
		"pickReplay":         {pickReplaySQL, "outbox_dead_letters_listed"},
		"pickRouted":         {pickRoutedSQL, "outbox_dead_letters_listed"},
		"discard":            {discardSQL, "outbox_dead_letters_listed"},
		"listOpen":           {listOpenSQL, "outbox_dead_letters_listed"},
		"pickDeadLetters":    {pickDeadLettersSQL, "outbox_dead_letters_unnotified"},
		"countQueue":         {countQueueSQL, "outbox_dead_letters_unnotified"},
		"queueStatus":        {queueStatusSQL, "outbox_dead_letters_unnotified"},
		"deadLettersOf":      {deadLettersOfSQL, "outbox_dead_letters_notifying"},
		"markNotified":       {markNotifiedSQL, "outbox_dead_letters_notifying"},
		"regroupDeadLetters": {regroupDeadLettersSQL, "outbox_dead_letters_notifying"},
		"openQueuePart":      {openQueuePartSQL, "outbox_dead_letters_notifying"},
		"hasOrphaned":        {hasOrphanedSQL, "outbox_dead_letters_notifying"},
		"releaseOrphaned":    {releaseOrphanedSQL, "outbox_dead_letters_notifying"},
	} {
		plan := strings.Join(explain(t, b, c.statement), "\n")
		if !strings.Contains(plan, c.index) {
			t.Errorf("%s: %s is not in the plan\n%s", name, c.index, plan)
		}
	}
}

// A million delayed events may wait; nothing that a relay does regularly reads them.
func TestPlans_UseDelayedIndex(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	for name, c := range map[string]struct{ statement, step string }{
		"dueAt":        {dueAtSQL, "USING INDEX outbox_events_delayed (available_at=? AND group_id=? AND rowid>?)"},
		"dueAfter":     {dueAfterSQL, "USING INDEX outbox_events_delayed (available_at>? AND available_at<?)"},
		"nextDelayed":  {nextDelayedSQL, "USING COVERING INDEX outbox_events_delayed (available_at>?)"},
		"pendingDue":   {pendingDueSQL, "USING COVERING INDEX outbox_events_delayed (available_at>? AND available_at<?)"},
		"countDelayed": {countDelayedSQL, "USING COVERING INDEX outbox_events_delayed (available_at>?)"},
		"countIndex":   {countIndexSQL, "USING COVERING INDEX outbox_events_delayed (available_at>?)"},
		"farDelayed":   {farDelayedSQL, "USING COVERING INDEX outbox_events_delayed (available_at>?)"},
	} {
		plan := strings.Join(explain(t, b, c.statement), "\n")
		if !strings.Contains(plan, c.step) || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("%s: %q is not in the plan, or it sorts\n%s", name, c.step, plan)
		}
	}
}

// TestDelayed_CursorStays: delayed events before the cursor do not move it back to the beginning.
func TestDelayed_CursorStays(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	exec := func(statement string) {
		t.Helper()
		if _, err := b.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec("INSERT INTO outbox_events (topic, payload, available_at) VALUES ('t', '1', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 day')), ('t', '2', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 day'))")
	for _, want := range []int64{2, 2, 2, 2} { // the first count sweeps
		if _, err := b.CountBacklog(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		if at := b.cursor.Position(); at != want {
			t.Fatalf("the cursor is at %d, want %d", at, want)
		}
		behind := true
		err := b.read(t.Context(), "test", func(tx transaction) (err error) {
			behind, err = b.behind(t.Context(), tx, want)
			return err
		})
		if err != nil || behind {
			t.Fatalf("a count would begin at the beginning: %v, %v", behind, err)
		}
	}
	exec("INSERT INTO outbox_events (topic, payload, available_at) VALUES ('t', '3', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 day')), ('t', '4', NULL)")
	if n, err := b.CountBacklog(t.Context(), 10); err != nil || n.Unclaimed != 1 {
		t.Fatalf("counted %+v, %v", n, err)
	}
	if at := b.cursor.Position(); at != 3 {
		t.Fatalf("the cursor is at %d, just before the first event that is fresh", at)
	}
}

func explain(t *testing.T, b *Buffer, statement string) (plan []string) {
	t.Helper()
	rows, err := b.db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+names(defaultTable, defaultArchive).Replace(statement), arguments(statement)...)
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

func TestCheck_ReadOnlyFile(t *testing.T) {
	t.Parallel()
	b := prepared(t, "ro")
	for _, err := range []error{b.Check(t.Context()), b.MarkDelivered(t.Context(), &buffer.Lease{}, []int64{1})} {
		if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("got error %v, want one that says the file is read-only", err)
		}
	}
}

// Of two processes that apply the same migration, one is rejected and rolls back.
func TestMigrate_AppliesOnce(t *testing.T) {
	t.Parallel()
	b := prepared(t, "rw")
	store, err := database.NewStore(goose.DialectSQLite3, db.Quote("outbox_events_migrations"))
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
