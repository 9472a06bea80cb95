package backlog

import (
	"context"
	"math"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// foundSQL is every event that a batch has: by the group_id that it carries, wherever the ledger has its bounds, and
// without a group_id, or with that of a claim of several sinks, by the ids that are the batch's members. An event that is newer than the batch with
// its id is not a member: see package ledger.
const foundSQL = `
WITH members AS MATERIALIZED (
  SELECT group_id, claim_id, first_id, last_id, members + '{}' AS members, coalesce(newest_at, 'infinity') AS newest_at FROM outbox_batches
  WHERE buffer = $1 AND members IS NOT NULL
), found AS (
  SELECT e.group_id, e.id, e.key, e.created_at, false AS unstamped FROM outbox_events e
  WHERE e.group_id IS NOT NULL AND NOT EXISTS (SELECT FROM members m WHERE m.claim_id = e.group_id AND e.id::bigint <@ m.members)
  UNION ALL
  SELECT m.group_id, e.id, e.key, e.created_at, e.group_id IS NULL
  FROM members m JOIN outbox_events e ON e.id BETWEEN m.first_id AND m.last_id AND e.id::bigint <@ m.members
    AND (e.group_id IS NULL AND e.created_at <= m.newest_at OR e.group_id = m.claim_id)
)`

// One statement is one snapshot.
const auditSQL = foundSQL + `, stamped AS (
  SELECT e.group_id, count(*) AS events, count(*) FILTER (WHERE e.id = ANY (l.delivered)) AS delivered, l.group_id IS NULL AS orphan
  FROM found e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
  GROUP BY e.group_id, l.group_id
), ledger AS (
  SELECT l.state, l.events AS said, coalesce(s.events, 0) AS events, coalesce(s.delivered, 0) AS delivered,
         l.sink = '*' AND l.state = 'waiting' AND l.due_at = 'infinity' AS kept
  FROM outbox_batches l LEFT JOIN stamped s ON s.group_id = l.group_id
  WHERE l.buffer = $1
)
SELECT (SELECT count(*) FROM outbox_events e WHERE e.group_id IS NULL AND ` + ledger.AvailableOfSQL + `) - (SELECT count(DISTINCT id) FROM found WHERE unstamped),
       (SELECT count(*) FROM outbox_events e WHERE e.group_id IS NULL AND e.available_at > statement_timestamp()),` + AuditedSQL

// AuditedSQL ends an audit, whose WITH has stamped and ledger.
const AuditedSQL = `
       count(*) FILTER (WHERE state = 'leased'), coalesce(sum(events) FILTER (WHERE state = 'leased'), 0)::bigint,
       count(*) FILTER (WHERE state = 'waiting'), coalesce(sum(events) FILTER (WHERE state = 'waiting'), 0)::bigint,
       count(*) FILTER (WHERE state = 'delivered'), coalesce(sum(events) FILTER (WHERE state = 'delivered'), 0)::bigint,
       coalesce(sum(delivered) FILTER (WHERE state = 'delivered'), 0)::bigint,
       count(*) FILTER (WHERE events = 0 AND NOT kept), count(*) FILTER (WHERE events NOT IN (0, said) AND NOT kept),
       (SELECT count(*) FROM stamped WHERE orphan), (SELECT coalesce(sum(events), 0)::bigint FROM stamped WHERE orphan),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $2 AND closed_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $2 AND closed_at IS NULL AND notified_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $2 AND closed_at IS NOT NULL),
       count(*) FILTER (WHERE events <> said AND kept)
FROM ledger`

// Audit implements buffer.Auditor.
func (b *Backlog) Audit(ctx context.Context) (buffer.Audit, error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return buffer.Audit{}, err
	}
	var a buffer.Audit
	steps := []pg.Step{pg.ReadTx(pg.ScanTimeout), {
		SQL: t.Statements.Audit, Args: []string{t.Buffer, b.base.Pipeline},
		Row: func(v [][]byte) error {
			n := func(i int) int64 { return pg.ReadInt8(v[i]) }
			count := func(i int) buffer.Count { return buffer.Count{Batches: n(i), Events: n(i + 1)} }
			a = buffer.Audit{
				Unclaimed: n(0), Delayed: n(1), Leased: count(2), Waiting: count(4), Delivered: count(6), DeliveredEvents: n(8),
				EmptyBatches: n(9), Miscounted: n(10), Orphaned: count(11),
				Dead: buffer.DeadCount{Open: n(13), Unnotified: n(14), Closed: n(15)}, KeptDeleted: n(16),
			}
			return nil
		},
	}}
	if b.base.Sinks != nil {
		steps = append(steps, b.auditSinks(t, &a))
	}
	err = b.base.DB.Transact(ctx, steps...)
	return a, b.base.Explain(ctx, "auditing", err)
}

// A leased batch is left to its owner, who deletes by the ids that it has. A row that has changed since it was read is left alone: a route may
// have added events to it.
const removeEmptySQL = foundSQL + RemoveEmptySQL

// RemoveEmptySQL ends a statement whose WITH has found.
const RemoveEmptySQL = `
DELETE FROM outbox_batches l USING outbox_batches o
WHERE l.buffer = $1 AND NOT (l.state = 'leased' AND l.due_at > clock_timestamp())
  AND o.group_id = l.group_id AND o.lease_no = l.lease_no AND o.events = l.events
  AND NOT EXISTS (SELECT FROM found f WHERE f.group_id = l.group_id)`

// Some delivered ids stay even if none of their events is left: the sink has seen this group_id, and the
// rest must not be sent under it.
const correctCountsSQL = foundSQL + `
UPDATE outbox_batches l
SET events = s.events, first_id = s.first_id, last_id = s.last_id, oldest_at = s.oldest_at,
    newest_at = CASE WHEN l.members IS NOT NULL THEN s.newest_at END,
    lanes = CASE WHEN $2::boolean THEN s.lanes END,
    members = CASE WHEN l.members IS NOT NULL THEN s.members END,
    delivered = coalesce((SELECT array_agg(id::bigint ORDER BY id) FROM found
                          WHERE group_id = l.group_id AND id = ANY (l.delivered)), l.delivered)
FROM (SELECT group_id, count(*) AS events, min(id) AS first_id, max(id) AS last_id, min(created_at) AS oldest_at,
             max(created_at) AS newest_at,
             range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) AS members,
             coalesce(array_agg(DISTINCT hashtext(key)) FILTER (WHERE key IS NOT NULL), '{}') AS lanes
      FROM found GROUP BY group_id) s, outbox_batches o
WHERE l.buffer = $1 AND s.group_id = l.group_id AND s.events <> l.events
  AND o.group_id = l.group_id AND o.lease_no = l.lease_no AND o.events = l.events
  AND NOT (l.state = 'leased' AND l.due_at > clock_timestamp())`

// Repair implements buffer.Auditor.
func (b *Backlog) Repair(ctx context.Context) (buffer.Repair, error) {
	t, err := b.base.Ready(ctx)
	if err != nil {
		return buffer.Repair{}, err
	}
	var r buffer.Repair
	begin := b.base.DB.WriteTx(pg.ScanTimeout, "synchronous_commit", "on")
	begin.Row = func([][]byte) error {
		r = buffer.Repair{}
		return nil
	}
	err = b.base.DB.Transact(
		ctx, begin, b.adopt(t, t.Statements.AdoptAll, &r.Adopted, math.MinInt64, math.MaxInt64),
		pg.Step{SQL: t.Statements.RemoveEmpty, Args: []string{t.Buffer}, Affected: &r.Removed},
		pg.Step{SQL: t.Statements.CorrectCounts, Args: []string{t.Buffer, pg.Bool(b.base.Ordered)}, Affected: &r.Corrected},
	)
	if err == nil && b.base.Sinks != nil {
		r.Joined, err = b.joinClaims(ctx, t)
	}
	return r, b.base.Explain(ctx, "repairing the ledger", err)
}
