package postgres

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A statement that waits for a lock fails in time, and works once the lock is released.
func TestStatementTimeout_Locked(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	databaseURL := testserver.Postgres(t)
	b := openWithTimeout(t, databaseURL)
	app, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close(context.WithoutCancel(ctx))
	exec := func(statement string) {
		t.Helper()
		if _, err := app.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	exec("INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2')")
	batch, err := b.Claim(ctx, 1, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := []buffer.Outcome{{Verdict: buffer.Delivered}}
	exec("BEGIN")
	exec("LOCK TABLE outbox_batches, outbox_dead_letters IN ACCESS EXCLUSIVE MODE")
	var calls sync.WaitGroup
	for doing, c := range map[string]struct {
		code string
		do   func() error
	}{
		"claim":              {pg.CodeLockTimeout, func() error { _, err := b.Claim(ctx, 10, time.Hour); return err }},
		"take over":          {pg.CodeLockTimeout, func() error { _, err := testkit.TakeOver(ctx, b, time.Hour); return err }},
		"renew":              {pg.CodeLockTimeout, func() error { return b.Renew(ctx, batch, time.Hour) }},
		"mark delivered":     {pg.CodeLockTimeout, func() error { return b.MarkDelivered(ctx, batch, batch.IDs()) }},
		"retry now":          {pg.CodeLockTimeout, func() error { _, err := b.RetryNow(ctx, "", 0); return err }},
		"deferred addresses": {pg.CodeLockTimeout, func() error { _, err := b.DeferredAddresses(ctx); return err }},
		"count":              {pg.CodeLockTimeout, func() error { _, err := b.CountBacklog(ctx, 10); return err }},
		"status":             {pg.CodeLockTimeout, func() error { _, err := b.Status(ctx); return err }},
		"hook's claim":       {pg.CodeLockTimeout, func() error { _, err := b.DeadLetterQueue().Claim(ctx, 10, time.Hour); return err }},
		"hook's count":       {pg.CodeLockTimeout, func() error { _, err := b.DeadLetterQueue().CountBacklog(ctx, 0); return err }},
		"settle":             {pg.CodeLockTimeout, func() error { return b.Settle(ctx, batch, outcomes) }},
	} {
		calls.Go(func() {
			if err := c.do(); pg.Code(err) != c.code {
				t.Errorf("%s: got %v, want code %s", doing, err, c.code)
			}
		})
	}
	calls.Wait()
	exec("ROLLBACK")
	if err := b.Settle(ctx, batch, outcomes); err != nil {
		t.Errorf("when the lock is gone: %v", err)
	}
}

// openWithTimeout opens a buffer with a short statement timeout; a settle's lock timeout is shorter still.
func openWithTimeout(t *testing.T, databaseURL string) *Buffer {
	t.Helper()
	if _, err := Migrate(t.Context(), databaseURL, SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{URL: databaseURL, Pipeline: "orders", Connections: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.db.StatementTimeout = time.Second
	return b
}
