package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// After its timeout Migrate names the sessions that hold the table, and has changed nothing.
func TestMigrate_NamesLockHolders(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testserver.Postgres(t)
	if _, err := Migrate(ctx, url, Config{}); err != nil {
		t.Fatal(err)
	}
	reader, err := pgx.Connect(ctx, url+"?application_name=audit")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close(context.WithoutCancel(ctx))
	exec := func(statements string) {
		t.Helper()
		if _, err := reader.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	for name, damage := range map[string]string{
		"NewVersion": "DELETE FROM outbox_events_migrations WHERE version_id = 1",
		"LostTable":  "DROP TABLE outbox_dead_letters",
	} {
		exec(damage)
		exec("BEGIN; LOCK TABLE outbox_events IN ROW EXCLUSIVE MODE")
		_, err := migrate(ctx, url, Config{}, 0)
		if pg.Code(err) != pg.CodeLockTimeout {
			t.Errorf("%s: got %v", name, err)
		}
		for _, says := range []string{fmt.Sprintf(`pid %d, application "audit", query started at `, reader.PgConn().PID()), "run relay migrate again"} {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: expected %q in: %v", name, says, err)
			}
		}
		exec("ROLLBACK")
		if _, err := migrate(ctx, url, Config{}, 0); err != nil {
			t.Errorf("%s, again: %v", name, err)
		}
	}
}

func TestRetryOnLock(t *testing.T) {
	t.Parallel()
	locked, deadlock, other := &pgconn.PgError{Code: pg.CodeLockTimeout}, &pgconn.PgError{Code: pg.CodeDeadlock}, errors.New("refused")
	for name, c := range map[string]struct {
		does  []error // the last again and again
		ctx   time.Duration
		want  error
		took  time.Duration
		calls int
	}{
		"at once":          {[]error{nil}, time.Hour, nil, 0, 1},
		"after two pauses": {[]error{locked, deadlock, nil}, time.Hour, nil, 2 * retryDelay, 3},
		"another error":    {[]error{locked, other}, time.Hour, other, retryDelay, 2},
		"timeout":          {[]error{locked}, time.Hour, locked, 9*retryDelay + retryDelay/2, 10},
		"context done":     {[]error{deadlock, locked}, retryDelay + retryDelay/2, locked, retryDelay + retryDelay/2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.ctx)
				defer cancel()
				start, calls := time.Now(), 0
				err := retryOnLock(ctx, 9*retryDelay+retryDelay/2, func() error {
					calls++
					return c.does[min(calls, len(c.does))-1]
				})
				if !errors.Is(err, c.want) || calls != c.calls || time.Since(start) != c.took {
					t.Errorf("%d calls in %v, %v; want %d in %v, %v", calls, time.Since(start), err, c.calls, c.took, c.want)
				}
			})
		})
	}
}
