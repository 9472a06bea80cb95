package backlog

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// spansSQL are the ids that the batches of each claim hold, a row for each range of them. A batch without a claim_id is a claim of its own.
// Those of a stamp are left out, because an event carries one claim_id.
const spansSQL = `
WITH held AS MATERIALIZED (
  SELECT coalesce(claim_id, group_id) AS claim, group_id, state <> 'waiting' AND due_at > clock_timestamp() AS leased, members FROM outbox_batches
  WHERE buffer = $1 AND members IS NOT NULL AND newest_at > '-infinity'
), claims AS MATERIALIZED (
  SELECT claim, range_agg(m) AS ids FROM held, unnest(members) m GROUP BY claim
), spans AS MATERIALIZED (
  SELECT claim, lower(r) AS first, coalesce(upper(r), 9223372036854775807) AS beyond FROM claims, unnest(ids) r
), follows AS MATERIALIZED (
  SELECT claim, first, beyond, max(beyond) OVER (ORDER BY first, beyond, claim ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM spans
)`

// A batch whose delivery is recorded is not sent again, so it doubles none.
const auditSinksSQL = spansSQL + `, sent AS (
  SELECT sink, CASE WHEN newest_at = '-infinity' THEN claim_id END AS stamp, lower(r) AS first, coalesce(upper(r), 9223372036854775807) AS beyond
  FROM outbox_batches, unnest(members) r WHERE buffer = $1 AND state <> 'delivered'
), repeats AS (
  SELECT stamp, first, beyond, max(beyond) OVER (PARTITION BY sink, stamp ORDER BY first, beyond ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM sent
)
SELECT (SELECT count(*) FROM follows f JOIN outbox_events e ON e.id >= f.first AND e.id < least(f.beyond, f.before) AND e.group_id IS NULL WHERE f.before > f.first),
       (SELECT count(*) FROM repeats r JOIN outbox_events e ON e.id >= r.first AND e.id < least(r.beyond, r.before) AND e.group_id IS NOT DISTINCT FROM r.stamp
        WHERE r.before > r.first),` + AuditedSinksSQL

// AuditedSinksSQL ends an audit of several sinks.
const AuditedSinksSQL = `
       count(*) FILTER (WHERE unserved), coalesce(sum(events) FILTER (WHERE unserved), 0)::bigint,
       count(*) FILTER (WHERE kept), coalesce(sum(events) FILTER (WHERE kept), 0)::bigint,
       count(*) FILTER (WHERE unrouted), coalesce(sum(events) FILTER (WHERE unrouted), 0)::bigint
FROM (
  SELECT events, sink <> '*' AND NOT EXISTS (SELECT FROM outbox_sinks s WHERE s.buffer = $1 AND s.sink = b.sink) AS unserved,
         sink = '*' AND state <> 'delivered' AND due_at = 'infinity' AS kept, sink = '*' AND state <> 'delivered' AND due_at < 'infinity' AS unrouted
  FROM outbox_batches b WHERE buffer = $1) batches`

// auditSinks is the part of an audit for several sinks.
func (b *Backlog) auditSinks(t *ledger.Tables, a *buffer.Audit) pg.Step {
	return pg.Step{SQL: t.Statements.AuditSinks, Args: []string{t.Buffer}, Row: func(v [][]byte) error {
		n := func(i int) int64 { return pg.ReadInt8(v[i]) }
		a.Split, a.Doubled = n(0), n(1)
		a.Unserved, a.Kept, a.Unrouted = buffer.Count{Batches: n(2), Events: n(3)}, buffer.Count{Batches: n(4), Events: n(5)}, buffer.Count{Batches: n(6), Events: n(7)}
		return nil
	}}
}

// Claims that hold the same events become one, so that their settles see each other. Their locks keep settles away, and the locks of their rows
// take-overs. The locks are granted before the last statement reads what the claims hold. A claim of which a batch is leased stays as it is,
// with all that overlap with it. lease_no rises, so that no route adds to a row under the claim_id that it had.
const (
	lockSplitSQL = spansSQL + `
SELECT pg_advisory_xact_lock(k) FROM (
  SELECT DISTINCT hashtextextended('relay claim ' || s.claim, 0) AS k
  FROM follows f JOIN spans s ON s.first < f.beyond AND s.beyond > f.first WHERE f.before > f.first
  ORDER BY k OFFSET 0) sorted`

	lockSplitRowsSQL = spansSQL + `
SELECT set_config('relay.locked', coalesce(array_agg(group_id), '{}')::text, true) FROM (
  SELECT group_id FROM outbox_batches
  WHERE group_id IN (SELECT h.group_id FROM held h WHERE h.claim IN (
    SELECT s.claim FROM follows f JOIN spans s ON s.first < f.beyond AND s.beyond > f.first WHERE f.before > f.first))
  ORDER BY group_id
  FOR UPDATE SKIP LOCKED) locked`

	joinClaimsSQL = spansSQL + `, islands AS MATERIALIZED (
  SELECT claim, count(*) FILTER (WHERE before IS NULL OR before <= first) OVER (ORDER BY first, beyond, claim ROWS UNBOUNDED PRECEDING) AS island
  FROM follows
), busy AS MATERIALIZED (
  SELECT DISTINCT claim FROM held WHERE leased OR NOT group_id = ANY (current_setting('relay.locked')::uuid[])
), targets AS MATERIALIZED (
  SELECT island, min(claim::text)::uuid AS target FROM islands GROUP BY island
  HAVING count(DISTINCT claim) > 1 AND NOT bool_or(claim IN (SELECT claim FROM busy))
), moves AS MATERIALIZED (
  SELECT claim, min(target::text)::uuid AS target FROM islands JOIN targets USING (island) GROUP BY claim
)
UPDATE outbox_batches b SET claim_id = m.target, lease_no = b.lease_no + 1
FROM moves m JOIN held h ON h.claim = m.claim
WHERE b.group_id = h.group_id AND b.claim_id IS DISTINCT FROM m.target`
)

// maxJoins is how often claims are joined: one that overlaps with several others joins one of them at a time.
const maxJoins = 20

// joinClaims gives batches of different claims that hold the same events one claim_id, and returns how many it has changed.
func (b *Backlog) joinClaims(ctx context.Context, t *ledger.Tables) (changed int64, err error) {
	for range maxJoins {
		var n int64
		err := b.base.DB.Transact(ctx, b.base.DB.WriteTx(pg.ScanTimeout, "synchronous_commit", "on"),
			pg.Step{SQL: t.SQL(lockSplitSQL), Args: []string{t.Buffer}},
			pg.Step{SQL: t.SQL(lockSplitRowsSQL), Args: []string{t.Buffer}},
			pg.Step{SQL: t.SQL(joinClaimsSQL), Args: []string{t.Buffer}, Affected: &n})
		if err != nil || n == 0 {
			return changed, err
		}
		changed += n
	}
	return changed, nil
}
