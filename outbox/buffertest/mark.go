package buffertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A row that the application changes between its claim and its settle is marked only if the new version was sent.
var markCases = []testCase{
	{name: "mark/a row that changed since its claim is sent again", run: markChanged},
	{name: "mark/a row that changed before its claim is marked", run: markChangedBefore},
	{name: "mark/a row that changed before a take-over is sent again", run: markTakenOver},
	{name: "mark/a row that changed and changed back after it was sent is sent again", run: markChangedBack},
	{name: "mark/a row that changed before a part is read is sent again", run: markDivided},
	{name: "mark/a row that changed after its delivery was recorded is sent again", run: markRecorded},
	{name: "mark/a row that changed is a dead letter and is sent again", run: markDead},
	{name: "mark/a replayed row that changes is sent again", run: markReplayed},
	{name: "mark/a row that changed is archived as it was sent", integerKeysOnly: true, run: markArchived},
	{name: "mark/rows that the application marks or deletes are done", run: markGone},
	{name: "mark/a row that changes while it is settled is marked or sent again", rowLocksOnly: true, run: markRace},
}

// change gives rows another topic.
func change(t testing.TB, f *Fixture, topic string, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		f.Exec(t, fmt.Sprintf("UPDATE %s SET topic = '%s' WHERE id = %d", f.Table, topic, id))
	}
}

// sentAgain expects that one event is claimed, with this topic, and that nothing is left after it.
func sentAgain(t testing.TB, f *Fixture, topic string, id int64) {
	t.Helper()
	equal(t, "rows that are not marked", rowIDs(t, f), []int64{id})
	for _, r := range f.Rows(t) {
		equal(t, "group_id of a row that is to be sent again", r.GroupID.String(), "00000000-0000-0000-0000-000000000000")
	}
	b := claimAgain(t, f)
	equal(t, "claimed again", b.IDs(), []int64{id})
	equal(t, "topic", b.Events[0].Topic, topic)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	claimNone(t, f.Buffer)
}

// claimAgain claims rows behind the cursor: a relay that starts looks at everything.
func claimAgain(t testing.TB, f *Fixture) *buffer.Lease {
	t.Helper()
	starting := f.Second(t)
	_, err := starting.CountBacklog(t.Context(), 10)
	ok(t, "CountBacklog", err)
	return claim(t, starting, 10)
}

func markChanged(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	change(t, f, "changed", ids[2])
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, "changed", ids[2])

	ids = f.Insert(t, orders(2)...) // all of a batch, in parts
	b = claim(t, f.Buffer, 10)
	change(t, f, "changed", ids...)
	settle(t, f.Buffer, b, delivered(ids[0]), delivered(ids[1]))
	b = claimAgain(t, f)
	equal(t, "claimed again", b.IDs(), ids)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func markChangedBefore(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(2)...)
	change(t, f, "changed", ids[0])
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	empty(t, f)
	claimNone(t, f.Buffer)
}

func markTakenOver(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	change(t, f, "second", ids[1])
	b = lose(t, f, b, f.Second(t))
	equal(t, "topic", b.Events[1].Topic, "second")
	change(t, f, "third", ids[1])
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, "third", ids[1])
}

func markChangedBack(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	was := b.Events[1].Topic
	change(t, f, "changed", ids[1])
	b = lose(t, f, b, f.Second(t))
	equal(t, "topic that is sent", b.Events[1].Topic, "changed")
	change(t, f, was, ids[1])
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, was, ids[1])
}

func markDivided(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, delivered(ids[:2]...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID()})
	b = takeOver(t, f.Buffer)
	change(t, f, "changed", ids[3])
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, "changed", ids[3])
}

func markRecorded(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids))
	change(t, f, "changed", ids[0])
	b = lose(t, f, b, f.Second(t))
	equal(t, "DeliveryRecorded", b.DeliveryRecorded(), true)
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, "changed", ids[0])
}

func markDead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	topic := b.Events[1].Topic
	change(t, f, "changed", ids[1])
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Error: "no"})
	equal(t, "dead letters", len(f.Dead(t)), 3)
	equal(t, "topic of the dead letter", f.Dead(t)[1].Topic, topic)
	sentAgain(t, f, "changed", ids[1])
}

func markReplayed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(2)...)
	settle(t, f.Buffer, claim(t, f.Buffer, 10), buffer.Outcome{Verdict: buffer.Dead, Error: "no"})
	n, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Replay", err)
	equal(t, "replayed", n, 2)
	b := takeOver(t, f.Buffer)
	change(t, f, "changed", ids[0])
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, "changed", ids[0])
}

func markArchived(t *testing.T, h Harness) {
	f := h.Open(t, Options{Archive: true})
	ids := f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 10)
	topic := b.Events[0].Topic
	change(t, f, "changed", ids[0])
	settle(t, f.Buffer, b, delivered())
	sentAgain(t, f, "changed", ids[0])
	var topics []string
	for _, e := range f.Archived(t) {
		if e.ID == ids[0] {
			topics = append(topics, e.Topic)
		}
	}
	equal(t, "times that it is archived", len(topics), 2)
	equal(t, "the topics", topics[0] != topics[1] && (topics[0] == topic || topics[1] == topic), true)
}

func markGone(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	f.Exec(t, fmt.Sprintf("UPDATE %s SET processed_at = CURRENT_TIMESTAMP WHERE id = %d", f.Table, ids[0]))
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[1]))
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
	claimNone(t, f.Buffer)
}

// markRace: the settle waits for the transaction that changes the row.
func markRace(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = 'changed' WHERE id = %d", f.Table, ids[1]))
	done := make(chan error, 1)
	go func() {
		var err error
		for range 20 { // its lock_timeout may be over first
			if err = f.Buffer.Settle(context.WithoutCancel(t.Context()), b, []buffer.Outcome{delivered()}); err == nil {
				break
			}
		}
		done <- err
	}()
	select { // it cannot end before the commit
	case err := <-done:
		t.Fatalf("Settle ended before the lock: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	tx.Commit(t)
	ok(t, "Settle", <-done)
	sentAgain(t, f, "changed", ids[1])
}
