package backlog

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The ledger has the exact number of claimed events; unclaimed ones are counted from the floor on, up to
// buffer.PendingExact, and so are delayed ones below it that are due, by their index from $7 on. Those that are not due are counted by the same index,
// whose statistics say how many there are in all; the next one is due in so many microseconds. Suspects include those of the dead-letter hook: they keep everything else of the process waiting too.
const statusSQL = `
WITH` + ledger.HeldSQL + `, ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint AS claimed,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at
  FROM outbox_batches WHERE buffer = $1
), alone AS (
  SELECT count(*) AS suspects, min(claimed_at) AS oldest_suspect
  FROM outbox_batches WHERE buffer IN ($1, $1 || '` + ledger.DeadLettersSuffix + `') AND ` + ledger.AnySuspectSQL + `
), fresh AS (
  SELECT count(*) AS events, min(created_at) FILTER (WHERE isfinite(created_at)) AS oldest_at FROM (
    SELECT greatest(e.created_at, e.available_at) AS created_at FROM outbox_events e
    WHERE e.id > $2::bigint AND e.group_id IS NULL AND NOT e.id::bigint <@ (SELECT members FROM held) AND ` + ledger.AvailableOfSQL + `
    ORDER BY e.id LIMIT $6::bigint) counted
), below AS (
  SELECT coalesce(range_agg(m), '{}') AS members FROM outbox_batches, unnest(members) m
  WHERE buffer = $1 AND members IS NOT NULL AND first_id <= $2::bigint
), due AS (
  SELECT count(*) AS events, min(created_at) FILTER (WHERE isfinite(created_at)) AS oldest_at FROM (
    SELECT greatest(e.created_at, e.available_at) AS created_at FROM outbox_events e
    WHERE e.available_at > $7::timestamptz AND e.available_at <= statement_timestamp() AND e.id <= $2::bigint AND e.group_id IS NULL
      AND NOT e.id::bigint <@ (SELECT members FROM below)
    ORDER BY e.available_at LIMIT $6::bigint) counted
)
SELECT leased, waiting, delivered, claimed, fresh.events,
       (extract(epoch FROM clock_timestamp() - least(ledger.oldest_at, fresh.oldest_at, due.oldest_at)) * 1000000)::bigint,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $4 AND closed_at IS NULL),
       CASE WHEN pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN
         (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) * 1000000, 0)::bigint
          FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend') END,
       greatest((SELECT reltuples FROM pg_class WHERE oid = $5::regclass), 0)::bigint,
       CASE WHEN $3::bigint > 0 THEN least($3::numeric - $2::bigint, 9223372036854775807)::bigint ELSE 9223372036854775807 END,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $4 AND closed_at IS NULL AND notified_at IS NULL),
       suspects, coalesce(extract(epoch FROM clock_timestamp() - oldest_suspect) * 1000000, 0)::bigint,
       (extract(epoch FROM clock_timestamp() - least(fresh.oldest_at, due.oldest_at)) * 1000000)::bigint,
       due.events,
       (SELECT count(*) FROM (
          SELECT FROM outbox_events e WHERE e.available_at > statement_timestamp() AND e.group_id IS NULL ORDER BY e.available_at LIMIT $6::bigint) counted),
       coalesce((SELECT max(c.reltuples) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                 WHERE i.indrelid = $5::regclass AND i.indpred IS NOT NULL AND i.indkey[0] = (
                   SELECT attnum FROM pg_attribute WHERE attrelid = $5::regclass AND attname = $8 AND NOT attisdropped)), 0)::bigint,
       (SELECT (extract(epoch FROM least(e.available_at, statement_timestamp() + interval '1 year') - statement_timestamp()) * 1000000)::bigint
        FROM outbox_events e WHERE e.available_at > statement_timestamp() AND e.group_id IS NULL ORDER BY e.available_at LIMIT 1)
FROM ledger, alone, fresh, due`

// Status implements buffer.Inspector.
func (b *Backlog) Status(ctx context.Context) (buffer.Status, error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return buffer.Status{}, err
	}
	var (
		s     buffer.Status
		fresh freshEvents
		at    = map[string]int{} // the sinks, by present, former and configured name
	)
	_, lastValue := b.watermarks.Span()
	after := b.watermarks.UnclaimedAfter(t.Conditional)
	steps := []pg.Step{
		pg.ReadTx(b.base.DB.StatementTimeout, pg.PlanByPrimaryKey...),
		{
			SQL: t.Statements.Status,
			Args: []string{
				t.Buffer, pg.Int(after), pg.Int(lastValue), b.base.Pipeline, t.Events, pg.Int(buffer.PendingExact + 1),
				pg.Timestamp(b.watermarks.DelayedAfter()), t.AvailableAt,
			},
			Row: func(v [][]byte) error {
				s.Leased, s.Waiting, s.Delivered = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]), pg.ReadInt8(v[2])
				fresh = freshEvents{events: pg.ReadInt8(v[4]), due: pg.ReadInt8(v[14])}
				fresh.oldest, fresh.ageUnknown = t.Age(v[13], fresh.events+fresh.due)
				if fresh.events > buffer.PendingExact {
					// The statistics' count of rows, or the ids drawn since the floor if those are fewer. A table
					// without a sequence has no count of ids.
					fresh.events = max(fresh.events, min(pg.ReadInt8(v[8]), pg.ReadInt8(v[9])))
				}
				fresh.events += fresh.due
				s.Delayed, s.NextDelayed = pg.ReadInt8(v[15]), 0
				if v[17] != nil {
					s.NextDelayed = max(1, time.Duration(pg.ReadInt8(v[17]))*time.Microsecond)
				}
				fresh.estimateDelayed(&s, pg.ReadInt8(v[16]))
				s.Pending = pg.ReadInt8(v[3]) + fresh.events
				s.OldestPending, s.AgeUnknown = t.Age(v[5], s.Pending)
				s.Dead, s.Unnotified = pg.ReadInt8(v[6]), pg.ReadInt8(v[10])
				if s.OldestTransaction, s.TransactionsHidden = 0, v[7] == nil; !s.TransactionsHidden {
					s.OldestTransaction = max(0, time.Duration(pg.ReadInt8(v[7]))*time.Microsecond)
				}
				s.Suspects = pg.ReadInt8(v[11])
				s.OldestSuspect = max(0, time.Duration(pg.ReadInt8(v[12]))*time.Microsecond)
				s.Waits, s.HookWaits, s.Relays, s.Pauses = nil, nil, nil, nil
				s.Sinks, s.SinkFindings = nil, nil
				clear(at)
				for _, r := range b.base.Sinks {
					at[r.Sink] = len(s.Sinks)
					s.Sinks = append(s.Sinks, buffer.SinkStatus{Name: r.Sink, AgeUnknown: t.NoAges})
				}
				return nil
			},
		},
	}
	if err := b.base.DB.Transact(ctx, append(steps, b.factsStep(t, &s, at, &fresh))...); err != nil {
		return buffer.Status{}, b.base.Explain(ctx, "reading the status", err)
	}
	if b.base.Sinks != nil {
		completeSinks(&s, len(b.base.Sinks), fresh)
	}
	return s, nil
}
