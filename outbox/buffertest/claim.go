package buffertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var claimCases = []testCase{
	{name: "claim/takes events in id order up to the limit", run: claimInOrder},
	{name: "claim/writes nothing on an empty buffer", run: claimNothing},
	{name: "claim/writes the ledger row and the lease", run: claimLedger},
	{name: "claim/ids are never handed out twice", run: claimNewIDs},
	{name: "claim/returns JSON events byte for byte", run: claimFieldsJSON},
	{name: "claim/returns opaque events byte for byte", run: claimFieldsBytes},
	{name: "claim/gives no event to two claimers", run: claimTogether},
	{name: "claim/ignores rolled back events", run: claimRolledBack},
	{name: "claim/finds late commits", rowLocksOnly: true, run: claimLate},
	{name: "claim/skips locked events and takes them later", rowLocksOnly: true, stampOnly: true, run: claimLocked},
	{name: "claim/separates pipelines in one database", run: claimNeighbours},
	{name: "claim/rejects another claim mode", run: claimOtherMode},
}

func claimInOrder(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(25)...)
	if !slices.IsSorted(ids) {
		t.Fatalf("the fixture's ids are not in order: %v", ids)
	}
	for _, want := range [][]int64{ids[:10], ids[10:20], ids[20:]} {
		b := claim(t, f.Buffer, 10)
		equal(t, "events claimed", b.IDs(), want)
		equal(t, "FirstID", b.FirstID, want[0])
		equal(t, "LastID", b.LastID, want[len(want)-1])
		equal(t, "pipeline", b.Pipeline, f.Pipeline)
	}
	claimNone(t, f.Buffer)
	more := f.Insert(t, orders(1)...)
	equal(t, "events claimed", claim(t, f.Buffer, 10).IDs(), more)
}

func claimNothing(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	claimNone(t, f.Buffer)
	takeOverNone(t, f.Buffer)
	empty(t, f)
}

func claimLedger(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	before := time.Now()
	b := claim(t, f.Buffer, 10)
	after := time.Now()

	if b.GroupID.Version() != 7 {
		t.Fatalf("group_id %s is of version %d, want 7", b.GroupID, b.GroupID.Version())
	}
	equal(t, "lease_no", b.LeaseNo, int64(1))
	equal(t, "starts", b.UnfinishedLeases, 1)
	equal(t, "attempts and outages", []int{b.Attempts, b.Outages}, []int{0, 0})
	equal(t, "origins", b.Origins, []uuid.UUID(nil))
	if b.DeliveryRecorded() {
		t.Fatalf("a fresh batch is marked delivered: %v", b.Delivered)
	}
	if b.Ends.Before(before.Add(lease-time.Second)) || b.Ends.After(after.Add(lease)) {
		t.Fatalf("the lease ends %v after the claim, want %v", b.Ends.Sub(before), lease)
	}
	if b.ClaimedLocal.Before(before) || b.ClaimedLocal.After(after) {
		t.Fatalf("ClaimedLocal is %v, the claim was between %v and %v", b.ClaimedLocal, before, after)
	}
	about(t, "age of a fresh event", b.Age(&b.Events[0]), 0)
	if b.ClaimedAt.Before(b.Events[2].CreatedAt) {
		t.Fatalf("claimed at %v, before the event's %v", b.ClaimedAt, b.Events[2].CreatedAt)
	}

	ledger := f.Ledger(t)
	equal(t, "ledger rows", len(ledger), 1)
	row := ledger[0]
	about(t, "due_at", row.DueIn, lease)
	if !row.OldestAt.Equal(b.Events[0].CreatedAt) {
		t.Fatalf("oldest_at is %v, want %v", row.OldestAt, b.Events[0].CreatedAt)
	}
	about(t, "claimed_at", row.ClaimedAt.Sub(b.ClaimedAt), 0)
	if row.Owner == "" || row.Buffer == "" || row.Claim == "" {
		t.Fatalf("owner %q, buffer %q and claim %q of the ledger row must not be empty", row.Owner, row.Buffer, row.Claim)
	}
	equal(t, "ledger row", row, LedgerRow{
		GroupID: b.GroupID, Buffer: row.Buffer, Claim: row.Claim, State: "leased", LeaseNo: 1, DueIn: row.DueIn,
		Owner: row.Owner, UnfinishedLeases: 1, Events: 3, FirstID: ids[0], LastID: ids[2],
		OldestAt: row.OldestAt, ClaimedAt: row.ClaimedAt,
	})
}

func text(s string) *string { return &s }

// asWritten has JSON that a database may read and write anew in other words.
var asWritten = outbox.Event{
	Topic: "t", Payload: []byte("{\"b\" :1.0e2,\n\t\"a\":[ 1.00 ],\"b\":2, \"c\": \"\\u0041\\u0000\\/\"}\n"),
	Headers: outbox.Headers(`{"b" :"\u0041","a":"1"}`),
}

func claimFieldsJSON(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	fieldsSurvive(t, f, true, []outbox.Event{
		{Topic: "orders.created", Payload: []byte(`{"a": 1, "b": [true, null, "x"]}`), Headers: outbox.Headers(`{"trace": "00-ab"}`)},
		{Topic: "t", Key: text(""), Payload: []byte(`{}`), Headers: outbox.Headers(`{}`)},
		{Topic: "t", Key: text("customer-7"), Payload: []byte(`"a string"`)},
		{Topic: "größe.変更.📦", Key: text("κλειδί '\"\\"), Payload: []byte(`{"name": "Ünïcödé 変更 📦 \" \\ \n"}`), Headers: outbox.Headers(`{"é": "ü 📦"}`)},
		{Topic: "t", Payload: []byte(`12345678901234567890123456789012345678901234567890`)},
		{Topic: "t", Payload: []byte(`0.12345678901234567890123456789`)},
		{Topic: "t", Payload: []byte(`null`)},
		{Topic: "t", Payload: []byte(`[]`)},
		asWritten,
		{Topic: "t", Payload: []byte(`"` + strings.Repeat("long ", 200_000) + `"`)},
	})
}

func claimFieldsBytes(t *testing.T, h Harness) {
	f := h.Open(t, Options{Bytes: true})
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	fieldsSurvive(t, f, false, []outbox.Event{
		{Topic: "t", Payload: all, Key: text("k"), Headers: outbox.Headers(`{"content-type": "application/x-protobuf"}`)},
		{Topic: "t", Payload: []byte{}},
		{Topic: "t", Payload: []byte{0}},
		{Topic: "t", Payload: []byte(`{"a":1,"a":2}`)},
		{Topic: "t", Payload: []byte("\xff\xfe")},
	})
}

// fieldsSurvive expects the same events from a claim, from a take over and
// from a take over of a part that was put back.
func fieldsSurvive(t *testing.T, f *Fixture, isJSON bool, events []outbox.Event) {
	ids := f.Insert(t, events...)
	b := claim(t, f.Buffer, 100)
	sameEvents(t, "claimed", b, isJSON, ids, events)
	b = lose(t, f, b, f.Buffer)
	sameEvents(t, "taken over", b, isJSON, ids, events)
	part := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(ids[0]), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:], GroupID: part})
	sameEvents(t, "split and taken over", takeOver(t, f.Buffer), isJSON, ids[1:], events[1:])
}

func sameEvents(t *testing.T, what string, b *buffer.Lease, isJSON bool, ids []int64, want []outbox.Event) {
	t.Helper()
	equal(t, what+": PayloadIsJSON", b.PayloadIsJSON, isJSON)
	equal(t, what+": ids", b.IDs(), ids)
	for i, got := range b.Events {
		what := fmt.Sprintf("%s: event %d: ", what, i)
		equal(t, what+"topic", got.Topic, want[i].Topic)
		equal(t, what+"key", got.Key, want[i].Key)
		if got.Payload == nil || string(got.Payload) != string(want[i].Payload) {
			t.Fatalf("%spayload is %.100q, want %.100q", what, got.Payload, want[i].Payload)
		}
		if (got.Headers == nil) != (want[i].Headers == nil) || string(got.Headers) != string(want[i].Headers) {
			t.Fatalf("%sheaders are %q, want %q", what, got.Headers, want[i].Headers)
		}
		if got.CreatedAt.Location() != time.UTC {
			t.Fatalf("%screated_at is in %v, want UTC", what, got.CreatedAt.Location())
		}
		about(t, what+"age", time.Since(got.CreatedAt), 0)
	}
}

// claimTogether empties one table with eight goroutines on two buffers, and checks every id.
func claimTogether(t *testing.T, h Harness) {
	const events, claimers = 5000, 8
	f := h.Open(t, Options{})
	var ids []int64
	for range events / 500 {
		ids = append(ids, f.Insert(t, orders(500)...)...)
	}
	buffers := []buffer.Buffer{f.Buffer, f.Second(t)}

	var (
		mu      sync.Mutex
		claimed = map[int64]uuid.UUID{}
	)
	note := func(b *buffer.Lease) error {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range b.IDs() {
			if other, twice := claimed[id]; twice {
				return fmt.Errorf("event %d went to %s and to %s", id, other, b.GroupID)
			}
			claimed[id] = b.GroupID
		}
		return nil
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(claimed) == events
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for i := range claimers {
		g.Go(func() error {
			from := buffers[i%2]
			for !all() {
				b, err := from.Claim(ctx, 37, lease)
				if err != nil {
					return err
				}
				if b == nil {
					continue // others hold the remaining events
				}
				if err := note(b); err != nil {
					return err
				}
				if err := from.Settle(ctx, b, []buffer.Outcome{delivered()}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ok(t, "claiming together", g.Wait())
	for _, id := range ids {
		if _, found := claimed[id]; !found {
			t.Fatalf("event %d was never claimed", id)
		}
	}
	empty(t, f)
}

func claimRolledBack(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	tx := f.Begin(t)
	tx.Insert(t, orders(3)...)
	tx.Rollback(t)
	claimNone(t, f.Buffer)
	ids := f.Insert(t, orders(2)...)
	equal(t, "events claimed", claim(t, f.Buffer, 10).IDs(), ids)
	claimNone(t, f.Buffer)
}

func claimNewIDs(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	var last int64
	for range 3 {
		ids := f.Insert(t, orders(2)...)
		if ids[0] <= last {
			t.Fatalf("id %d was handed out after %d had been used", ids[0], last)
		}
		last = ids[1]
		settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
		empty(t, f)
	}
}

func claimLate(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	late, gone := f.Begin(t), f.Begin(t)
	defer late.Rollback(t)
	defer gone.Rollback(t)
	first := f.Insert(t, orders(1)...)
	lateIDs := late.Insert(t, orders(2)...)
	goneIDs := gone.Insert(t, orders(2)...)
	last := f.Insert(t, orders(1)...)

	b := claim(t, f.Buffer, 10)
	equal(t, "events claimed around the open transactions", b.IDs(), []int64{first[0], last[0]})
	late.Commit(t)
	gone.Rollback(t)

	// Settling must not delete the late events between first and last.
	settle(t, f.Buffer, b, delivered())
	equal(t, "rows left", rowIDs(t, f), lateIDs)

	var got []int64
	eventually(t, "claim of events committed late", func(ctx context.Context) bool {
		b, err := f.Buffer.Claim(ctx, 10, lease)
		ok(t, "Claim", err)
		if b != nil {
			got = append(got, b.IDs()...)
			settle(t, f.Buffer, b, delivered())
		}
		return len(got) >= len(lateIDs)
	})
	equal(t, "events claimed late (rolled back were "+fmt.Sprint(goneIDs)+")", got, lateIDs)
	empty(t, f)
}

func claimLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(5)...)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id IN (%d, %d)", f.Table, ids[0], ids[2]))

	equal(t, "events claimed around the locks", claim(t, f.Buffer, 10).IDs(), []int64{ids[1], ids[3], ids[4]})
	tx.Rollback(t)
	var got []int64
	eventually(t, "claim of events that were locked", func(ctx context.Context) bool {
		b, err := f.Buffer.Claim(ctx, 10, lease)
		ok(t, "Claim", err)
		if b != nil {
			got = append(got, b.IDs()...)
		}
		return len(got) >= 2
	})
	equal(t, "events claimed after the locks", got, []int64{ids[0], ids[2]})
}

func claimNeighbours(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	if n.Pipeline == f.Pipeline || n.Table == f.Table {
		t.Fatalf("the fixture's neighbour is not another pipeline on another table")
	}
	mine := f.Insert(t, orders(2)...)
	claimNone(t, n.Buffer)
	theirs := n.Insert(t, orders(3)...)

	b := claim(t, f.Buffer, 10)
	equal(t, "events claimed", b.IDs(), mine)
	f.ExpireLease(t, b.GroupID, time.Second)
	takeOverNone(t, n.Buffer)
	backlog, err := n.Buffer.CountBacklog(t.Context(), 10)
	ok(t, "CountBacklog", err)
	equal(t, "the neighbour's backlog", backlog, buffer.Backlog{Unclaimed: 3})

	nb := claim(t, n.Buffer, 10)
	equal(t, "events claimed by the neighbour", nb.IDs(), theirs)
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	status, err := n.Buffer.Status(t.Context())
	ok(t, "Status", err)
	equal(t, "the neighbour's leased batches and dead letters", []int64{status.Leased, status.Dead}, []int64{1, 0})
	settle(t, n.Buffer, nb, delivered())
	for _, d := range f.Dead(t) {
		equal(t, "pipeline of the dead letter", d.Pipeline, f.Pipeline)
	}
	empty(t, f)
	empty(t, n)
}

func claimOtherMode(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(1)...)
	ok(t, "Check", f.Buffer.Check(t.Context()))
	f.Exec(t, "UPDATE outbox_buffers SET claim = 'future'")
	untouched(t, f, "a refused claim", func() {
		_, err := f.Buffer.Claim(t.Context(), 10, lease)
		fails(t, "Claim", err, buffer.ErrNotReady)
		if !strings.Contains(err.Error(), "future") {
			t.Fatalf("the error does not name the buffer's claim mode: %v", err)
		}
	})
}
