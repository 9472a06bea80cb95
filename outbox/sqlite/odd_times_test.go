package sqlite_test

import (
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestClaim_ImpossibleTime: an application may write a time that is in no calendar, and the table's CHECK accepts it in the
// versions of SQLite that most applications have (3.40 does). Such an event blocks nobody, through a retry and as a dead letter.
func TestClaim_ImpossibleTime(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := harness("outbox_events", mode).Open(t, buffertest.Options{Claim: mode})
			one := outbox.Event{Topic: "t", Payload: []byte("1")}
			ids := f.Insert(t, one, one, one, one)
			f.Exec(t, `
				PRAGMA ignore_check_constraints = ON;
				UPDATE outbox_events SET created_at = CASE id WHEN 1 THEN '2026-02-30T00:00:00.000Z' ELSE '2026-11-23T24:30:00.000Z' END WHERE id < 4;
				PRAGMA ignore_check_constraints = OFF`)
			batch := expectClaim(t, f.Buffer, 10, ids...)
			if got, want := batch.Events[1].CreatedAt, time.Date(2026, 11, 24, 0, 30, 0, 0, time.UTC); !got.Equal(want) {
				t.Errorf("created at %v, want %v", got, want)
			}
			testkit.NoError(t, f.Buffer.Settle(t.Context(), batch, []buffer.Outcome{
				{Verdict: buffer.Delivered, IDs: ids[3:]},
				{Verdict: buffer.Dead, IDs: ids[2:3], Error: "bad"},
				{Verdict: buffer.Retry, IDs: ids[:2], GroupID: buffer.NewGroupID()},
			}))
			again, err := testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
			testkit.NoError(t, err)
			if !slices.Equal(again.IDs(), ids[:2]) {
				t.Fatalf("taken over: %v, want %v", again.IDs(), ids[:2])
			}
			for i, e := range again.Events {
				if want := batch.Events[i].CreatedAt; !e.CreatedAt.Equal(want) {
					t.Errorf("event %d is created at %v at the second attempt, and was at %v", e.ID, e.CreatedAt, want)
				}
			}
			testkit.NoError(t, f.Buffer.Settle(t.Context(), again, []buffer.Outcome{{Verdict: buffer.Dead, Error: "bad"}}))
			testkit.Equal(t, "rows", len(f.Rows(t)), 0)
			dead, err := f.Buffer.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
			testkit.NoError(t, err)
			testkit.Equal(t, "dead letters", len(dead), 3)
			n, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10)
			testkit.NoError(t, err)
			testkit.Equal(t, "replayed", n, 3)
			replayed, err := testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
			testkit.NoError(t, err)
			if !slices.Equal(replayed.IDs(), ids[:3]) {
				t.Fatalf("replayed %v, want %v", replayed.IDs(), ids[:3])
			}
			for i, e := range replayed.Events {
				if want := batch.Events[i].CreatedAt; !e.CreatedAt.Equal(want) {
					t.Errorf("event %d is created at %v after its replay, and was at %v", e.ID, e.CreatedAt, want)
				}
			}
		})
	}
}

// TestCustomTable_TimeWithComma: a text that has the length of a time is none, and changes no other event's.
func TestCustomTable_TimeWithComma(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{"a,bc-de-fgThi:jk:lm.nopZ", "abcd-ef-gh ij:kl:,n"} {
		_, b := newCustom(t, `
			CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, payload, created_at TEXT, group_id TEXT);
			INSERT INTO t (payload, created_at) VALUES (1, '`+odd+`'), (2, '2024-02-03 04:05:06')`,
			sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
		batch := claimed(t, b)
		testkit.Equal(t, "created_at of the event without one", batch.Events[0].CreatedAt, batch.ClaimedAt)
		testkit.Equal(t, "created_at of the other one", batch.Events[1].CreatedAt, time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC))
	}
}
