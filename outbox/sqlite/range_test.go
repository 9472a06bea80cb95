package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

var byRange = buffertest.Options{Claim: buffer.ClaimRange}

func ones(n int) []outbox.Event {
	return slices.Repeat([]outbox.Event{{Topic: "t", Payload: []byte("1")}}, n)
}

func claim(t *testing.T, b buffer.Buffer, limit int) *buffer.Lease {
	t.Helper()
	batch, err := b.Claim(t.Context(), limit, time.Hour)
	testkit.NoError(t, err)
	if batch == nil {
		t.Fatal("nothing was claimed")
	}
	return batch
}

func deliver(t *testing.T, b buffer.Buffer, batch *buffer.Lease) {
	t.Helper()
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

func expectIDs(t *testing.T, what string, got, want []int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// TestRange_HoldsExactIDs: an event that appears between a batch's first and last id is not part
// of it.
func TestRange_HoldsExactIDs(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimRange).Open(t, byRange)
	f.Insert(t, ones(10)...)
	f.Exec(t, "DELETE FROM outbox_events WHERE id IN (3, 7)")
	first, last := claim(t, f.Buffer, 4), claim(t, f.Buffer, 4)
	expectIDs(t, "first batch", first.IDs(), []int64{1, 2, 4, 5})
	expectIDs(t, "last batch", last.IDs(), []int64{6, 8, 9, 10})
	f.Exec(t, "INSERT INTO outbox_events (id, topic, payload, created_at) VALUES (3, 'old', '3', '2020-01-02T03:04:05.678Z'), (7, 'old', '7', '2020-01-02T03:04:05.678Z')")

	f.ExpireLease(t, first.GroupID, time.Second)
	first, err := testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
	testkit.NoError(t, err)
	expectIDs(t, "first batch taken over", first.IDs(), []int64{1, 2, 4, 5})
	backlog, err := f.Second(t).CountBacklog(t.Context(), 10)
	testkit.NoError(t, err)
	if backlog.Unclaimed != 2 {
		t.Fatalf("backlog %+v, want the two that were given ids by hand", backlog)
	}
	late := claim(t, f.Second(t), 10)
	expectIDs(t, "claimed between", late.IDs(), []int64{3, 7})
	deliver(t, f.Buffer, first)
	deliver(t, f.Buffer, last)
	expectIDs(t, "left", rowIDs(t, f), []int64{3, 7})
	deliver(t, f.Buffer, late)
	expectIDs(t, "left", rowIDs(t, f), nil)
}

func rowIDs(t *testing.T, f *buffertest.Fixture) (ids []int64) {
	t.Helper()
	for _, r := range f.Rows(t) {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestRange_IDsHandedOutAgain: after the buffer was emptied and its sequence set back, new events
// with old ids are not part of a live batch.
func TestRange_IDsHandedOutAgain(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimRange).Open(t, buffertest.Options{Claim: buffer.ClaimRange, Archive: true})
	f.Insert(t, ones(6)...)
	delivered, dead, taken := claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2)
	f.Exec(t, "DELETE FROM outbox_events")
	f.Exec(t, "DELETE FROM sqlite_sequence WHERE name = 'outbox_events'")
	for range 6 {
		f.Exec(t, "INSERT INTO outbox_events (topic, payload, created_at) VALUES ('new', '2', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 seconds'))")
	}
	deliver(t, f.Buffer, delivered)
	testkit.NoError(t, f.Buffer.Settle(t.Context(), dead, []buffer.Outcome{
		{Verdict: buffer.Dead, IDs: dead.IDs()[:1], Error: "refused"},
		{Verdict: buffer.Retry, IDs: dead.IDs()[1:], GroupID: buffer.NewGroupID()},
	}))
	if dead, archived := f.Dead(t), f.Archived(t); len(dead) != 0 || len(archived) != 0 {
		t.Fatalf("buried %v, archived %v: events that were never sent", dead, archived)
	}
	f.ExpireLease(t, taken.GroupID, time.Second)
	taken, err := testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
	testkit.NoError(t, err)
	expectIDs(t, "taken over", taken.IDs(), []int64{})
	deliver(t, f.Buffer, taken)
	if ledger := f.Ledger(t); len(ledger) != 0 {
		t.Fatalf("the ledger has %+v", ledger)
	}
	expectIDs(t, "claimed then", claim(t, f.Second(t), 10).IDs(), []int64{1, 2, 3, 4, 5, 6})
}

// TestRange_UnreadableMembers: a ledger row with unreadable members holds no events.
func TestRange_UnreadableMembers(t *testing.T) {
	t.Parallel()
	for _, members := range []string{"", "[", "{}", "[[1]]", "[[2, 1]]", "[[2, 3], [1, 1]]", "[[1, 2], [2, 3]]", "[[1, 9000000000000000000]]", `[["1", 2]]`, "[[-9223372036854775808, 9223372036854775807]]"} {
		f := harness("outbox_events", buffer.ClaimRange).Open(t, byRange)
		f.Insert(t, ones(3)...)
		spoilt := claim(t, f.Buffer, 10)
		f.Exec(t, "UPDATE outbox_batches SET members = '"+members+"'")
		f.ExpireLease(t, spoilt.GroupID, time.Second)
		taken, err := testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
		testkit.NoError(t, err)
		if members != "[[1]]" { // which is one event to JSON: a missing number is 0
			expectIDs(t, "held by "+members, taken.IDs(), []int64{})
		}
		deliver(t, f.Buffer, taken)
		expectIDs(t, "claimed after "+members, claim(t, f.Second(t), 10).IDs(), []int64{1, 2, 3})
	}
}

// TestClaim_ChangesMode: each mode changes to each other one once no batch is live, and claims
// fail until then.
func TestClaim_ChangesMode(t *testing.T) {
	t.Parallel()
	asked := []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange}
	for _, from := range asked {
		for _, to := range append(slices.Clone(asked), buffer.ClaimAuto) {
			if from == to || from == buffer.ClaimRange && to == buffer.ClaimAuto {
				continue
			}
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				t.Parallel()
				changeMode(t, from, to)
			})
		}
	}
}

func changeMode(t *testing.T, from, to buffer.ClaimMode) {
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	stored := func(want buffer.ClaimMode) {
		t.Helper()
		var mode string
		testkit.NoError(t, db.QueryRow("SELECT claim FROM outbox_buffers").Scan(&mode))
		if mode != string(want) {
			t.Fatalf("the mode is %q, want %q", mode, want)
		}
	}
	open := func(mode buffer.ClaimMode) *sqlite.Buffer {
		b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Claim: mode})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, b.Close()) })
		return b
	}
	exec(t, db, strings.Repeat("INSERT INTO outbox_events (topic, payload) VALUES ('t', '1');", 6))
	before, after := open(from), open(to)
	seen := map[int64]uuid.UUID{}
	note := func(b *buffer.Lease) {
		t.Helper()
		for _, id := range b.IDs() {
			if other, twice := seen[id]; twice {
				t.Fatalf("event %d is in %s and in %s", id, other, b.GroupID)
			}
			seen[id] = b.GroupID
		}
	}
	live := claim(t, before, 2)
	note(live)
	stored(from)
	testkit.NoError(t, after.Check(t.Context())) // live batches must still be sent
	if to == buffer.ClaimAuto {
		if got := after.ClaimMode(); got != from {
			t.Errorf("got claim mode %q; want %q", got, from)
		}
		followed := claim(t, after, 2)
		note(followed)
		stored(from)
		deliver(t, before, followed)
		to = buffer.ClaimRange
	} else {
		_, err := after.Claim(t.Context(), 2, time.Hour)
		expectNotReady(t, err, fmt.Sprintf("claimed by %q; this relay would claim by %q", from, to))
		stored(from)
	}
	deliver(t, after, live) // any relay can: the ledger row has the claim mode
	changed := claim(t, after, 1)
	note(changed)
	stored(to)
	_, err := before.Claim(t.Context(), 2, time.Hour)
	expectNotReady(t, err, fmt.Sprintf("claimed by %q; this relay would claim by %q", to, from))
	deliver(t, before, changed)
	last := claim(t, before, 10) // and back
	note(last)
	stored(from)
	deliver(t, after, last)
	if len(seen) != 6 {
		t.Fatalf("%d events were claimed, want all 6", len(seen))
	}
	audit, err := after.Audit(t.Context())
	testkit.NoError(t, err)
	if audit != (buffer.Audit{}) {
		t.Fatalf("left is %+v", audit)
	}
}
