package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// As TestPlans_CustomTable, for the batches of several sinks.
func TestPlans_CustomSinks(t *testing.T) {
	t.Parallel()
	for _, of := range []struct{ key, statistics string }{{"Integer", "empty"}, {"Integer", "claimed"}, {"UUID", "empty"}, {"UUID", "claimed"}} {
		t.Run(of.key+", statistics of "+of.statistics, func(t *testing.T) {
			t.Parallel()
			o, statistics := newActivitySinks(t, of.key, ""), of.statistics
			o.config.Custom.Project = "SELECT id, 'x.odd' AS topic, to_jsonb(e.id) AS payload FROM {events} e"
			o.Buffer = o.open(t, o.config)
			o.exec(t, "ALTER TABLE things SET (autovacuum_enabled = false)")
			if statistics == "empty" {
				o.exec(t, "ANALYZE things, relay.outbox_batches")
			}
			o.exec(t, "INSERT INTO things (activity) SELECT 1 FROM generate_series(1, 2000)")
			_, err := o.CountBacklog(t.Context(), 1)
			check(t, err)
			_, err = o.Route(t.Context(), 2000, time.Hour, func(string) bool { return true })
			check(t, err)
			if statistics == "claimed" {
				o.exec(t, "ANALYZE things, relay.outbox_batches")
			}
			o.exec(t, "INSERT INTO things (activity) SELECT 1 FROM generate_series(1, 30000)")
			for range 10 {
				_, err := o.Route(t.Context(), 10, time.Hour, keepNone)
				check(t, err)
				for _, sink := range []string{"all", "odd"} {
					q := o.Sink(sink)
					b, err := q.TakeOver(t.Context(), time.Hour, buffer.DueRetry)
					check(t, err)
					ids := b.IDs()
					check(t, q.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered, IDs: ids[:4]}, {Verdict: buffer.Retry, IDs: ids[4:], GroupID: buffer.NewGroupID()}}))
					b, err = q.TakeOver(t.Context(), time.Hour, buffer.DueRetry)
					check(t, err)
					check(t, q.MarkDelivered(t.Context(), b, b.IDs()))
					deliverAll(t, q, b)
				}
			}
			check(t, o.Close())
			o.pool.Reset()
			var read int64
			testserver.Eventually(t, func() error {
				var deletes int64
				err := o.pool.QueryRow(t.Context(), `SELECT n_tup_del, seq_tup_read + idx_tup_fetch + (
					SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
					FROM pg_stat_user_tables t WHERE relname = 'things'`).Scan(&deletes, &read)
				if err == nil && deletes < 100 {
					err = fmt.Errorf("%d deletes are known; want 100", deletes)
				}
				return err
			})
			// 19,000 usually, and 2,000 more for each batch while another snapshot keeps the index entries of the
			// 2,000 claimed rows; the backlog again and again is 300,000.
			if read > 100_000 {
				t.Errorf("%d rows were read, the backlog again and again", read)
			}
		})
	}
}
