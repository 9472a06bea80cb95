package router

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A fill gives a sink events that were never routed to it. outbox_sinks.routed are the routes_no with which events are routed to the sink; a batch
// has the routes_no with which it was routed, its parts have it too, and so have its events in the archive. An event lacks the sink if its routes_no is
// not among those. So nothing else has to be remembered: batches whose events the sink got take the present routes_no, and an event that comes back
// from the archive is archived again with it. A fill that was killed is begun again.

const (
	// FillSinkSQL is what the sink lacks. A replayed batch has no routes_no: it belongs to the sink that it was replayed to.
	FillSinkSQL = `
sink AS MATERIALIZED (
  SELECT s.sink, s.batch_size, s.routed, CASE WHEN NOT 'default' = ANY (s.formerly) THEN s.registered_at END AS registered_at, b.routes_no, b.pipeline
  FROM outbox_sinks s JOIN outbox_buffers b ON b.buffer = s.buffer
  WHERE s.buffer = $1 AND s.sink = $2 AND s.dropped_at IS NULL
)`

	// The claims whose batches lack the sink, the oldest events first; a batch that shares no event is one by itself. One that is only to be deleted
	// was delivered everywhere.
	fillClaimsSQL = `
WITH` + FillSinkSQL + `
SELECT coalesce(l.claim_id, l.group_id), l.claim_id IS NOT NULL
FROM outbox_batches l, sink
WHERE l.buffer = $1 AND l.sink <> '*' AND NOT l.routes_no <@ sink.routed AND (l.claim_id IS NOT NULL OR l.state <> 'delivered')
GROUP BY 1, 2 ORDER BY min(l.first_id)`

	// A batch that shared no event gets the claim_id that its events may carry. One that is leased is left for later, because its owner knows none.
	fillShareSQL = `
UPDATE outbox_batches SET claim_id = group_id, members = coalesce(members, (
  SELECT range_agg(int8range(e.id, nullif(e.id, 9223372036854775807), '[]')) FROM outbox_events e
  WHERE e.id BETWEEN outbox_batches.first_id AND outbox_batches.last_id AND e.group_id = outbox_batches.group_id), '{}')
WHERE group_id = $1::uuid AND claim_id IS NULL AND state = 'waiting'`

	// The rows of a claim, under its lock. A count ($6) comes before fillShareSQL.
	fillHeldSQL = FillSinkSQL + `, held AS MATERIALIZED (
  SELECT l.group_id, l.sink, l.members, l.newest_at, l.routes_no FROM outbox_batches l WHERE l.claim_id = $3::uuid
  UNION ALL
  SELECT l.group_id, l.sink, coalesce(l.members, int8multirange(int8range(l.first_id, nullif(l.last_id, 9223372036854775807), '[]'))), coalesce(l.newest_at, '-infinity'), l.routes_no
  FROM outbox_batches l WHERE $6::boolean AND l.group_id = $3::uuid AND l.claim_id IS NULL
), lacking AS MATERIALIZED (
  SELECT range_agg(m) - coalesce((SELECT range_agg(m) FROM held h, sink s, unnest(h.members) m WHERE h.sink = s.sink), '{}') AS ids, max(newest_at) AS newest_at
  FROM held, sink, unnest(members) m
  WHERE held.sink <> '*' AND NOT held.routes_no <@ sink.routed
), chosen AS MATERIALIZED (
  SELECT e.id, e.created_at, row_number() OVER (ORDER BY e.id) - 1 AS n FROM outbox_events e
  WHERE e.id BETWEEN (SELECT lower(ids) FROM lacking) AND (SELECT coalesce(upper(ids) - 1, 9223372036854775807) FROM lacking) AND e.id <@ (SELECT ids FROM lacking)
    AND (e.group_id = $3::uuid OR e.group_id IS NULL AND e.created_at <= (SELECT newest_at FROM lacking))
    AND e.created_at >= $4::timestamptz AND left(e.topic, 4096) ~ ANY ($5::text[])
)`

	fillCountClaimSQL = `
WITH` + fillHeldSQL + `
SELECT count(*) FROM chosen`

	fillClaimSQL = `
WITH` + fillHeldSQL + `, given AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, routes_no)
  SELECT ` + backlog.NewGroupSQL + `, $1, 'range', 'waiting', 0, clock_timestamp(), $7, 0,
         0, 0, count(*), min(c.id), max(c.id), min(c.created_at), max(lacking.newest_at), 'filled',
         range_agg(int8range(c.id, nullif(c.id, 9223372036854775807), '[]')), sink.sink, $3::uuid, sink.routes_no
  FROM chosen c, sink, lacking
  GROUP BY c.n / sink.batch_size, sink.sink, sink.routes_no ORDER BY min(c.id)
  RETURNING events
), marked AS (
  UPDATE outbox_batches l SET routes_no = sink.routes_no FROM sink
  WHERE l.claim_id = $3::uuid AND NOT l.routes_no <@ sink.routed AND EXISTS (SELECT FROM chosen)
)
SELECT coalesce(sum(events), 0)::bigint FROM given`

	// A page of the archive, by its primary key. What a pipeline with a single sink has archived has no routes_no. It does not lack the sink that took
	// the place of the single one. An event with an open dead letter that no sink took is archived, too, and a replay of it is matched against all sinks.
	fillPageSQL = FillSinkSQL + `, page AS MATERIALIZED (
  SELECT id, group_id, topic, created_at, archived_at, routes_no FROM outbox_archive
  WHERE (id, group_id) > ($3::bigint, $4::uuid) ORDER BY id, group_id LIMIT 1000
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (p.id) p.id, p.group_id FROM page p, sink
  WHERE p.created_at >= $5::timestamptz AND left(p.topic, 4096) ~ ANY ($6::text[])
    AND coalesce(NOT p.routes_no <@ sink.routed, p.archived_at < sink.registered_at)
    AND NOT EXISTS (SELECT FROM outbox_archive o WHERE o.id = p.id AND o.created_at = p.created_at AND o.routes_no <@ sink.routed)
    AND NOT EXISTS (SELECT FROM outbox_events e WHERE e.id = p.id)
    AND NOT EXISTS (SELECT FROM outbox_dead_letters d WHERE d.pipeline = sink.pipeline AND d.event_id = p.id AND d.closed_at IS NULL AND d.sink IN ('*', 'default'))
  ORDER BY p.id, p.group_id
)`

	fillEndSQL = `
SELECT (SELECT id FROM page ORDER BY id DESC, group_id DESC LIMIT 1), (SELECT group_id FROM page ORDER BY id DESC, group_id DESC LIMIT 1), `

	fillCountPageSQL = `
WITH` + fillPageSQL + fillEndSQL + `(SELECT count(*) FROM chosen)`

	fillArchivedSQL = `
WITH` + fillPageSQL + `, put AS (
  INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
  OVERRIDING SYSTEM VALUE
  SELECT a.id, a.topic, a.key, a.payload, a.headers, a.created_at, $7::uuid
  FROM chosen c JOIN outbox_archive a ON a.id = c.id AND a.group_id = c.group_id
  ON CONFLICT (id) DO NOTHING
  RETURNING id, created_at
), given AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, routes_no)
  SELECT ` + backlog.NewGroupSQL + `, $1, 'range', 'waiting', 0, clock_timestamp(), $8, 0,
         0, 0, count(*), min(p.id), max(p.id), min(p.created_at), '-infinity', 'filled',
         range_agg(int8range(p.id, nullif(p.id, 9223372036854775807), '[]')), sink.sink, $7::uuid, sink.routes_no
  FROM (SELECT id, created_at, row_number() OVER (ORDER BY id) - 1 AS n FROM put) p, sink
  GROUP BY p.n / sink.batch_size, sink.sink, sink.routes_no ORDER BY min(p.id)
  RETURNING events
)` + fillEndSQL + `(SELECT coalesce(sum(events), 0)::bigint FROM given)`
)

// fillSettings make plans that find rows by a key, whatever the statistics.
var fillSettings = []string{"synchronous_commit", "on", "enable_seqscan", "off", "enable_bitmapscan", "off", "enable_hashjoin", "off", "enable_mergejoin", "off"}

// fillRetry is how long a fill waits for batches that are leased.
const fillRetry = 200 * time.Millisecond

// ClaimFiller is a custom table, whose topics are known only when events are projected.
type ClaimFiller interface {
	// FillClaim gives a sink the events of one claim. shared is false for a batch that is leased and shares no event: then it has given none.
	FillClaim(ctx context.Context, f *ClaimFill) (filled buffer.Filled, shared bool, err error)
}

// ClaimFill is the part of a fill that is about one claim.
type ClaimFill struct {
	Claim  uuid.UUID
	Sink   string
	Since  time.Time
	Topics buffer.Patterns
	Dry    bool
}

// fill is a fill of one sink.
type fill struct {
	routes   *Routes
	tables   *ledger.Tables
	custom   ClaimFiller // nil for the relay's own table
	sink     string
	since    time.Time
	patterns buffer.Patterns
	topics   []string // regular expressions
	dry      bool
	progress func(buffer.Filled)
	filled   buffer.Filled
}

// Fill gives a sink what it lacks; see buffer.SinkFiller. custom is nil for the relay's own table.
func (r *Routes) Fill(
	ctx context.Context, t *ledger.Tables, custom ClaimFiller, sink string, since time.Time, dry bool, progress func(buffer.Filled),
) (buffer.Filled, error) {
	f := &fill{routes: r, tables: t, custom: custom, sink: sink, since: since, dry: dry, progress: progress}
	if r.base.Ordered {
		return f.filled, buffer.ErrFillOrder
	}
	var err error
	if f.patterns, err = r.Takes(ctx, t, sink); err != nil {
		return f.filled, err
	}
	f.topics = f.patterns.Regexps()
	// What is settled meanwhile is in the archive, which comes last.
	if err := f.waiting(ctx); err != nil {
		return f.filled, r.base.Explain(ctx, "filling sink "+sink, err)
	}
	switch {
	case t.Archive && custom != nil:
		f.filled.NoArchive = true
	case t.Archive:
		err = f.archived(ctx)
	}
	return f.filled, r.base.Explain(ctx, "filling sink "+sink+" from the archive", err)
}

// done reports events that the sink got.
func (f *fill) done(more buffer.Filled) {
	f.filled.Add(more)
	if f.progress != nil {
		f.progress(f.filled)
	}
}

// waiting gives the sink the events that wait for others.
func (f *fill) waiting(ctx context.Context) error {
	var (
		base = f.routes.base
		seen = map[uuid.UUID]bool{} // also those without an event for the sink, which lack it for ever
	)
	for {
		var claims []uuid.UUID
		begin := pg.ReadTx(pg.BulkTimeout)
		begin.Row = func([][]byte) error {
			claims = nil
			return nil
		}
		err := base.DB.Transact(ctx, begin, pg.Step{SQL: f.tables.SQL(fillClaimsSQL), Args: []string{f.tables.Buffer, f.sink}, Row: func(v [][]byte) error {
			if id := uuid.UUID(v[0]); !seen[id] {
				claims = append(claims, id)
			}
			return nil
		}})
		if err != nil {
			return err
		}
		busy := false
		for _, claim := range claims {
			more, shared, err := f.claim(ctx, claim)
			if err != nil {
				return err
			}
			seen[claim] = shared
			busy = busy || !shared
			f.done(more)
		}
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fillRetry):
		}
	}
}

// SharedSQL reports whether a batch shares its events now, or is gone.
const SharedSQL = `
SELECT EXISTS (SELECT FROM outbox_batches WHERE claim_id = $1::uuid) OR NOT EXISTS (SELECT FROM outbox_batches WHERE group_id = $1::uuid)`

// claim gives the sink the events of one claim. shared is false for a batch that is leased and shares no event: then it has given none.
func (f *fill) claim(ctx context.Context, claim uuid.UUID) (filled buffer.Filled, shared bool, err error) {
	if f.custom != nil {
		return f.custom.FillClaim(ctx, &ClaimFill{Claim: claim, Sink: f.sink, Since: f.since, Topics: f.patterns, Dry: f.dry})
	}
	var (
		base  = f.routes.base
		begin = base.DB.WriteTx(pg.BulkTimeout, fillSettings...)
		count = func(v [][]byte) error {
			filled.Waiting = pg.ReadInt8(v[0])
			return nil
		}
		args = []string{f.tables.Buffer, f.sink, claim.String(), pg.Timestamp(f.since), pg.TextArray(f.topics), pg.Bool(f.dry)}
	)
	begin.Row = func([][]byte) error {
		filled, shared = buffer.Filled{}, f.dry
		return nil
	}
	if f.dry {
		err = base.DB.Transact(ctx, begin, pg.Step{SQL: f.tables.SQL(fillCountClaimSQL), Args: args, Row: count})
		return filled, shared, err
	}
	err = base.DB.Transact(ctx, begin,
		ledger.LockClaim(claim),
		pg.Step{SQL: f.tables.SQL(fillShareSQL), Args: []string{claim.String()}},
		pg.Step{SQL: f.tables.SQL(fillClaimSQL), Args: append(args, base.Owner), Row: count},
		pg.Step{SQL: f.tables.SQL(SharedSQL), Args: []string{claim.String()}, Row: func(v [][]byte) error {
			shared = pg.ReadBool(v[0])
			return nil
		}})
	return filled, shared, err
}

// archived gives the sink the events of the archive.
func (f *fill) archived(ctx context.Context) error {
	var (
		base  = f.routes.base
		after = []string{pg.Int(math.MinInt64), uuid.Nil.String()}
	)
	for {
		var (
			n    int64
			next []string
			args = append([]string{f.tables.Buffer, f.sink}, append(after, pg.Timestamp(f.since), pg.TextArray(f.topics))...)
			sql  = fillCountPageSQL
		)
		if !f.dry {
			sql, args = fillArchivedSQL, append(args, buffer.NewGroupID().String(), base.Owner)
		}
		begin := base.DB.WriteTx(pg.BulkTimeout, fillSettings...)
		begin.Row = func([][]byte) error {
			n, next = 0, nil
			return nil
		}
		err := base.DB.Transact(ctx, begin, pg.Step{SQL: f.tables.SQL(sql), Args: args, Row: func(v [][]byte) error {
			if v[0] != nil {
				next, n = []string{pg.Int(pg.ReadInt8(v[0])), uuid.UUID(v[1]).String()}, pg.ReadInt8(v[2])
			}
			return nil
		}})
		if err != nil || next == nil {
			return err
		}
		after = next
		f.done(buffer.Filled{Archived: n})
	}
}
