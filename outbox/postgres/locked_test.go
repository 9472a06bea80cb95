package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// A table that somebody has locked as a whole: the error of Status, and doctor, name the session and the statement that ends it, with pg_read_all_stats and
// without. So they do if a statement that wants to lock the table waits behind a reader, and everything else behind it.
func TestLocked(t *testing.T) {
	t.Parallel()
	grants := []string{"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public"}
	for name, c := range map[string]struct {
		grants     []string
		statements []string
		table      string
		waits      string // in another session
		says       []string
	}{
		"sees":        {[]string{"GRANT pg_read_all_stats"}, []string{"BEGIN", "LOCK TABLE outbox_events"}, "outbox_events", "", []string{"idle in transaction", "whose transaction is open for "}},
		"sees less":   {nil, []string{"BEGIN", "LOCK TABLE outbox_events"}, "outbox_events", "", []string{"may not see without GRANT pg_read_all_stats TO relay_"}},
		"ledger":      {nil, []string{"BEGIN", "LOCK TABLE outbox_batches"}, "outbox_batches", "", nil},
		"behind read": {nil, []string{"BEGIN", "SELECT FROM outbox_events"}, "outbox_events", "LOCK TABLE outbox_events", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			b := opened(t, p.asRole(t, "relay_", append(c.grants, grants...)...), buffer.SupervisorPolicy{})
			holder := session(t, p.url, "alter-forgotten", c.statements...)
			if c.waits != "" {
				waiter := session(t, p.url, "alter", "BEGIN")
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = waiter.Exec(context.WithoutCancel(t.Context()), c.waits) // until holder ends
				}()
				t.Cleanup(func() { <-done })
				t.Cleanup(func() { _ = holder.Close(context.WithoutCancel(t.Context())) })
				testkit.Eventually(t, func() error {
					if query(t, p.pool, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))", pid(holder)), pgx.RowTo[int64])[0] == 1 {
						return nil
					}
					return errors.New("the other session does not wait")
				})
			}
			fix := fmt.Sprintf("SELECT pg_terminate_backend(%d) -- as a superuser", pid(holder))
			says := append([]string{"table public." + c.table + " is locked: statements wait for pid ", `application "alter-forgotten"`}, c.says...)
			limited := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), 9*time.Second) }

			ctx, cancel := limited()
			defer cancel()
			_, err := b.Status(ctx)
			if err == nil {
				t.Fatal("Status succeeds")
			}
			if ctx.Err() != nil {
				t.Error("Status names the lock when its time is over")
			}
			for _, s := range append(says, ". > "+fix) {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("Status says nothing of %q: %v", s, err)
				}
			}
			if strings.Contains(err.Error(), "did not answer") {
				t.Error(err)
			}
			ctx, cancel = limited()
			defer cancel()
			if _, err := b.CountBacklog(ctx, 10); !errors.As(err, new(*buffer.LockedError)) || !strings.Contains(err.Error(), says[0]) {
				t.Errorf("counting says %v", err)
			}

			ctx, cancel = limited()
			defer cancel()
			named := 0
			for _, f := range b.Diagnose(ctx) {
				if strings.Contains(f.Text, "did not answer") {
					t.Errorf("doctor: %s", f.Text)
				}
				if strings.Contains(f.Text, says[0]) && f.Fix == fix && f.Level == buffer.LevelError {
					named++
				}
			}
			if named != 1 {
				t.Errorf("doctor names the session %d times, expected once: %v", named, b.Diagnose(ctx))
			}
		})
	}
}
