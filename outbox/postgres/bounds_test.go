package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TestWrites_BoundedByServer: a transaction that locks rows is limited in time, and a client that
// vanished is noticed long before TCP would.
func TestWrites_BoundedByServer(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	buf, hook, ctx := f.Buffer, f.Queue(t), t.Context()
	for _, statement := range []string{
		"CREATE TABLE seen (no int GENERATED ALWAYS AS IDENTITY, bounds text)",
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen (bounds) SELECT concat_ws(' ', current_setting('statement_timeout'),
				current_setting('idle_in_transaction_session_timeout'), current_setting('tcp_keepalives_idle'),
				current_setting('tcp_keepalives_interval'), current_setting('tcp_keepalives_count'),
				current_setting('tcp_user_timeout')) WHERE current_setting('application_name') = 'relay';
			RETURN NULL;
		END $$`,
		"CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON outbox_batches FOR EACH STATEMENT EXECUTE FUNCTION see()",
		"CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON outbox_dead_letters FOR EACH STATEMENT EXECUTE FUNCTION see()",
		"CREATE TRIGGER see AFTER UPDATE ON outbox_buffers FOR EACH STATEMENT EXECUTE FUNCTION see()",
	} {
		f.Exec(t, statement)
	}
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	f.Insert(t, event, event, event)
	var batch *buffer.Lease
	died := func(b buffer.Buffer) error {
		return b.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "no"}})
	}
	const timeouts = " 30s 15 5 3 30000"
	for _, c := range []struct {
		doing, limit string
		do           func() error
	}{
		{"check", "15s", func() error { return f.Second(t).Check(ctx) }},
		{"claim", "15s", func() (err error) { batch, err = buf.Claim(ctx, 2, lease); return err }},
		{"renew", "15s", func() error { return buf.Renew(ctx, batch, lease) }},
		{"retry", "15s", func() error {
			return buf.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Outages: 1, After: lease, Address: new("a")}})
		}},
		{"wake", "15s", func() error { _, err := buf.RetryNow(ctx, "a", 0); return err }},
		{"take over", "15s", func() (err error) { batch, err = testkit.TakeOver(ctx, buf, lease); return err }},
		{"mark", "15s", func() error { return buf.MarkDelivered(ctx, batch, batch.IDs()[:1]) }},
		{"bury", "15s", func() error { return died(buf) }},
		{"hook's claim", "15s", func() (err error) { batch, err = hook.Claim(ctx, 1, lease); return err }},
		{"hook's settle", "15s", func() error { return hook.Settle(ctx, batch, []buffer.Outcome{{Verdict: buffer.Delivered}}) }},
		{"hook frees", "15s", func() error { _, err := f.Queue(t).CountBacklog(ctx, 10); return err }},
		{"discard", "1min", func() error { _, err := buf.Discard(ctx, buffer.DeadFilter{}, 1); return err }},
		{"replay", "1min", func() error { _, err := buf.Replay(ctx, buffer.DeadFilter{}, 10); return err }},
		{"repair", "10min", func() error { _, err := buf.Repair(ctx); return err }},
		{"sweep", "2s", func() error { _, err := f.Second(t).CountBacklog(ctx, 10); return err }},
	} {
		f.Exec(t, "TRUNCATE seen")
		check(t, c.do())
		got := query(t, p.pool, "SELECT DISTINCT bounds FROM seen", pgx.RowTo[string])
		want := []string{c.limit + timeouts}
		if c.doing == "sweep" { // Check comes first, in a process that has just begun
			want = []string{"15s" + timeouts, c.limit + timeouts}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.doing, diff)
		}
	}
}

// TestTransactions_RetryDeadlock: a deadlock certainly rolled the transaction back, so the relay runs it again.
func TestTransactions_RetryDeadlock(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	// A sequence does not roll back, so it counts the attempts.
	for _, statement := range []string{
		"CREATE SEQUENCE runs",
		"CREATE TABLE fails (times int, code text)",
		"INSERT INTO fails VALUES (0, '40P01')",
		`CREATE FUNCTION fail_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE f public.fails; BEGIN
			SELECT * INTO f FROM public.fails;
			IF nextval('public.runs') <= f.times THEN RAISE EXCEPTION USING ERRCODE = f.code, MESSAGE = 'deadlock detected'; END IF;
			RETURN NULL;
		END $$`,
		"CREATE CONSTRAINT TRIGGER fail_at_commit AFTER INSERT OR UPDATE OR DELETE ON outbox_batches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_at_commit()",
	} {
		f.Exec(t, statement)
	}
	failing := func(times int, code string) {
		t.Helper()
		f.Exec(t, "ALTER SEQUENCE runs RESTART")
		f.Exec(t, fmt.Sprintf("UPDATE fails SET times = %d, code = '%s'", times, code))
	}
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event)

	// The trigger is deferred: the rows have come by then, and come again.
	for _, code := range []string{"40P01", "40001"} {
		failing(3, code)
		b, err := f.Buffer.Claim(ctx, 10, lease)
		check(t, err)
		if diff := cmp.Diff(ids, b.IDs()); diff != "" {
			t.Fatalf("claimed (-want +got):\n%s", diff)
		}
		for doing, do := range map[string]func() error{
			"renew": func() error { return f.Buffer.Renew(ctx, b, lease) },
			"take over": func() error {
				failing(0, code)
				f.ExpireLease(t, b.GroupID, lease)
				failing(3, code)
				taken, err := testkit.TakeOver(ctx, f.Buffer, lease)
				if err == nil && len(taken.Events) != 2 {
					err = fmt.Errorf("taken over: %v", taken.IDs())
				}
				if err == nil {
					b = taken
				}
				return err
			},
			"mark": func() error { return f.Buffer.MarkDelivered(ctx, b, nil) },
		} {
			failing(3, code)
			if err := do(); err != nil {
				t.Errorf("%s: %v", doing, err)
			}
		}
		failing(4, code)
		if err := f.Buffer.Renew(ctx, b, lease); err == nil || !strings.Contains(err.Error(), code) {
			t.Errorf("a deadlock that does not end: got %v", err)
		}
		failing(0, code)
		check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: b.GroupID, Outages: 1, After: lease, Address: new("a")}}))
		failing(3, code)
		if n, err := f.Buffer.RetryNow(ctx, "a", 0); n != 1 || err != nil {
			t.Errorf("wake: %d, %v", n, err)
		}
		failing(0, code)
		b, err = testkit.TakeOver(ctx, f.Buffer, lease)
		check(t, err)

		// In a settle it was the application that won: it must not be asked again.
		failing(1, code)
		err = f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}})
		if again := err == nil; again != (code == "40001") {
			t.Errorf("settle after %s: got %v", code, err)
		}
		if err != nil {
			check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		}
		ids = f.Insert(t, event, event)
	}
}
