package postgres_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestPrivileges_Enough: the documented privileges are enough for every method.
func TestPrivileges_Enough(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Archive: true})
	f := p.fixture(t, "outbox_events", "orders")
	url := p.asRole(t, "relay_",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers, outbox_relays, outbox_archive",
		"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public")
	b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Archive: "outbox_archive"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	hook, ctx := b.DeadLetterQueue(), t.Context()
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event)
	check(t, b.Check(ctx))
	_, err = b.CountBacklog(ctx, 10)
	check(t, err)
	batch, err := b.Claim(ctx, 10, lease)
	check(t, err)
	check(t, b.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Outages: 1, After: lease, Address: new("a")}}))
	deferred, err := b.DeferredAddresses(ctx)
	check(t, err)
	retried, err := b.RetryNow(ctx, "a", 0)
	check(t, err)
	if len(deferred) != 1 || retried != 1 {
		t.Fatalf("deferred %v, retried %d", deferred, retried)
	}
	batch, err = testkit.TakeOver(ctx, b, lease)
	check(t, err)
	check(t, b.Renew(ctx, batch, lease))
	check(t, b.MarkDelivered(ctx, batch, ids[:1]))
	check(t, b.Settle(ctx, batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:1]}, {Verdict: buffer.Dead, IDs: ids[1:], Error: "no"},
	}))

	_, err = hook.CountBacklog(ctx, 10)
	check(t, err)
	batch, err = hook.Claim(ctx, 10, lease)
	check(t, err)
	check(t, hook.Renew(ctx, batch, lease))
	check(t, hook.Settle(ctx, batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[1:2]}, {Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID()},
	}))
	batch, err = testkit.TakeOver(ctx, hook, lease)
	check(t, err)
	check(t, hook.MarkDelivered(ctx, batch, ids[2:]))
	check(t, hook.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	_, err = hook.Status(ctx)
	check(t, err)

	_, err = b.ListDead(ctx, buffer.DeadFilter{}, nil, 10)
	check(t, err)
	count, err := b.CountDead(ctx, buffer.DeadFilter{Notified: true})
	check(t, err)
	discarded, err := b.Discard(ctx, buffer.DeadFilter{IDs: ids[1:2]}, 10)
	check(t, err)
	replayed, err := b.Replay(ctx, buffer.DeadFilter{}, 10)
	check(t, err)
	if count.Open != 2 || discarded != 1 || replayed != 1 {
		t.Fatalf("%+v, %d discarded, %d replayed", count, discarded, replayed)
	}
	f.Exec(t, "DELETE FROM outbox_batches")
	repaired, err := b.Repair(ctx)
	check(t, err)
	audit, err := b.Audit(ctx)
	check(t, err)
	if repaired.Adopted.Events != 1 || !audit.Agrees() {
		t.Fatalf("%+v, %+v", repaired, audit)
	}
	batch, err = testkit.TakeOver(ctx, b, lease)
	check(t, err)
	check(t, b.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	_, err = b.Status(ctx)
	check(t, err)
	if rows, archived := f.Rows(t), f.Archived(t); len(rows) != 0 || len(archived) != 2 {
		t.Fatalf("%d rows are left and %d are in the archive", len(rows), len(archived))
	}
}
