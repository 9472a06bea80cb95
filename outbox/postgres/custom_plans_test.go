package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// As TestPlans_WrongStatistics: a claim, a settle and a take over find their
// events by the primary key, even with wrong statistics and however many others wait.
func TestPlans_CustomTable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ddl, project string
		custom       buffer.CustomTable
	}{
		"integer": {ddl: "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", custom: buffer.CustomTable{ID: "id"}},
		"uuid":    {ddl: "id uuid PRIMARY KEY DEFAULT gen_random_uuid()", custom: buffer.CustomTable{ID: "id"}},
		"cursor":  {ddl: "id uuid PRIMARY KEY DEFAULT gen_random_uuid(), seq bigserial UNIQUE", custom: buffer.CustomTable{ID: "id", Cursor: "seq"}},
	} {
		for _, statistics := range []string{"empty", "claimed"} {
			t.Run(name+", statistics of "+statistics, func(t *testing.T) {
				t.Parallel()
				c.custom.Project = "SELECT id, to_jsonb(e.id) AS payload FROM {events} e"
				customBacklog(t, newCustomFixture(t, testserver.Postgres(t), `
					CREATE SCHEMA relay;
					CREATE TABLE things (`+c.ddl+`, group_id uuid) WITH (autovacuum_enabled = false);
					CREATE INDEX ON things (id) WHERE group_id IS NULL`, c.custom, "things"), statistics)
			})
		}
	}
}

func customBacklog(t *testing.T, o *customFixture, statistics string) {
	analyze := func(when string) {
		t.Helper()
		if when == statistics {
			o.exec(t, "ANALYZE things, relay.outbox_batches")
		}
	}
	insert := func(n int) {
		t.Helper()
		o.exec(t, fmt.Sprintf("INSERT INTO things (group_id) SELECT NULL FROM generate_series(1, %d)", n))
	}
	analyze("empty")
	insert(2000)
	_, err := o.CountBacklog(t.Context(), 1) // the first one sweeps everything
	check(t, err)
	if b, err := o.Claim(t.Context(), 2000, time.Hour); err != nil || len(b.Events) != 2000 || b.ProjectErr != nil {
		t.Fatalf("claimed %v, %v", b, err)
	}
	analyze("claimed")
	insert(30_000)
	for range 10 {
		_, err := o.CountBacklog(t.Context(), 100)
		check(t, err)
		b, err := o.Claim(t.Context(), 10, time.Hour)
		if err != nil || len(b.Events) != 10 {
			t.Fatalf("claimed %v, %v", b, err)
		}
		part := buffer.NewGroupID()
		o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered, IDs: b.IDs()[:4]}, buffer.Outcome{Verdict: buffer.Retry, IDs: b.IDs()[4:], GroupID: part})
		b, err = testkit.TakeOver(t.Context(), o, time.Hour)
		check(t, err)
		if len(b.Events) != 6 || b.ProjectErr != nil {
			t.Fatalf("taken over: %+v", b)
		}
		check(t, o.MarkDelivered(t.Context(), b, b.IDs()))
		o.settle(t, b, buffer.Outcome{Verdict: buffer.Delivered})
	}
	check(t, o.Close()) // a session reports its statistics when it ends
	o.pool.Reset()
	var read int64
	testserver.Eventually(t, func() error {
		var deletes, inserts int64
		err := o.pool.QueryRow(t.Context(), `SELECT n_tup_del, n_tup_ins, seq_tup_read + idx_tup_fetch + (
				SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
			FROM pg_stat_user_tables t WHERE relname = 'things'`).Scan(&deletes, &inserts, &read)
		if err == nil && (deletes < 100 || inserts < 32_000) {
			err = fmt.Errorf("%d deletes and %d inserts are known; want 100 and 32000", deletes, inserts)
		}
		return err
	})
	if read > 30_000 {
		t.Errorf("%d rows were read, the backlog again and again", read)
	}
}
