package buffertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var customWhereCases = []testCase{
	{name: "where/rows that are not events stay", run: whereStay},
	{name: "where/a row becomes an event later", run: whereLater},
	{name: "where/a claimed event is sent although its row is none any more", run: whereClaimed},
	{name: "where/a stamp without a ledger row is adopted", run: whereOrphans},
	{name: "where/delayed events wait for both", delays: true, run: whereDelayed},
	{name: "where/check names what is wrong", deletesOnly: true, run: whereCheck},
}

// ready is a condition; makeReady makes rows events, or none.
const ready = "parent_id = 1 -- not those without a parent"

func makeReady(t TB, f *Fixture, is bool, ids ...int64) {
	t.Helper()
	parent := "NULL"
	if is {
		parent = "1"
	}
	for _, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE %s SET parent_id = %s WHERE id = %d", f.Table, parent, id))
	}
}

func whereStay(t *testing.T, h Harness) {
	f := h.Open(t, Options{Where: ready})
	ok(t, "Check", f.Buffer.Check(t.Context()))
	ids := f.Insert(t, orders(4)...)
	makeReady(t, f, true, ids[1], ids[3])
	backlog, err := f.Buffer.CountBacklog(t.Context(), 10)
	ok(t, "CountBacklog", err)
	equal(t, "unclaimed", backlog.Unclaimed, 2)
	pending(t, f, 2)
	audit, err := f.Buffer.Audit(t.Context())
	ok(t, "Audit", err)
	equal(t, "unclaimed of the audit", audit.Unclaimed, int64(2))
	equal(t, "peeked", peek(t, f, 10).IDs(), []int64{ids[1], ids[3]})
	for limit, want := range map[int]int{10: 2, 1: 1} {
		excluded, err := f.Buffer.CountExcluded(t.Context(), limit)
		ok(t, "CountExcluded", err)
		equal(t, "excluded", excluded, want)
	}
	b := claim(t, f.Buffer, 10)
	equal(t, "claimed", b.IDs(), []int64{ids[1], ids[3]})
	claimNone(t, f.Buffer)
	settle(t, f.Buffer, b, delivered())
	equal(t, "rows", rowIDs(t, f), []int64{ids[0], ids[2]})
	backlog, err = f.Buffer.CountBacklog(t.Context(), 10)
	ok(t, "CountBacklog", err)
	equal(t, "unclaimed", backlog.Unclaimed, 0)
	pending(t, f, 0)
	claimNone(t, f.Second(t))
}

func pending(t *testing.T, f *Fixture, want int64) {
	t.Helper()
	status, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	equal(t, "pending", status.Pending, want)
}

// whereLater: a cursor over ids has passed the rows when they become events.
func whereLater(t *testing.T, h Harness) {
	f := h.Open(t, Options{Where: ready})
	early := f.Insert(t, orders(3)...)
	ids := f.Insert(t, orders(2)...)
	makeReady(t, f, true, ids...)
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	for range 3 { // the floor passes them too
		_, err := f.Buffer.CountBacklog(t.Context(), 10)
		ok(t, "CountBacklog", err)
		claimNone(t, f.Buffer)
	}
	for _, id := range []int64{early[2], early[0]} {
		makeReady(t, f, true, id)
		eventually(t, "a count of the event", func(ctx context.Context) bool {
			backlog, err := f.Buffer.CountBacklog(ctx, 10)
			ok(t, "CountBacklog", err)
			return backlog.Unclaimed == 1
		})
		pending(t, f, 1)
		b := claim(t, f.Buffer, 10)
		equal(t, "claimed", b.IDs(), []int64{id})
		settle(t, f.Buffer, b, delivered())
		pending(t, f, 0)
	}
	equal(t, "rows", rowIDs(t, f), []int64{early[1]})
	makeReady(t, f, true, early[1])
	second := f.Second(t)
	_, err := second.CountBacklog(t.Context(), 10) // a relay that starts looks at everything
	ok(t, "CountBacklog", err)
	equal(t, "claimed by a relay that starts", claim(t, second, 10).IDs(), []int64{early[1]})
}

func whereClaimed(t *testing.T, h Harness) {
	f := h.Open(t, Options{Where: ready})
	ids := f.Insert(t, orders(3)...)
	makeReady(t, f, true, ids...)
	b := claim(t, f.Buffer, 10)
	makeReady(t, f, false, ids...)
	settle(t, f.Buffer, b, retry(b, 0))
	b = takeOver(t, f.Buffer)
	equal(t, "taken over", b.IDs(), ids)
	settle(t, f.Buffer, b, delivered(ids[0]), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID()})
	audit, err := f.Buffer.Audit(t.Context())
	ok(t, "Audit", err)
	equal(t, "the audit agrees", audit.Agrees(), true)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	if h.Marked { // the first one changed after its stamp, and is none that waits
		claimNone(t, f.Buffer)
		pending(t, f, 0)
		f.Exec(t, "DELETE FROM "+f.Table)
	}
	empty(t, f)
}

// whereOrphans: a lost ledger row loses no event, whether or not its row is still one.
func whereOrphans(t *testing.T, h Harness) {
	f := h.Open(t, Options{Where: ready})
	ids := f.Insert(t, orders(2)...)
	makeReady(t, f, true, ids...)
	claim(t, f.Buffer, 1)
	claim(t, f.Buffer, 1)
	makeReady(t, f, false, ids[1])
	f.Exec(t, "DELETE FROM outbox_batches")
	_, err := f.Second(t).CountBacklog(t.Context(), 10) // it sweeps
	ok(t, "CountBacklog", err)
	repair, err := f.Buffer.Repair(t.Context())
	ok(t, "Repair", err)
	var sent []int64
	for range 2 {
		b := takeOver(t, f.Buffer)
		sent = append(sent, b.IDs()...)
		settle(t, f.Buffer, b, delivered())
	}
	if equal(t, "events sent", len(sent), 2); sent[0] == sent[1] {
		t.Fatalf("sent %v; repaired %+v", sent, repair)
	}
	empty(t, f)
}

// whereDelayed: neither the time nor the condition is enough.
func whereDelayed(t *testing.T, h Harness) {
	f := h.Open(t, Options{Where: ready, Delays: true})
	far := f.Insert(t, delay(never, orders(2)...)...)
	makeReady(t, f, true, far[0])
	settled := f.Insert(t, orders(1)...) // the cursor passes the others
	makeReady(t, f, true, settled...)
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	for range 3 { // the first count sweeps, and finds nothing that no claim takes
		backlog, err := f.Buffer.CountBacklog(t.Context(), 10)
		ok(t, "CountBacklog", err)
		equal(t, "unclaimed", backlog.Unclaimed, 0)
		claimNone(t, f.Buffer)
	}
	near := f.Insert(t, delay(time.Second, orders(2)...)...)
	makeReady(t, f, true, near[0])
	settle(t, f.Buffer, claimAvailable(t, f.Buffer, nil), delivered())
	pending(t, f, 0)
	audit, err := f.Buffer.Audit(t.Context())
	ok(t, "Audit", err)
	equal(t, "delayed events of the audit", audit.Delayed, int64(1))
	equal(t, "unclaimed of the audit", audit.Unclaimed, int64(0))
	makeReady(t, f, true, near[1], far[1])
	b := claimAvailable(t, f.Buffer, nil)
	equal(t, "claimed", b.IDs(), []int64{near[1]})
	settle(t, f.Buffer, b, delivered())
	equal(t, "rows", rowIDs(t, f), far)
}

func whereCheck(t *testing.T, h Harness) {
	for where, says := range map[string]string{
		"no_such_column = 1":                                     "no_such_column",
		"parent_id = 1) OR (parent_id = 2":                       "not right",
		"parent_id = 1; DELETE FROM parents":                     "not right",
		"true THEN true END FROM parents; SELECT CASE WHEN true": "not right",
		"SELECT true":      "not right",
		"parent_id = 'one": "not right",
		"count(*) > 1":     "not right",
		"random() > 0.5":   "", // the databases say it in their words
		"parent_id IS NULL AND topic LIKE 'a%' /* not right */": "none",
	} {
		f := h.Open(t, Options{Where: where})
		f.Exec(t, "INSERT INTO parents (id, name) VALUES (1, 'kept')")
		err := f.Buffer.Check(t.Context())
		if says == "none" {
			ok(t, "Check with "+where, err)
			continue
		}
		fails(t, "Check with "+where, err, buffer.ErrNotReady)
		if !strings.Contains(err.Error(), "source.where") || !strings.Contains(err.Error(), says) {
			t.Fatalf("Check with %q: the error does not say %q: %v", where, says, err)
		}
		f.Exec(t, "UPDATE parents SET id = 1 / (SELECT count(*) FROM parents)") // it is still there
	}
}
