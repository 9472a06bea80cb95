package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// customFixture is a custom table and a buffer on it.
type customFixture struct {
	*testDB
	*postgres.Buffer
	config postgres.Config
}

// newCustomFixture makes the tables, and the relay's in a separate schema.
func newCustomFixture(t *testing.T, url, ddl string, custom buffer.CustomTable, table string) *customFixture {
	t.Helper()
	o := &customFixture{testDB: newTestDB(t, url, buffertest.Options{}), config: postgres.Config{
		URL: url, Table: table, Schema: "relay", Pipeline: "custom", Custom: custom, Connections: 4,
	}}
	o.exec(t, ddl)
	if _, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{Table: table, Schema: "relay", Custom: true}); err != nil {
		t.Fatal(err)
	}
	o.Buffer = o.open(t, o.config)
	return o
}

func (o *customFixture) open(t *testing.T, c postgres.Config) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(c)
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

func (o *customFixture) exec(t *testing.T, statement string) {
	t.Helper()
	_, err := o.pool.Exec(t.Context(), statement)
	check(t, err)
}

func (o *customFixture) text(t *testing.T, statement string) string {
	t.Helper()
	return strings.Join(query(t, o.pool, statement, pgx.RowTo[string]), " ")
}

func (o *customFixture) claim(t *testing.T, limit int) *buffer.Lease {
	t.Helper()
	b, err := o.Claim(t.Context(), limit, lease)
	check(t, err)
	if b == nil {
		t.Fatal("nothing was claimed")
	}
	return b
}

func (o *customFixture) takeOver(t *testing.T) *buffer.Lease {
	t.Helper()
	o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() - interval '1 second'")
	b, err := testkit.TakeOver(t.Context(), o, lease)
	check(t, err)
	if b == nil {
		t.Fatal("nothing was taken over")
	}
	return b
}

func (o *customFixture) settle(t *testing.T, b *buffer.Lease, outcomes ...buffer.Outcome) {
	t.Helper()
	check(t, o.Settle(t.Context(), b, outcomes))
}

// wantAgreement fails the test if the ledger and the buffer disagree.
func (o *customFixture) wantAgreement(t *testing.T, after string) buffer.Audit {
	t.Helper()
	a, err := o.Audit(t.Context())
	check(t, err)
	if !a.Agrees() {
		t.Fatalf("after %s: %+v", after, a)
	}
	return a
}

func uuidsOf(b *buffer.Lease) (keys []string) {
	for _, e := range b.Events {
		keys = append(keys, e.Identity())
	}
	slices.Sort(keys)
	return keys
}

const (
	uuidDDL = `
CREATE SCHEMA relay;
CREATE TABLE "Changes" ("The key" uuid PRIMARY KEY DEFAULT gen_random_uuid(), body text NOT NULL, group_id uuid);
CREATE INDEX ON "Changes" ("The key") WHERE group_id IS NULL;
CREATE UNIQUE INDEX ON "Changes" (body) WHERE group_id IS NULL`
	uuidProject = `SELECT "The key" AS id, 'change' AS topic, body AS key, to_jsonb(body) AS payload FROM "Changes" WHERE group_id = $1`
)

func newUUIDs(t *testing.T, events int) *customFixture {
	t.Helper()
	o := newCustomFixture(t, testserver.Postgres(t), uuidDDL, buffer.CustomTable{ID: "The key", Project: uuidProject}, "Changes")
	o.insert(t, 1, events)
	return o
}

func (o *customFixture) insert(t *testing.T, from, to int) {
	t.Helper()
	o.exec(t, fmt.Sprintf(`INSERT INTO "Changes" (body) SELECT 'body ' || i FROM generate_series(%d, %d) i`, from, to))
}

// Every step that a batch can take, where its events have no numbers but their uuids.
func TestCustomUUIDs(t *testing.T) {
	t.Parallel()
	o := newUUIDs(t, 10)
	backlog, err := o.CountBacklog(t.Context(), 100)
	check(t, err)
	if backlog.Unclaimed != 10 {
		t.Fatalf("backlog: %+v", backlog)
	}
	b := o.claim(t, 8)
	if n := b.LastID - b.FirstID; len(b.Events) != 8 || n != 7 || b.Events[7].ID != b.LastID || b.ProjectErr != nil {
		t.Fatalf("claimed %+v", b)
	}
	for _, e := range b.Events {
		if e.UUID == uuid.Nil || e.Topic != "change" || e.Key == nil || string(e.Payload) != `"`+*e.Key+`"` {
			t.Fatalf("an event comes as %+v", e)
		}
	}
	status, err := o.Status(t.Context())
	check(t, err)
	if status.Pending != 10 || status.Leased != 1 {
		t.Fatalf("status: %+v", status)
	}
	o.wantAgreement(t, "a claim")

	// A part is delivered, one is buried, the rest gets new numbers.
	ids, part := b.IDs(), buffer.NewGroupID()
	dead := b.Events[3]
	o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered, IDs: ids[:3]},
		buffer.Outcome{Verdict: buffer.Dead, IDs: ids[3:4], Attempts: 1, Error: "no"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[4:], GroupID: part})
	o.wantAgreement(t, "a settle in parts")
	rest := o.takeOver(t)
	want := uuidsOf(&buffer.Lease{Batch: buffer.Batch{Events: b.Events[4:]}})
	if rest.GroupID != part || !slices.Equal(uuidsOf(rest), want) || rest.FirstID <= b.LastID {
		t.Fatalf("the rest is %+v, want %v", rest, want)
	}

	// Delivered, with one of them locked by the application.
	check(t, o.MarkDelivered(t.Context(), rest, rest.IDs()[:3]))
	marked := o.takeOver(t)
	if !slices.Equal(marked.Delivered, rest.IDs()[:3]) || !slices.Equal(uuidsOf(marked), want) {
		t.Fatalf("marked: %+v", marked)
	}
	tx, err := o.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE "Changes" SET body = body WHERE "The key" = $1`, marked.Events[1].Identity())
	check(t, err)
	last := buffer.NewGroupID()
	outcomes := []buffer.Outcome{{Verdict: buffer.Delivered, IDs: marked.Delivered}, {Verdict: buffer.Retry, IDs: marked.IDs()[3:], GroupID: last}}
	if err := o.Settle(t.Context(), marked, outcomes); !errors.Is(err, buffer.ErrLocked) {
		t.Fatalf("settled although an event is locked: %v", err)
	}
	check(t, tx.Rollback(t.Context()))
	o.wantAgreement(t, "a settle next to a lock")
	o.exec(t, fmt.Sprintf("UPDATE relay.outbox_batches SET due_at = 'infinity' WHERE group_id = '%s'", last))
	again, err := testkit.TakeOver(t.Context(), o, lease)
	check(t, err)
	for again == nil {
		o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() WHERE state = 'delivered'")
		again, err = testkit.TakeOver(t.Context(), o, lease)
		check(t, err)
	}
	if !slices.Equal(again.Delivered, marked.IDs()[1:2]) || again.Events[0].UUID != marked.Events[1].UUID {
		t.Fatalf("still to be deleted: %+v", again)
	}
	o.settle(t, again, buffer.Outcome{Verdict: buffer.Delivered})
	one := o.takeOver(t)
	o.settle(t, one, buffer.Outcome{Verdict: buffer.Delivered})
	if left := o.wantAgreement(t, "all of it"); left.Unclaimed != 2 || left.Dead.Open != 1 {
		t.Fatalf("left: %+v", left)
	}

	// The dead letter is found by its uuid, and replayed unchanged.
	deadLetters, err := o.ListDead(t.Context(), buffer.DeadFilter{UUIDs: []uuid.UUID{dead.UUID}}, nil, 10)
	check(t, err)
	none, err := o.CountDead(t.Context(), buffer.DeadFilter{UUIDs: []uuid.UUID{uuid.New()}})
	check(t, err)
	if len(deadLetters) != 1 || deadLetters[0].UUID != dead.UUID || deadLetters[0].Row == nil || none.Open != 0 {
		t.Fatalf("deadLetters: %+v, of another %+v", deadLetters, none)
	}
	if n, err := o.Replay(t.Context(), buffer.DeadFilter{UUIDs: []uuid.UUID{dead.UUID}}, 10); n != 1 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	back := o.takeOver(t)
	if len(back.Events) != 1 || back.Events[0].UUID != dead.UUID || string(back.Events[0].Payload) != string(dead.Payload) {
		t.Fatalf("back: %+v", back)
	}
	o.settle(t, back, buffer.Outcome{Verdict: buffer.Delivered})
}

// Audit and Repair also fix batches by uuid keys after a restore or a manual change.
func TestCustomUUIDs_Repair(t *testing.T) {
	t.Parallel()
	o := newUUIDs(t, 9)
	miscounted, empty, orphan := o.claim(t, 3), o.claim(t, 3), o.claim(t, 3)
	o.exec(t, fmt.Sprintf(`DELETE FROM "Changes" WHERE "The key" = '%s' OR group_id = '%s'`, miscounted.Events[0].Identity(), empty.GroupID))
	o.exec(t, fmt.Sprintf(`INSERT INTO "Changes" (body, group_id) SELECT 'by hand ' || i, '%s' FROM generate_series(1, 2) i`, miscounted.GroupID))
	o.exec(t, fmt.Sprintf(`DELETE FROM relay.outbox_batches WHERE group_id = '%s'`, orphan.GroupID))
	check(t, o.MarkDelivered(t.Context(), miscounted, miscounted.IDs()[:2]))
	o.exec(t, "UPDATE relay.outbox_batches SET due_at = clock_timestamp() - interval '1 second'")
	a, err := o.Audit(t.Context())
	check(t, err)
	if a.Miscounted != 1 || a.EmptyBatches != 1 || a.Orphaned != (buffer.Count{Batches: 1, Events: 3}) || a.DeliveredEvents != 1 {
		t.Fatalf("audit: %+v", a)
	}
	r, err := o.Repair(t.Context())
	check(t, err)
	if r != (buffer.Repair{Adopted: a.Orphaned, Removed: 1, Corrected: 1}) {
		t.Fatalf("repair: %+v", r)
	}
	o.wantAgreement(t, "a repair")
	events := 0
	for {
		b, err := testkit.TakeOver(t.Context(), o, lease)
		check(t, err)
		if b == nil {
			break
		}
		events += len(b.Events)
		if b.GroupID == miscounted.GroupID && (len(b.Events) != 4 || !slices.Equal(b.Delivered, miscounted.IDs()[1:2]) || b.Events[0].UUID != miscounted.Events[1].UUID) {
			t.Fatalf("what was corrected: %+v", b)
		}
	}
	if events != 7 {
		t.Errorf("%d events were taken over; want 7", events)
	}
}

// A full sweep leases orphans again, and Peek returns what a claim would take.
func TestCustomUUIDs_Sweep(t *testing.T) {
	t.Parallel()
	o := newUUIDs(t, 3)
	peeked, err := o.Peek(t.Context(), 2)
	check(t, err)
	if len(peeked.Events) != 2 || peeked.ProjectErr != nil || peeked.Events[0].Topic != "change" || peeked.Events[0].UUID == uuid.Nil {
		t.Fatalf("peeked at %+v", peeked)
	}
	if a := o.wantAgreement(t, "a peek"); a.Unclaimed != 3 {
		t.Fatalf("after a peek: %+v", a)
	}
	b := o.claim(t, 10)
	o.exec(t, "DELETE FROM relay.outbox_batches")
	second := o.open(t, o.config)
	backlog, err := second.CountBacklog(t.Context(), 10)
	check(t, err)
	if backlog.Due != 1 {
		t.Fatalf("backlog: %+v", backlog)
	}
	again, err := testkit.TakeOver(t.Context(), second, time.Minute)
	check(t, err)
	got, want := slices.Sorted(slices.Values(uuidsOf(again))), slices.Sorted(slices.Values(uuidsOf(b)))
	if again.GroupID == b.GroupID || len(again.Origins) != 0 || !slices.Equal(got, want) {
		t.Fatalf("taken over: %+v; want the events of %s under a new group_id without origins", again, b.GroupID)
	}
}
