package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// A locked dead letter does not delay the others, and is notified once it is unlocked.
func TestHook_LockedDeadLetter(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	hook, ctx := f.Queue(t), t.Context()
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event)
	buried(t, f, "no")
	lock := func(id int64) buffertest.Tx {
		t.Helper()
		tx := f.Begin(t)
		tx.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET topic = topic WHERE event_id = %d", id))
		return tx
	}
	tx := lock(ids[0])
	b, err := hook.Claim(ctx, 10, lease)
	check(t, err)
	expectIDs(t, "claimed", b.IDs(), ids[1:])
	tx.Rollback(t)

	tx = lock(ids[2])
	delivered := []buffer.Outcome{{Verdict: buffer.Delivered}}
	if err := hook.Settle(ctx, b, delivered); err == nil {
		t.Fatal("settled although a dead letter is locked")
	}
	check(t, hook.MarkDelivered(ctx, b, b.IDs()))
	for _, want := range [][]int64{ids[1:], ids[2:]} {
		f.ExpireLease(t, b.GroupID, time.Second)
		b, err = testkit.TakeOver(ctx, hook, lease)
		check(t, err)
		expectIDs(t, "recorded as delivered", b.Delivered, want)
		expectIDs(t, "dead letters", b.IDs(), want)
		if err := hook.Settle(ctx, b, delivered); !errors.Is(err, buffer.ErrLocked) {
			t.Fatalf("got %v", err)
		}
	}
	tx.Rollback(t)
	f.ExpireLease(t, b.GroupID, time.Second)
	b, err = testkit.TakeOver(ctx, hook, lease)
	check(t, err)
	check(t, hook.Settle(ctx, b, delivered))
	count, err := f.Buffer.CountDead(ctx, buffer.DeadFilter{})
	check(t, err)
	if diff := cmp.Diff(buffer.DeadCount{Open: 3, Unnotified: 1}, count); diff != "" {
		t.Errorf("dead letters (-want +got):\n%s", diff)
	}
}
