package deadletter

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// An event that is dead at one sink may still wait for another. Then its replay joins the claim that holds it: as a claim of its
// own, the other sink would delete the event before this one has it. So the replay locks the claims that hold any of the events, in
// the order of their locks, before it picks dead letters, and a later statement sees what their settles have left.

// ReplayableSQL are the dead letters that go back, of the buffer $10. A dead letter of a sink goes to the sink that has its name, or had it. One that no sink took is routed again, and so is one of the single
// sink that the buffer had before, unless a sink has taken its place. That of a dropped sink stays open.
const ReplayableSQL = `
  AND (d.sink IN ('*', 'default') OR EXISTS (
    SELECT FROM outbox_sinks s WHERE s.buffer = $10 AND s.dropped_at IS NULL AND d.sink IN (SELECT unnest(s.sink || s.formerly))))`

// AfterSQL are the dead letters after one, $11 and $12; NULL is before all of them.
const AfterSQL = `
    AND ($11::bigint IS NULL OR (d.event_id, d.group_id) > ($11::bigint, $12::uuid))`

// PickUnlockedSQL begins a statement that picks dead letters without locking them.
const PickUnlockedSQL = PickOpenSQL + ReplayableSQL

// LockPickedSQL begins a statement that ends with LockClaimsSQL: the claims that hold any event of the first $9 of those are locked.
const (
	LockPickedSQL = `
WITH matching AS MATERIALIZED (
  SELECT range_agg(int8range(event_id, nullif(event_id, 9223372036854775807), '[]')) AS ids FROM (
    SELECT d.event_id FROM outbox_dead_letters d
    WHERE d.closed_at IS NULL AND ` + matchSQL + ReplayableSQL

	LockClaimsSQL = `
    ORDER BY d.event_id, d.group_id LIMIT $9::bigint) d
), holding AS MATERIALIZED (
  SELECT DISTINCT claim_id FROM outbox_batches, matching WHERE buffer = $10 AND claim_id IS NOT NULL AND members && ids
)` + LockHoldingSQL

	// LockHoldingSQL ends a statement whose holding are claims: they are locked.
	LockHoldingSQL = `, locked AS MATERIALIZED (
  SELECT claim_id, pg_advisory_xact_lock(k)
  FROM (SELECT claim_id, hashtextextended('relay claim ' || claim_id, 0) AS k FROM holding ORDER BY k OFFSET 0) sorted
)
SELECT set_config('relay.locked', coalesce(array_agg(claim_id), '{}')::text, true) FROM locked`
)

// Of an event that a locked claim holds, the claim gets a row for the sink. An event with an id that is used again is another one. An event that is gone is inserted once, with a claim for the
// sinks it is replayed to, or as one that was claimed and not routed yet. Any other dead letter stays open.
const replayRoutedSQL = PickReplayedSQL + ReplayableSQL + AfterSQL + `
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED` + FitSQL + `), named AS MATERIALIZED (
  SELECT event_id, group_id, coalesce((
           SELECT s.sink FROM outbox_sinks s WHERE s.buffer = $10 AND s.dropped_at IS NULL AND d.sink IN (SELECT unnest(s.sink || s.formerly))
           ORDER BY s.sink <> d.sink LIMIT 1), '*') AS sink
  FROM picked p JOIN outbox_dead_letters d USING (event_id, group_id) WHERE d.pipeline = $1
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (event_id, sink) event_id, group_id, sink FROM named ORDER BY event_id, sink, group_id
), holders AS MATERIALIZED (
  SELECT claim_id, sink, members, newest_at FROM outbox_batches
  WHERE buffer = $10 AND claim_id = ANY (current_setting('relay.locked')::uuid[])
), joining AS MATERIALIZED (
  SELECT c.event_id, c.group_id, c.sink, h.claim_id, max(h.newest_at) AS newest_at, bool_or(h.sink = c.sink) AS has
  FROM chosen c JOIN holders h ON c.event_id <@ h.members
  WHERE c.sink <> '*' AND EXISTS (
    SELECT FROM outbox_events e JOIN outbox_dead_letters d ON d.event_id = e.id
    WHERE e.id = c.event_id AND d.pipeline = $1 AND d.group_id = c.group_id
      AND e.created_at = d.created_at AND e.topic = d.topic AND e.key IS NOT DISTINCT FROM d.key)
  GROUP BY c.event_id, c.group_id, c.sink, h.claim_id
), joined AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id)
  SELECT ` + backlog.NewGroupSQL + `, $10, 'range', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(j.event_id), max(j.event_id), min(e.created_at), max(j.newest_at), 'replayed',
         range_agg(int8range(j.event_id, nullif(j.event_id, 9223372036854775807), '[]')), j.sink, j.claim_id
  FROM joining j JOIN outbox_events e ON e.id = j.event_id
  WHERE NOT j.has GROUP BY j.sink, j.claim_id
), gone AS MATERIALIZED (
  SELECT c.event_id, c.group_id, c.sink FROM chosen c
  WHERE NOT EXISTS (SELECT FROM outbox_events e WHERE e.id = c.event_id)
), put AS (
  INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
  OVERRIDING SYSTEM VALUE
  SELECT DISTINCT ON (d.event_id) d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at,
         CASE g.sink WHEN '*' THEN $14::uuid ELSE $13::uuid END
  FROM gone g JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = g.event_id AND d.group_id = g.group_id
  ORDER BY d.event_id, g.sink
  ON CONFLICT (id) DO NOTHING
  RETURNING id, created_at, group_id
), back AS MATERIALIZED (
  SELECT g.event_id, g.group_id, g.sink, p.created_at FROM gone g JOIN put p ON p.id = g.event_id
  WHERE p.group_id = CASE g.sink WHEN '*' THEN $14::uuid ELSE $13::uuid END
), claimed AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id)
  SELECT ` + backlog.NewGroupSQL + `, $10, 'range', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(event_id), max(event_id), min(created_at), '-infinity', 'replayed',
         range_agg(int8range(event_id, nullif(event_id, 9223372036854775807), '[]')), sink, $13::uuid
  FROM back WHERE sink <> '*' GROUP BY sink
), unrouted AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, sink)
  SELECT $14::uuid, $10, 'stamp', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(event_id), max(event_id), min(created_at), 'replayed', '*'
  FROM back WHERE sink = '*' HAVING count(*) > 0
)` + ClosedRoutedSQL

// ClosedRoutedSQL closes what goes back. The last dead letter that was tried comes with how many that are.
const ClosedRoutedSQL = `, closed AS (
  UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'replayed', closed_by = nullif(($3::text[])[4], ''), closed_reason = nullif(($3::text[])[5], '')
  FROM (SELECT event_id, group_id FROM back UNION ALL SELECT event_id, group_id FROM joining WHERE NOT has) r
  WHERE d.pipeline = $1 AND d.event_id = r.event_id AND d.group_id = r.group_id
  RETURNING 1
)
SELECT event_id, group_id, (SELECT count(*) FROM closed) FROM picked ORDER BY event_id DESC, group_id DESC LIMIT 1`

// With order by key, the rows of this transaction get lanes and a number, as a claim gets one.
const (
	replayedLanesSQL = `
UPDATE outbox_batches b
SET seq = nextval('outbox_numbers'), lanes = ARRAY(SELECT DISTINCT hashtext(e.key) FROM outbox_events e
                  WHERE e.id BETWEEN b.first_id AND b.last_id AND (b.members IS NULL OR e.id <@ b.members) AND e.group_id = coalesce(b.claim_id, b.group_id))
WHERE b.buffer = $1 AND b.lanes IS NULL AND b.error = 'replayed' AND b.xmin = pg_current_xact_id()::xid`
)

// replayRouted is Replay for a buffer with several sinks.
func (l *DeadLetters) replayRouted(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return 0, err
	}
	for last := []string{pg.Null, pg.Null}; ; {
		n, next, err := l.replayRoutedAfter(ctx, t, f, limit, last)
		if err != nil || n > 0 || next == nil {
			return n, l.base.Explain(ctx, "replaying dead letters", err)
		}
		last = next // those up to here stay open
	}
}

// replayRoutedAfter puts back some of the dead letters after one, in one transaction. next is the last that was tried; nil: there was none.
func (l *DeadLetters) replayRoutedAfter(ctx context.Context, t *ledger.Tables, f buffer.DeadFilter, limit int, after []string) (n int, next []string, err error) {
	var (
		match     = l.Match(f, append([]string{pg.Int(int64(limit)), t.Buffer}, after...)...)
		putBehind = []string{buffer.NewGroupID().String(), buffer.NewGroupID().String(), l.base.Owner}
		begin     = l.base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...)
	)
	begin.Row = func([][]byte) error {
		n, next = 0, nil
		return nil
	}
	steps := []pg.Step{
		begin,
		l.LockForReplay(),
		{SQL: t.SQL(LockPickedSQL + AfterSQL + LockClaimsSQL), Args: match},
		{SQL: t.SQL(replayRoutedSQL), Args: append(match, putBehind...), Row: func(v [][]byte) error {
			n, next = int(pg.ReadInt8(v[2])), []string{pg.Int(pg.ReadInt8(v[0])), uuid.UUID(v[1]).String()}
			return nil
		}},
	}
	if l.base.Ordered {
		steps = slices.Insert(steps, 1, ledger.LockClaiming(t))
		steps = append(steps, pg.Step{SQL: t.SQL(replayedLanesSQL), Args: []string{t.Buffer}})
	}
	err = l.base.DB.Transact(ctx, steps...)
	return n, next, err
}
