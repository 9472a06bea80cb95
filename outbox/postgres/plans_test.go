package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// Statistics of a fully claimed table say that hardly any event is unclaimed; those of an empty table, that
// it has at most a thousand rows. A plan that believes them reads the whole backlog for each claim, count or
// settle.
func TestPlans_WrongStatistics(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimStamp, buffer.ClaimRange} {
		for _, when := range []string{"empty", "claimed"} {
			t.Run(fmt.Sprintf("%s, statistics of %s", mode, when), func(t *testing.T) {
				t.Parallel()
				wrongStatistics(t, mode, when)
			})
		}
	}
}

func wrongStatistics(t *testing.T, mode buffer.ClaimMode, statistics string) {
	p := newMigratedDB(t, buffertest.Options{Claim: mode})
	f := p.fixture(t, "outbox_events", "orders")
	insert := func(n int) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, $1::int)", n)
		check(t, err)
	}
	analyze := func(when string) {
		t.Helper()
		if when == statistics {
			f.Exec(t, "ANALYZE outbox_events, outbox_batches")
		}
	}
	f.Exec(t, "ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
	f.Exec(t, "ALTER TABLE outbox_batches SET (autovacuum_enabled = false)")
	analyze("empty")
	insert(2000)
	if _, err := f.Buffer.CountBacklog(t.Context(), 1); err != nil { // the first one sweeps everything
		t.Fatal(err)
	}
	if b, err := f.Buffer.Claim(t.Context(), 2000, time.Hour); err != nil || len(b.Events) != 2000 {
		t.Fatalf("claimed %v, %v", b, err)
	}
	analyze("claimed")
	insert(30_000)

	for range 10 {
		if _, err := f.Buffer.CountBacklog(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		b, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
		if err != nil || len(b.Events) != 10 {
			t.Fatalf("claimed %v, %v", b, err)
		}
		part := buffer.NewGroupID()
		check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: b.IDs()[:4]}, {Verdict: buffer.Retry, IDs: b.IDs()[4:], GroupID: part},
		}))
		b, err = testkit.TakeOver(t.Context(), f.Buffer, time.Hour)
		check(t, err)
		check(t, f.Buffer.MarkDelivered(t.Context(), b, b.IDs()))
		check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}

	check(t, f.Buffer.Close()) // a session reports its statistics when it ends
	p.pool.Reset()
	var read int64
	testserver.Eventually(t, func() error {
		var deletes, inserts int64
		err := p.pool.QueryRow(t.Context(), `SELECT n_tup_del, n_tup_ins, seq_tup_read + idx_tup_fetch
			FROM pg_stat_user_tables WHERE relname = 'outbox_events'`).Scan(&deletes, &inserts, &read)
		if err == nil && (deletes < 100 || inserts < 32_000) {
			err = fmt.Errorf("%d deletes and %d inserts are known; want 100 and 32000", deletes, inserts)
		}
		return err
	})
	if read > 50_000 {
		t.Errorf("%d rows were read, the backlog again and again", read)
	}
}

// There are a million closed dead letters, and the statistics know none of them, or only them. Neither
// the hook nor a count of the open dead letters reads them.
func TestPlans_ClosedDeadLetters(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"empty", "open", "done"} {
		t.Run("statistics of "+when, func(t *testing.T) {
			t.Parallel()
			lettersDoneWith(t, when)
		})
	}
}

func lettersDoneWith(t *testing.T, statistics string) {
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	hook, ctx := f.Queue(t), t.Context()
	const done = 30_000
	deadLetters := func(from, to int, closed, notified bool) {
		t.Helper()
		_, err := p.pool.Exec(ctx, `INSERT INTO outbox_dead_letters
				(pipeline, event_id, topic, payload, created_at, group_id, attempts, error, closed_at, notified_at, hook_group_id)
			SELECT 'orders', i, 't', '1', now(), gen_random_uuid(), 1, 'no', CASE WHEN $3 THEN now() END,
			       CASE WHEN $4 THEN now() END, CASE WHEN $4 THEN gen_random_uuid() END
			FROM generate_series($1::int, $2::int) i`, from, to, closed, notified)
		check(t, err)
	}
	f.Exec(t, "ALTER TABLE outbox_dead_letters SET (autovacuum_enabled = false)")
	analyze := func(when string) {
		t.Helper()
		if when == statistics {
			f.Exec(t, "ANALYZE outbox_dead_letters")
		}
	}
	analyze("empty")
	deadLetters(1, 20, false, false) // some at each end, so that a batch of both spans all of them
	analyze("open")
	deadLetters(21, done/2, true, true)
	deadLetters(done/2+1, done, true, false)
	analyze("done")
	deadLetters(done+1, done+20, false, false)

	outcome := func(v buffer.Verdict, ids []int64) buffer.Outcome {
		return buffer.Outcome{Verdict: v, IDs: ids, GroupID: buffer.NewGroupID()}
	}
	for range 2 {
		backlog, err := hook.CountBacklog(ctx, 100)
		check(t, err)
		if backlog.Unclaimed != 40 {
			t.Fatalf("backlog: %+v", backlog)
		}
	}
	b, err := hook.Claim(ctx, 1000, time.Hour)
	check(t, err)
	ids := b.IDs()
	check(t, hook.Settle(ctx, b, []buffer.Outcome{outcome(buffer.Delivered, ids[10:30]), outcome(buffer.Retry, append(ids[:10:10], ids[30:]...))}))
	b, err = testkit.TakeOver(ctx, hook, time.Hour)
	check(t, err)
	check(t, hook.MarkDelivered(ctx, b, b.IDs()))
	f.ExpireLease(t, b.GroupID, time.Second)
	b, err = testkit.TakeOver(ctx, hook, time.Hour)
	check(t, err)
	check(t, hook.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	_, err = hook.Status(ctx)
	check(t, err)
	check(t, f.Queue(t).Check(ctx))
	status, err := f.Buffer.Status(ctx)
	check(t, err)
	page, err := f.Buffer.ListDead(ctx, buffer.DeadFilter{Notified: true}, &buffer.DeadKey{EventID: 3}, 10)
	check(t, err)
	discarded, err := f.Buffer.Discard(ctx, buffer.DeadFilter{IDs: ids[:5]}, 1000)
	check(t, err)
	replayed, err := f.Buffer.Replay(ctx, buffer.DeadFilter{}, 1000)
	check(t, err)
	if len(ids) != 40 || status.Dead != 40 || len(page) != 10 || discarded != 5 || replayed != 35 {
		t.Fatalf("%d claimed, %d dead, %d listed, %d discarded, %d replayed", len(ids), status.Dead, len(page), discarded, replayed)
	}

	check(t, f.Buffer.Close())
	p.pool.Reset()
	var read int64
	testserver.Eventually(t, func() error {
		var updates, inserts int64
		err := p.pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_ins, seq_tup_read + idx_tup_fetch + (
				SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
			FROM pg_stat_user_tables t WHERE relname = 'outbox_dead_letters'`).Scan(&updates, &inserts, &read)
		if err == nil && (updates < 140 || inserts < done+20) {
			err = fmt.Errorf("%d updates and %d inserts are known; want 140 and %d", updates, inserts, done+20)
		}
		return err
	})
	if read > done/2 {
		t.Errorf("%d deadLetters were read, those that are done with among them", read)
	}
}
