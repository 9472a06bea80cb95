package ledger

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Order by key with several sinks. Claims take all keys, and each has a number, seq. The batches and parts that come of a claim keep the number.
// In a sink, the batches are in the order of (seq, first_id), and a lane, the hash of a key, is free for the first batch that
// has it. A batch that was claimed and not routed yet comes before the later ones of every sink.
//
// A batch that nobody has leased yet is taken over if any of its lanes is free. If others are not, it is cut: the events of those lanes go to a
// new row of the same claim and number. A batch that was sent is never cut, because its group_id is known to the sink; it waits until all
// its lanes are free. That happens to parts that were cut by id only: a lane that was free stays free, because claims take higher numbers.
//
// A number is drawn while the lock of claims is held, so no later one is ever seen without the earlier ones. Then one statement with one snapshot
// is enough to find a free lane: routes, parts and cuts replace rows in one transaction, and everything else only frees lanes.

// ReadySQL are the first $7 batches of sink $6 of buffer $1, with those that are not routed yet, and of these the ones that wait for no other. No number
// is smaller than $9. NULL is the lane of events without a key, and of a batch without lanes. The batches behind $8 events are left out. UNION ALL and
// the index on seq: neither a backlog nor dead entries of the index are read.
const ReadySQL = `
WITH ordered AS MATERIALIZED (
  SELECT * FROM (
    SELECT *, row_number() OVER earlier AS n, sum(events) OVER earlier - events AS before
    FROM (
      (SELECT group_id, sink, seq, first_id, lanes, state, lease_no, due_at, unfinished_leases, events, ` + UnsentSQL + ` AS unsent
       FROM outbox_batches WHERE buffer = $1 AND sink = $6 AND seq >= $9::bigint AND coalesce(current_setting('relay.due', true), '') = ''
       ORDER BY seq, first_id LIMIT $7::bigint)
      UNION ALL
      (SELECT group_id, sink, seq, first_id, lanes, state, lease_no, due_at, unfinished_leases, events, false
       FROM outbox_batches WHERE buffer = $1 AND sink = '*' AND seq >= $9::bigint AND due_at < 'infinity' AND coalesce(current_setting('relay.due', true), '') = ''
       ORDER BY seq, first_id LIMIT $7::bigint)
    ) first
    WINDOW earlier AS (ORDER BY seq, first_id, group_id ROWS UNBOUNDED PRECEDING)
    ORDER BY n LIMIT $7::bigint) first
  WHERE before < $8::bigint
), lane AS MATERIALIZED (
  SELECT hash, min(n) AS n FROM ordered, unnest(lanes) hash WHERE hash IS NOT NULL GROUP BY hash
), ready AS MATERIALIZED (
  SELECT o.n FROM ordered o LEFT JOIN LATERAL unnest(o.lanes) hash ON true LEFT JOIN lane ON lane.hash = hash.hash
  WHERE o.sink <> '*'
  GROUP BY o.n, o.unsent, o.state
  HAVING CASE WHEN o.unsent THEN bool_or(hash.hash IS NULL OR lane.n = o.n) ELSE bool_and(hash.hash IS NULL OR lane.n = o.n) END OR o.state = 'delivered'
)`

var (
	// Near is $7 and $8 of ReadySQL: how far is looked first.
	Near = []string{"200", "20000"}
	// Far is how far is looked if nothing is found there. A key that is stuck leaves a small batch of each claim.
	Far = []string{"10000", "200000"}
)

// lanesSettings make plans of ReadySQL walk the index in its order, whatever the statistics say.
var lanesSettings = []string{"synchronous_commit", "on", "enable_seqscan", "off", "enable_bitmapscan", "off", "enable_sort", "off"}

const (
	// lease_no is compared once more when the row is locked: somebody else may have leased the batch since. What has been due longest comes first, as
	// without order: a bad batch, which is due again and again, does not keep the others from being tried.
	lockReadySQL = ReadySQL + `, candidate AS MATERIALIZED (
  SELECT group_id, lease_no FROM ordered
  WHERE n IN (SELECT n FROM ready) AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
    AND ` + SuspectSQL + ` = $5::boolean AND $3::interval IS NOT NULL AND $4::text IS NOT NULL
  ORDER BY due_at, n LIMIT 50
), due AS MATERIALIZED (
  SELECT b.group_id FROM candidate c, LATERAL (
    SELECT group_id FROM outbox_batches WHERE group_id = c.group_id AND lease_no = c.lease_no AND due_at <= (SELECT clock_timestamp())
    FOR UPDATE SKIP LOCKED) b
  LIMIT 1
)
SELECT set_config('relay.due', group_id::text, true), set_config('relay.taken', (
         SELECT coalesce(array_agg(lane.hash), '{}')::text FROM ordered o, unnest(o.lanes) hash JOIN lane ON lane.hash = hash.hash
         WHERE o.group_id = due.group_id AND lane.n < o.n), true)
FROM due`

	// What the application has deleted is in neither row. All events of the batch carry the claim_id.
	cutSQL = `
WITH due AS MATERIALIZED (
  SELECT * FROM outbox_batches
  WHERE group_id = nullif(current_setting('relay.due', true), '')::uuid AND current_setting('relay.taken', true) <> '{}'
    AND state = 'waiting' AND lease_no = 0 AND origins = '{}' AND claim_id IS NOT NULL
), found AS MATERIALIZED (
  SELECT e.id, e.created_at, hashtext(e.key) AS hash, coalesce(hashtext(e.key) IN (SELECT unnest(nullif(current_setting('relay.taken', true), '')::int[])), false) AS waits
  FROM due JOIN outbox_events e ON e.id BETWEEN due.first_id AND due.last_id AND e.id <@ due.members AND e.group_id = due.claim_id
), halves AS MATERIALIZED (
  SELECT waits, count(*) AS events, min(id) AS first_id, max(id) AS last_id, min(created_at) AS oldest_at,
         range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) AS members, array_agg(DISTINCT hash) AS lanes
  FROM found GROUP BY waits
), rest AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
                              first_id, last_id, oldest_at, newest_at, claimed_at, error, members, sink, claim_id, routes_no, seq, lanes, stamp_xid)
  SELECT $1::uuid, d.buffer, d.claim, d.state, d.lease_no, d.due_at, d.owner, d.unfinished_leases, d.attempts, d.outages, h.events,
         h.first_id, h.last_id, h.oldest_at, d.newest_at, d.claimed_at, d.error, h.members, d.sink, d.claim_id, d.routes_no, d.seq, h.lanes, d.stamp_xid
  FROM due d, halves h WHERE h.waits
)
UPDATE outbox_batches b
SET events = coalesce(h.events, 0), first_id = coalesce(h.first_id, b.first_id), last_id = coalesce(h.last_id, b.last_id),
    oldest_at = coalesce(h.oldest_at, b.oldest_at), members = coalesce(h.members, '{}'), lanes = coalesce(h.lanes, '{}')
FROM due LEFT JOIN halves h ON NOT h.waits
WHERE b.group_id = due.group_id`

	takeOverByLanesSQL = `
WITH due AS (
  SELECT nullif(current_setting('relay.due', true), '')::uuid AS group_id
  WHERE $1::text IS NOT NULL AND $2::timestamptz IS NOT NULL AND $5::boolean IS NOT NULL AND $6::text IS NOT NULL
)` + TakenSQL + NothingSQL
)

// lockUnsentSQL finds the batch of [buffer.DueUnsent] instead.
var lockUnsentSQL = strings.Replace(lockReadySQL, "ORDER BY due_at, n LIMIT 50", "AND unsent ORDER BY due_at, n LIMIT 50", 1)

// byLanes reports whether the sink is one of several, and keeps order by key.
func (l *Ledger) byLanes() bool { return l.base.KeepsOrder(l.sink) }

// KeepsOrder reports whether one of several sinks keeps order by key.
func (b *Base) KeepsOrder(sink string) bool {
	for i := range b.Sinks {
		if b.Sinks[i].Sink == sink {
			return b.Sinks[i].Ordered
		}
	}
	return false
}

// lockAndCut are the steps that choose a batch and leave it what may be sent.
func (l *Ledger) lockAndCut(t *Tables, lease time.Duration, due buffer.Due) []pg.Step {
	lock := lockReadySQL
	if due == buffer.DueUnsent {
		lock = lockUnsentSQL
	}
	sql, args, from := t.SQL(lock), l.dueArgs(t, lease, due), pg.Int(l.seq.floor.Load())
	return []pg.Step{
		{SQL: sql, Args: append(append(slices.Clone(args), Near...), from)},
		{SQL: sql, Args: append(append(args, Far...), from)}, // if there was none
		{SQL: t.SQL(cutSQL), Args: []string{buffer.NewGroupID().String()}},
	}
}

// SeqLine is where the live batches of a sink begin by their numbers, so that no statement walks over index entries of those that were deleted. The
// zero SeqLine begins at the beginning.
type SeqLine struct {
	floor   atomic.Int64
	allNext atomic.Int64 // Unix nanoseconds
}

// seqMargin is how often a count begins at the beginning. Batches of a former name of the sink, and those whose events a trigger has kept, have the number 0.
const seqMargin = time.Minute

// Next returns where a count begins.
func (s *SeqLine) Next(now time.Time) int64 {
	if now.UnixNano() < s.allNext.Load() {
		return s.floor.Load()
	}
	s.allNext.Store(now.Add(seqMargin).UnixNano())
	return 0
}

// Counted takes the first number of such a count; -1: there is none, and later ones are larger than those of before.
func (s *SeqLine) Counted(first int64) {
	if first >= 0 {
		s.floor.Store(first)
	}
}

// Seq is the line of the ledger's sink.
func (l *Ledger) Seq() *SeqLine { return &l.seq }

const (
	// The number of a row never changes, so it is read before the fence. An orphan that was adopted has none.
	seqSQL = `
SELECT set_config('relay.seq', coalesce(seq, (
  SELECT nextval('outbox_numbers') FROM pg_advisory_xact_lock(hashtextextended('relay claims ' || buffer, 0))))::text, true)
FROM outbox_batches WHERE group_id = $1::uuid`

	lanesSQL = `
UPDATE outbox_batches b
SET seq = nullif(current_setting('relay.seq', true), '')::bigint,
    lanes = ARRAY(SELECT DISTINCT hashtext(e.key) FROM outbox_events e
                  WHERE e.id BETWEEN b.first_id AND b.last_id AND e.id <@ b.members AND e.group_id = b.claim_id)
WHERE current_setting('relay.fenced') = '1' AND b.group_id = ANY ($1::uuid[])`
)

// SeqStep is the step before a fence whose row is replaced by others: those get its number.
func SeqStep(t *Tables, group uuid.UUID) pg.Step {
	return pg.Step{SQL: t.SQL(seqSQL), Args: []string{group.String()}}
}

// LanesStep is the step that gives new rows the number of SeqStep, and the lanes of their events.
func LanesStep(t *Tables, groups ...uuid.UUID) pg.Step {
	return pg.Step{SQL: t.SQL(lanesSQL), Args: []string{pg.UUIDArray(groups)}}
}
