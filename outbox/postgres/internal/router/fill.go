package router

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A fill gives a sink events that were never routed to it. What a sink got is recorded by numbers: a batch has the routes_no with which it was routed, its
// parts have it too, and so have its events in the archive. outbox_sinks.routed are the numbers of a sink. An event lacks the sink if none of its
// records, the batches that hold it and its rows in the archive, has a number of the sink.
//
// A number stands for a set of sinks, for ever: a change of the registry is only about later numbers. So what was filled gets the number of
// exactly those sinks that had it before and the filled one. There may be none, because two sinks were added together: then the fill draws one, which no route uses.
// Everything is decided in the transaction that gives the events; a fill that was killed is begun again.

const (
	// FillSinkSQL is what the sink lacks, and for which sinks the numbers stand. Number 0 is what the single sink was to get. A replayed batch has no
	// routes_no: it belongs to the sink that it was replayed to.
	FillSinkSQL = `
sinks AS MATERIALIZED (
  SELECT s.sink, s.batch_size, s.dropped_at IS NULL AS open,
         CASE WHEN 'default' = ANY (s.formerly) THEN s.routed + '{[0,1)}'::int8multirange ELSE s.routed END AS routed,
         CASE WHEN NOT 'default' = ANY (s.formerly) THEN s.registered_at END AS registered_at
  FROM outbox_sinks s WHERE s.buffer = $1
), sink AS MATERIALIZED (
  SELECT s.sink, s.batch_size, s.routed, s.registered_at, b.routes_no, b.pipeline
  FROM sinks s, outbox_buffers b
  WHERE b.buffer = $1 AND s.sink = $2 AND s.open
)`

	// NumbersSQL are the latest numbers for each set of sinks that has one.
	NumbersSQL = `
numbers AS MATERIALIZED (
  SELECT max(n.no) AS no, n.sinks
  FROM (
    SELECT c.no, ARRAY(SELECT s.sink FROM sinks s WHERE c.no <@ s.routed ORDER BY s.sink) AS sinks
    FROM (SELECT lower(r) AS no FROM sinks, unnest(routed) r UNION SELECT upper(r) FROM sinks, unnest(routed) r) c
    WHERE c.no BETWEEN 1 AND (SELECT routes_no FROM outbox_buffers WHERE buffer = $1)) n
  GROUP BY n.sinks
)`

	// A number that no route uses stands for the sinks $2.
	drawNumberSQL = `
WITH sinks AS MATERIALIZED (
  SELECT sink, routed FROM outbox_sinks WHERE buffer = $1
), ` + NumbersSQL + `, drawn AS MATERIALIZED (
  SELECT routes_no + 1 AS no FROM outbox_buffers WHERE buffer = $1 AND NOT EXISTS (SELECT FROM numbers WHERE sinks = $2::text[])
), marked AS (
  UPDATE outbox_sinks s
  SET routed = CASE WHEN s.sink = ANY ($2::text[]) THEN s.routed + int8multirange(int8range(no, no + 1)) ELSE s.routed - int8multirange(int8range(no, no + 1)) END
  FROM drawn WHERE s.buffer = $1
)
UPDATE outbox_buffers b SET routes_no = drawn.no + 1 FROM drawn WHERE b.buffer = $1`

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

	// LackingSQL is what of the batches held lacks the sink, by their numbers.
	LackingSQL = `
has AS MATERIALIZED (
  SELECT coalesce(range_agg(m), '{}') AS ids FROM held h, sink s, unnest(h.members) m WHERE h.sink = s.sink OR h.routes_no <@ s.routed
), parts AS MATERIALIZED (
  SELECT held.routes_no, range_agg(m) - (SELECT ids FROM has) AS ids
  FROM held, sink, unnest(held.members) m
  WHERE held.sink <> '*' AND NOT held.routes_no <@ sink.routed
  GROUP BY held.routes_no
), marks AS MATERIALIZED (
  SELECT w.routes_no, w.sinks, (SELECT n.no FROM numbers n WHERE n.sinks = w.sinks) AS no
  FROM (SELECT p.routes_no, ARRAY(SELECT s.sink FROM sinks s WHERE s.sink = $2 OR p.routes_no <@ s.routed ORDER BY s.sink) AS sinks FROM parts p) w
)`

	// The rows of a claim, under its lock. A count ($6) comes before fillShareSQL.
	fillHeldSQL = FillSinkSQL + `, held AS MATERIALIZED (
  SELECT l.group_id, l.sink, l.members, l.newest_at, l.routes_no FROM outbox_batches l WHERE l.claim_id = $3::uuid
  UNION ALL
  SELECT l.group_id, l.sink, coalesce(l.members, int8multirange(int8range(l.first_id, nullif(l.last_id, 9223372036854775807), '[]'))), coalesce(l.newest_at, '-infinity'), l.routes_no
  FROM outbox_batches l WHERE $6::boolean AND l.group_id = $3::uuid AND l.claim_id IS NULL
), ` + NumbersSQL + `, ` + LackingSQL + `, lacking AS MATERIALIZED (
  SELECT (SELECT range_agg(m) FROM parts, unnest(ids) m) AS ids,
         (SELECT max(newest_at) FROM held, sink WHERE held.sink <> '*' AND NOT held.routes_no <@ sink.routed) AS newest_at
), chosen AS MATERIALIZED (
  SELECT e.id, e.created_at, (SELECT min(p.routes_no) FROM parts p WHERE e.id <@ p.ids) AS routes_no FROM outbox_events e
  WHERE e.id BETWEEN (SELECT lower(ids) FROM lacking) AND (SELECT coalesce(upper(ids) - 1, 9223372036854775807) FROM lacking) AND e.id <@ (SELECT ids FROM lacking)
    AND (e.group_id = $3::uuid OR e.group_id IS NULL AND e.created_at <= (SELECT newest_at FROM lacking))
    AND e.created_at >= $4::timestamptz AND left(e.topic, 4096) ~ ANY ($5::text[])
)`

	fillCountClaimSQL = `
WITH` + fillHeldSQL + `
SELECT count(*), NULL, EXISTS (SELECT FROM sink) FROM chosen`

	// MarkSQL gives the batches of which the sink got events the number that includes it.
	MarkSQL = `
marked AS (
  UPDATE outbox_batches l SET routes_no = m.no FROM marks m
  WHERE l.claim_id = $3::uuid AND l.sink <> '*' AND l.routes_no = m.routes_no AND m.routes_no IN (SELECT routes_no FROM gets) AND NOT EXISTS (SELECT FROM gets WHERE no IS NULL)
)`

	// MissingSQL are sinks for which no number stands yet: then nothing is given. The second column is whether the filled sink is in the registry.
	MissingSQL = `(SELECT sinks::text FROM gets WHERE no IS NULL LIMIT 1), EXISTS (SELECT FROM sink)`

	fillClaimSQL = `
WITH` + fillHeldSQL + `, gets AS MATERIALIZED (
  SELECT c.*, m.sinks, m.no, row_number() OVER (PARTITION BY c.routes_no ORDER BY c.id) - 1 AS n FROM chosen c JOIN marks m ON m.routes_no = c.routes_no
), given AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, routes_no)
  SELECT ` + backlog.NewGroupSQL + `, $1, 'range', 'waiting', 0, clock_timestamp(), $7, 0,
         0, 0, count(*), min(c.id), max(c.id), min(c.created_at), max(lacking.newest_at), 'filled',
         range_agg(int8range(c.id, nullif(c.id, 9223372036854775807), '[]')), sink.sink, $3::uuid, c.no
  FROM gets c, sink, lacking
  WHERE NOT EXISTS (SELECT FROM gets WHERE no IS NULL)
  GROUP BY c.routes_no, c.no, c.n / sink.batch_size, sink.sink ORDER BY min(c.id)
  RETURNING events
), ` + MarkSQL + `
SELECT (SELECT coalesce(sum(events), 0)::bigint FROM given), ` + MissingSQL

	// A page of the archive, by its primary key. What a pipeline with a single sink has archived has no routes_no. It does not lack the sink that took
	// the place of the single one. An event with an open dead letter that no sink took is archived, too, and a replay of it is matched against all sinks.
	fillPageSQL = FillSinkSQL + `, page AS MATERIALIZED (
  SELECT id, group_id, topic, created_at, archived_at, routes_no FROM outbox_archive
  WHERE (id, group_id) > ($3::bigint, $4::uuid) ORDER BY id, group_id LIMIT 1000
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (p.id) p.id, p.group_id, p.created_at FROM page p, sink
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
WITH` + fillPageSQL + fillEndSQL + `(SELECT count(*) FROM chosen), NULL, EXISTS (SELECT FROM sink)`

	// An event that goes back takes along which sinks do not lack it, as the archive says: its rows there may be deleted before it returns.
	fillArchivedSQL = `
WITH` + fillPageSQL + `, ` + NumbersSQL + `, wants AS MATERIALIZED (
  SELECT c.id, c.group_id, ARRAY(
    SELECT s.sink FROM sinks s
    WHERE s.sink = $2 OR (
      SELECT coalesce(bool_or(o.routes_no <@ s.routed), false) OR NOT coalesce(bool_or(coalesce(NOT o.routes_no <@ s.routed, o.archived_at < s.registered_at)), false)
      FROM outbox_archive o WHERE o.id = c.id AND o.created_at = c.created_at)
    ORDER BY s.sink) AS sinks
  FROM chosen c
), gets AS MATERIALIZED (
  SELECT w.id, w.group_id, w.sinks, (SELECT n.no FROM numbers n WHERE n.sinks = w.sinks) AS no FROM wants w
), put AS (
  INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
  OVERRIDING SYSTEM VALUE
  SELECT a.id, a.topic, a.key, a.payload, a.headers, a.created_at, $7::uuid
  FROM gets g JOIN outbox_archive a ON a.id = g.id AND a.group_id = g.group_id
  WHERE NOT EXISTS (SELECT FROM gets WHERE no IS NULL)
  ON CONFLICT (id) DO NOTHING
  RETURNING id, created_at
), given AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, routes_no)
  SELECT ` + backlog.NewGroupSQL + `, $1, 'range', 'waiting', 0, clock_timestamp(), $8, 0,
         0, 0, count(*), min(p.id), max(p.id), min(p.created_at), '-infinity', 'filled',
         range_agg(int8range(p.id, nullif(p.id, 9223372036854775807), '[]')), sink.sink, $7::uuid, p.no
  FROM (SELECT put.id, put.created_at, g.no, row_number() OVER (PARTITION BY g.no ORDER BY put.id) - 1 AS n FROM put JOIN gets g ON g.id = put.id) p, sink
  GROUP BY p.no, p.n / sink.batch_size, sink.sink ORDER BY min(p.id)
  RETURNING events
)` + fillEndSQL + `(SELECT coalesce(sum(events), 0)::bigint FROM given), ` + MissingSQL
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
	// Draw draws a number for a set of sinks that MissingSQL returned.
	Draw func(ctx context.Context, sinks string) error
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
	seen     map[uuid.UUID]bool // claims, also those without an event for the sink, which lack it for ever
}

// Fill gives a sink what it lacks; see buffer.SinkFiller. custom is nil for the relay's own table.
func (r *Routes) Fill(
	ctx context.Context, t *ledger.Tables, custom ClaimFiller, sink string, since time.Time, dry bool, progress func(buffer.Filled),
) (buffer.Filled, error) {
	f := &fill{routes: r, tables: t, custom: custom, sink: sink, since: since, dry: dry, progress: progress, seen: map[uuid.UUID]bool{}}
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
	if _, err := r.Takes(ctx, t, sink); err != nil { // it was dropped or renamed meanwhile
		return f.filled, err
	}
	switch {
	case t.Archive && custom != nil:
		f.filled.NoArchive = true
	case t.Archive:
		if err = f.archived(ctx); err == nil { // another fill, or a replay, may have put events back before
			err = f.waiting(ctx)
		}
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
	base := f.routes.base
	for {
		var claims []uuid.UUID
		begin := pg.ReadTx(pg.BulkTimeout)
		begin.Row = func([][]byte) error {
			claims = nil
			return nil
		}
		err := base.DB.Transact(ctx, begin, pg.Step{SQL: f.tables.SQL(fillClaimsSQL), Args: []string{f.tables.Buffer, f.sink}, Row: func(v [][]byte) error {
			if id := uuid.UUID(v[0]); !f.seen[id] {
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
			f.done(more)
			if err != nil {
				return err
			}
			f.seen[claim] = shared
			busy = busy || !shared
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
		return f.custom.FillClaim(ctx, &ClaimFill{Claim: claim, Sink: f.sink, Since: f.since, Topics: f.patterns, Dry: f.dry, Draw: f.draw})
	}
	var (
		base  = f.routes.base
		begin = base.DB.WriteTx(pg.BulkTimeout, fillSettings...)
		got   Got
		args  = []string{f.tables.Buffer, f.sink, claim.String(), pg.Timestamp(f.since), pg.TextArray(f.topics), pg.Bool(f.dry)}
		steps = []pg.Step{begin, {SQL: f.tables.SQL(fillCountClaimSQL), Args: args, Row: got.Row}}
	)
	if !f.dry {
		steps = []pg.Step{
			begin,
			ledger.LockClaim(claim),
			{SQL: f.tables.SQL(fillShareSQL), Args: []string{claim.String()}},
			{SQL: f.tables.SQL(fillClaimSQL), Args: append(args, base.Owner), Row: got.Row},
			{SQL: f.tables.SQL(SharedSQL), Args: []string{claim.String()}, Row: func(v [][]byte) error {
				shared = pg.ReadBool(v[0])
				return nil
			}},
		}
	}
	shared = f.dry
	err = got.Repeat(ctx, f.draw, func(ctx context.Context) error { return base.DB.Transact(ctx, steps...) })
	return buffer.Filled{Waiting: got.Events}, shared, err
}

// draw draws a number for a set of sinks that has none.
func (f *fill) draw(ctx context.Context, sinks string) error {
	base := f.routes.base
	return base.DB.Transact(ctx, base.DB.WriteTx(base.DB.StatementTimeout, "synchronous_commit", "on"),
		pg.Step{SQL: f.tables.SQL(lockBufferSQL), Args: []string{f.tables.Buffer}},
		pg.Step{SQL: f.tables.SQL(drawNumberSQL), Args: []string{f.tables.Buffer, sinks}})
}

// Got is what a sink got of a claim, or of a page of the archive.
type Got struct {
	Events  int64
	missing string // sinks for which no number stands: then it got nothing
	gone    bool   // the filled sink is not in the registry any more
}

// Row reads the columns events and those of MissingSQL.
func (g *Got) Row(v [][]byte) error {
	g.Events, g.missing, g.gone = pg.ReadInt8(v[0]), string(v[1]), !pg.ReadBool(v[2])
	return nil
}

// errSinkGone: the filled sink was dropped or renamed meanwhile.
var errSinkGone = errors.New("the sink was dropped or renamed meanwhile")

// Repeat runs a transaction that gives events, until no number is missing.
func (g *Got) Repeat(ctx context.Context, draw func(ctx context.Context, sinks string) error, run func(context.Context) error) error {
	for {
		*g = Got{}
		switch err := run(ctx); {
		case err != nil:
			return err
		case g.gone:
			return errSinkGone
		case g.missing == "":
			return nil
		}
		if err := draw(ctx, g.missing); err != nil {
			return err
		}
	}
}

// archived gives the sink the events of the archive.
func (f *fill) archived(ctx context.Context) error {
	var (
		base  = f.routes.base
		after = []string{pg.Int(math.MinInt64), uuid.Nil.String()}
	)
	for {
		var (
			got  Got
			next []string
			args = append([]string{f.tables.Buffer, f.sink}, append(after, pg.Timestamp(f.since), pg.TextArray(f.topics))...)
		)
		err := got.Repeat(ctx, f.draw, func(ctx context.Context) error {
			sql, args := fillCountPageSQL, args
			if !f.dry {
				sql, args = fillArchivedSQL, append(args, buffer.NewGroupID().String(), base.Owner)
			}
			begin := base.DB.WriteTx(pg.BulkTimeout, fillSettings...)
			begin.Row = func([][]byte) error {
				next = nil
				return nil
			}
			return base.DB.Transact(ctx, begin, pg.Step{SQL: f.tables.SQL(sql), Args: args, Row: func(v [][]byte) error {
				if v[0] != nil {
					next = []string{pg.Int(pg.ReadInt8(v[0])), uuid.UUID(v[1]).String()}
				}
				return got.Row(v[2:])
			}})
		})
		f.done(buffer.Filled{Archived: got.Events})
		if err != nil || next == nil {
			return err
		}
		after = next
	}
}
