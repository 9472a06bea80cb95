package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Order is kept by key: a live batch holds its keys' lanes, and nothing of theirs is
// claimed while it lives. A lane is a key's hash: two keys in one lane wait for each
// other, and no harm is done.
//
// Claims on a buffer are made one after the other, each with a snapshot that is later
// than the lock. So it sees every batch that was claimed before it, and whatever
// committed before an event that it sees; it begins at the floor, where the cursor
// would have it pass over those that committed late.
const claimLockSQL = `
SELECT pg_advisory_xact_lock(hashtextextended('relay claims ' || $1, 0))`

// Of the events that wait, up to $4 are looked at, in id order; CTEs are read as far
// as they are asked for. NOT IN over a subquery is a hash, whatever the statistics
// say. What the application has locked is left where it is, and so is whatever of the
// same keys was picked. The last line counts what was looked at in vain.
const claimInOrderSQL = `
WITH held AS MATERIALIZED (
  SELECT DISTINCT unnest(lanes) AS lane FROM outbox_batches WHERE buffer = $1
), unordered AS MATERIALIZED (
  SELECT count(*) AS batches FROM outbox_batches WHERE buffer = $1 AND lanes IS NULL
), waits AS MATERIALIZED (
  SELECT id, hashtext(key) AS lane FROM outbox_events
  WHERE id > $3::bigint AND group_id IS NULL
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp key')
    AND (SELECT batches FROM unordered) = 0
  ORDER BY id LIMIT $4::bigint
), picked AS MATERIALIZED (
  SELECT id, lane FROM waits WHERE lane IS NULL OR lane NOT IN (SELECT lane FROM held)
  LIMIT $5::bigint
), locked AS MATERIALIZED (
  SELECT id FROM outbox_events
  WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND group_id IS NULL
  ORDER BY id
  FOR UPDATE SKIP LOCKED
), free AS MATERIALIZED (
  SELECT id FROM picked
  WHERE id IN (SELECT id FROM locked) AND (lane IS NULL OR lane NOT IN (
    SELECT lane FROM picked WHERE lane IS NOT NULL AND id NOT IN (SELECT id FROM locked)))
), stamped AS (
  UPDATE outbox_events SET group_id = $2::uuid
  WHERE id = ANY (ARRAY(SELECT id FROM free))
  RETURNING id, key, created_at
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, lanes)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, count(*), min(id), max(id), min(created_at),
         ARRAY(SELECT DISTINCT hashtext(key) FROM stamped WHERE key IS NOT NULL)
  FROM stamped HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM stamped), (SELECT batches FROM unordered),
       CASE WHEN EXISTS (SELECT FROM picked) THEN 0 ELSE (SELECT count(*) FROM waits) END`

// The batch is read when the lock was given back: a client that stops reading must
// not sit on it.
const claimedSQL = `
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at
FROM outbox_batches l
JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id AND e.group_id = l.group_id
WHERE l.group_id = $1::uuid`

// claimInOrder is Claim where order is kept. When none of the first events that wait
// is free, it looks further, but not each time.
func (b *Buffer) claimInOrder(ctx context.Context, t *table, limit int, lease time.Duration) (*buffer.Lease, error) {
	near := nearby * int64(limit)
	batch, seen, err := b.claimWithin(ctx, t, limit, lease, near)
	if err != nil || batch != nil || seen < near {
		return batch, err
	}
	far, due := b.reach.begin(near, time.Now())
	if !due {
		return nil, nil
	}
	began := time.Now()
	batch, seen, err = b.claimWithin(ctx, t, limit, lease, far)
	if err == nil {
		b.reach.end(far, batch != nil, seen < far, time.Since(began), time.Now())
	}
	return batch, err
}

// claimWithin looks at no more than reach events that wait; seen is how many it
// looked at in vain.
func (b *Buffer) claimWithin(ctx context.Context, t *table, limit int, lease time.Duration, reach int64) (
	batch *buffer.Lease, seen int64, err error,
) {
	var (
		groupID            = buffer.NewGroupID()
		rows               = pg.EventDecoder{PayloadOID: t.payloadOID}
		clock              time.Time
		mode               string
		lastValue          int64
		stamped, unordered int64
		from               = b.marks.floorOfClaims()
		leaseEnd           = time.Now().Add(lease)
	)
	rows.Reserve(limit)
	err = b.db.Transact(
		ctx,
		pg.Step{SQL: t.sql(claimBeginSQL), Args: []string{
			t.sequence, t.buffer, pg.Milliseconds(b.db.StatementTimeout), b.db.UserTimeout(),
		}, Row: func(v [][]byte) error {
			lastValue, clock, mode = pg.ReadInt8(v[0]), pg.ReadTime(v[1]), string(v[2])
			return rows.Reset(nil)
		}},
		pg.Step{SQL: claimLockSQL, Args: []string{t.buffer}},
		pg.Step{
			SQL: t.sql(claimInOrderSQL),
			Args: []string{
				t.buffer, groupID.String(), pg.Int(from), pg.Int(reach), pg.Int(int64(limit)), pg.Interval(lease), b.config.Owner,
			},
			Row: func(v [][]byte) error {
				stamped, unordered, seen = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]), pg.ReadInt8(v[2])
				return nil
			},
		},
		pg.Step{SQL: "COMMIT"},
		pg.Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		b.db.WriteTx(b.db.StatementTimeout, "enable_seqscan", "off"),
		pg.Step{SQL: t.sql(claimedSQL), Args: []string{groupID.String()}, Row: rows.Append},
	)
	switch {
	case err != nil:
		return nil, 0, err
	case mode != claimStampKey:
		return nil, 0, storedMode(mode)
	case unordered > 0:
		return nil, 0, unorderedBatches(t, unordered)
	}
	if stamped > 0 {
		batch = b.leased(&rows, buffer.Lease{
			Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: leaseEnd, UnfinishedLeases: 1,
			ClaimedAt: clock, ClaimedLocal: time.Now(),
		})
	}
	b.marks.claimedInOrder(from, batch, lastValue)
	return batch, seen, nil
}

// reach is how far claims look beyond the first events that wait. A hundred thousand
// of a key that is stuck must not hide the others for ever; nor must every claim read
// the whole backlog where a few keys have all of it.
type reach struct {
	mu   sync.Mutex
	far  int64     // 0: as it begins
	next time.Time // no look that far before
}

const (
	nearby = 10 // times the limit is where each claim looks
	// A look further that was in vain is not repeated sooner than after so many times
	// what it took.
	restOf = 20
)

func (r *reach) begin(near int64, now time.Time) (far int64, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.far = max(r.far, 2*near)
	return r.far, !now.Before(r.next)
}

// end tells what a look that far brought; all: there was no more to look at.
func (r *reach) end(far int64, found, all bool, took time.Duration, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case found:
		return
	case all:
		r.far = 0
	default:
		r.far = max(r.far, 2*far)
	}
	r.next = now.Add(restOf * took)
}

// floorOfClaims is where claims that keep order begin.
func (m *marks) floorOfClaims() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lateWaits > 0 { // a full sweep may have found some below the floor
		return min(m.lateFrom, m.floor)
	}
	return m.floor
}

// claimedInOrder tells what a claim beyond from brought; batch may be nil. lastValue
// is M, read before the claim looked.
func (m *marks) claimedInOrder(from int64, batch *buffer.Lease, lastValue int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sequenceIs(lastValue, from) || batch == nil {
		return
	}
	m.cursor = max(m.cursor, min(batch.LastID, lastValue))
}
