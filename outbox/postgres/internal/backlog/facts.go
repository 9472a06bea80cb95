package backlog

import (
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/relays"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The parts that both statements have.
const (
	relaysAndHookSQL = `(SELECT 'relay' AS part, row_number() OVER (ORDER BY stopped, seen_at DESC, sink, owner) AS place,
        sink, owner, version, not_ready, not_ready_class, notice, latencies,
        CASE WHEN answered_at > clock_timestamp() - interval '1 hour' THEN concat_ws(E'\n', nullif(answers_before, ''), nullif(answers, '')) ELSE '' END,
        stopped, probes, delivered, dead, last_minute,
        (extract(epoch FROM clock_timestamp() - seen_at) * 1000000)::bigint, (extract(epoch FROM seen_at - started_at) * 1000000)::bigint,
        coalesce((extract(epoch FROM clock_timestamp() - delivered_at) * 1000000)::bigint, -1),
        coalesce((extract(epoch FROM clock_timestamp() - not_ready_at) * 1000000)::bigint, 0)
 FROM outbox_relays WHERE buffer = $1 ORDER BY place LIMIT $3::bigint)
UNION ALL
(SELECT 'hook', row_number() OVER (ORDER BY count(*) DESC, min(due_at)) AS place,
        '', coalesce(error, ''), '', '', '', '', '', '', bool_and(address IS NOT NULL), false, count(*), sum(events)::bigint,
        (extract(epoch FROM min(due_at) - clock_timestamp()) * 1000000)::bigint,
        (extract(epoch FROM max(due_at) - clock_timestamp()) * 1000000)::bigint, 0, 0, 0
 FROM outbox_batches WHERE buffer = $2 AND isfinite(due_at) AND (state = 'waiting' OR state = 'delivered' AND error IS NOT NULL)
 GROUP BY error ORDER BY place LIMIT $4::bigint)
`

	pauseSQL = `(SELECT 'pause', 1, '', coalesce(paused_by, ''), coalesce(paused_reason, ''), '', '', '', '', '', false, false,
        (extract(epoch FROM clock_timestamp() - paused_at) * 1000000)::bigint, 0, 0, 0, 0, 0, 0
 FROM outbox_buffers WHERE buffer = $1 AND paused_at IS NOT NULL)
`
)

// The console reads the status every second, so its small parts are one statement: the relays of the buffer, why batches of the dead-letter hook
// ($2) and of the buffer wait, and the pause. A delivered batch has an error if its events cannot be deleted. The role of a relay with a single sink
// need not have a privilege on outbox_sinks.
const factsSQL = `
` + relaysAndHookSQL + `UNION ALL
(SELECT 'wait', row_number() OVER (ORDER BY count(*) DESC, min(due_at)) AS place,
        '', coalesce(error, ''), '', '', '', '', '', '', bool_and(address IS NOT NULL), false, count(*), sum(events)::bigint,
        (extract(epoch FROM min(due_at) - clock_timestamp()) * 1000000)::bigint,
        (extract(epoch FROM max(due_at) - clock_timestamp()) * 1000000)::bigint, 0, 0, 0
 FROM outbox_batches WHERE buffer = $1 AND isfinite(due_at) AND (state = 'waiting' OR state = 'delivered' AND error IS NOT NULL)
 GROUP BY error ORDER BY place LIMIT $4::bigint)
UNION ALL
` + pauseSQL + `ORDER BY part, place`

// The same for a buffer with several sinks: why the batches of each sink wait, and what is paused of them. An event is in a row of each sink that does
// not have it, so the pending events are those that any row has. Rows that may share events have the same claim_id: only the members of
// those are compared, and not those of a claim that has one row left, as most do that a sink behind has not got yet. Beyond $5 events the
// estimate of a claim is its largest row. The sinks themselves come before what waits for them.
const routedFactsSQL = `
SELECT f.*, NULL::timestamptz AS seen_at, NULL::timestamptz AS dropped_at, NULL::bigint[] AS counts, NULL::text[] AS names FROM (
` + relaysAndHookSQL + `UNION ALL
(SELECT 'wait', row_number() OVER (ORDER BY sink, n), sink, error, '', '', '', '', '', '', early, false, batches, events, first, last, 0, 0, 0 FROM (
   SELECT sink, coalesce(error, '') AS error, count(*) AS batches, sum(events)::bigint AS events,
          (extract(epoch FROM min(due_at) - clock_timestamp()) * 1000000)::bigint AS first,
          (extract(epoch FROM max(due_at) - clock_timestamp()) * 1000000)::bigint AS last, bool_and(address IS NOT NULL) AS early,
          row_number() OVER (PARTITION BY sink ORDER BY count(*) DESC, min(due_at)) AS n
   FROM outbox_batches
   WHERE buffer = $1 AND isfinite(due_at) AND (state = 'waiting' OR state = 'delivered' AND error IS NOT NULL)
   GROUP BY sink, error
 ) reasons WHERE n <= $4::bigint)
UNION ALL
` + pauseSQL + `UNION ALL
(SELECT 'pause', 1 + row_number() OVER (ORDER BY sink), sink, coalesce(paused_by, ''), coalesce(paused_reason, ''), '', '', '', '', '', false, false,
        (extract(epoch FROM clock_timestamp() - paused_at) * 1000000)::bigint, 0, 0, 0, 0, 0, 0
 FROM outbox_sinks WHERE buffer = $1 AND paused_at IS NOT NULL AND dropped_at IS NULL)
UNION ALL
(WITH claims AS MATERIALIZED (
   SELECT claim_id, count(*) AS rows, sum(events - cardinality(delivered)) AS events, max(events - cardinality(delivered)) AS largest
   FROM outbox_batches WHERE buffer = $1 AND events > cardinality(delivered) GROUP BY claim_id
 ), shared AS (
   SELECT unnest(range_agg(m)) AS ids
   FROM claims c JOIN outbox_batches b ON b.claim_id = c.claim_id AND b.buffer = $1 AND b.events > cardinality(b.delivered),
        unnest(b.members - CASE WHEN b.delivered = '{}' THEN '{}' ELSE
          (SELECT range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) FROM unnest(b.delivered) id) END) m
   WHERE c.rows > 1 GROUP BY c.claim_id
 )
 SELECT 'pending', 1, '', '', '', '', '', '', '', '', false, false,
        coalesce((SELECT sum(events) FROM claims WHERE claim_id IS NULL OR rows = 1), 0)::bigint
      + coalesce(CASE WHEN (SELECT sum(events) FROM claims WHERE claim_id IS NOT NULL AND rows > 1) <= $5::bigint THEN
          (SELECT sum(coalesce(upper(ids), 9223372036854775807) - lower(ids) + CASE WHEN upper_inf(ids) THEN 1 ELSE 0 END) FROM shared)
        ELSE (SELECT sum(largest) FROM claims WHERE claim_id IS NOT NULL AND rows > 1) END, 0)::bigint, 0, 0, 0, 0, 0, 0)
) f
UNION ALL
` + sinksSQL + `
ORDER BY part, place`

// factsStep reads these parts. s has the configured sinks, if there are several, at the indexes that at has by name; fresh is the unclaimed events.
func (b *Backlog) factsStep(t *ledger.Tables, s *buffer.Status, at map[string]int, fresh *freshEvents) pg.Step {
	sql, args := factsSQL, []string{t.Buffer, t.Buffer + ledger.DeadLettersSuffix, pg.Int(buffer.MaxRelays), pg.Int(buffer.MaxWaits)}
	if b.base.Sinks != nil {
		sql, args = routedFactsSQL, append(args, pg.Int(int64(buffer.PendingExact*len(b.base.Sinks))), b.base.Pipeline)
	}
	return pg.Step{SQL: t.SQL(sql), Args: args, Row: func(v [][]byte) error {
		text := func(i int) string { return string(v[1+i]) }   // 1 to 8
		n := func(i int) int64 { return pg.ReadInt8(v[11+i]) } // 1 to 7
		micros := func(i int) time.Duration { return time.Duration(n(i)) * time.Microsecond }
		wait := buffer.Wait{Error: text(2), Batches: n(1), Events: n(2), First: micros(3), Last: micros(4), Early: pg.ReadBool(v[10])}
		switch string(v[0]) {
		case "relay":
			r := buffer.Relay{
				Sink: text(1), Owner: text(2), Seen: max(0, micros(4)), Uptime: max(0, micros(5)),
				RelayReport: buffer.RelayReport{
					Version: text(3), NotReady: text(4), Notice: text(6), Latencies: buffer.ParseLatencies(text(7)), Answers: text(8), Probes: pg.ReadBool(v[11]),
					Stopped: pg.ReadBool(v[10]), Delivered: n(1), Dead: n(2), LastMinute: n(3), LastDelivery: micros(6), NotReadyFor: max(0, micros(7)),
				},
			}
			relays.ReadClass(&r.RelayReport, text(5))
			s.Relays = append(s.Relays, r)
		case "hook":
			s.HookWaits = append(s.HookWaits, wait)
		case "wait":
			if b.base.Sinks == nil {
				s.Waits = append(s.Waits, wait)
			} else if i, known := at[text(1)]; known && len(s.Sinks[i].Waits) < buffer.MaxWaits { // it may have been added since, or waits have former names
				s.Sinks[i].Waits = append(s.Sinks[i].Waits, wait)
			}
		case "pause":
			s.Pauses = append(s.Pauses, buffer.Pause{Sink: text(1), For: max(0, micros(1)), By: text(2), Reason: text(3)})
		case "pending":
			s.Pending = fresh.events + n(1)
		case "sink":
			b.addSink(t, s, at, v)
		}
		return nil
	}}
}
