package archive

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// pageRows is how many rows of the archive a transaction reads.
const pageRows = 5000

const (
	// Without the index each page would read the whole archive.
	beginSQL = `
SELECT clock_timestamp(), EXISTS (
  SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
  WHERE i.indrelid = $1::regclass AND i.indisvalid AND i.indpred IS NULL AND a.attname = 'archived_at')`

	// A replay must see what another one put back, or what became of it. The lock is a step of its own, before the statement's snapshot.
	lockReplaySQL = `
SELECT pg_advisory_xact_lock(hashtextextended('relay archive ' || $1, 0))`

	// A page of the archive, in the order in which it was filled: after $3, $4 and $5, before $2, with up to buffer.MaxBytes for each batch of $8 events as
	// the database stores them. An event is put back for its last row. Another one may have had its id, or get it: the sequence, $10, goes back with a
	// TRUNCATE ... RESTART IDENTITY, a restore and a failover, and an id that it still hands out would make the application's INSERT fail. The other rows of an event are found by the primary
	// key: "+ interval '0'" keeps the planner from the index of archived_at, which it takes for as good until the archive is analysed, and reads whole for each event. No EXISTS looks for the event
	// in the buffer: the planner would hash all of the buffer for each page.
	// The archive also has events with dead letters: what was dead at one of several sinks, or at a replay, and what no sink took. relay dead replay sends those, so the replay of the
	// archive, to the sink $12 or to all, leaves out an event with an open one there, and what no sink got and was discarded: such a row has no routes_no.
	pageSQL = `
WITH page AS MATERIALIZED (
  SELECT id, group_id, topic, created_at, archived_at, routes_no,
         pg_column_size(payload) + coalesce(pg_column_size(headers), 0) + coalesce(pg_column_size(key), 0) + pg_column_size(topic) AS bytes
  FROM outbox_archive
  WHERE archived_at >= greatest($1::timestamptz, $3::timestamptz) AND archived_at < $2::timestamptz
    AND (archived_at, id, group_id) > ($3::timestamptz, $4::bigint, $5::uuid)
  ORDER BY archived_at, id, group_id LIMIT $7::bigint
), fitting AS MATERIALIZED (
  SELECT id, group_id, topic, created_at, archived_at, routes_no FROM (
    SELECT p.*, sum(bytes) OVER w AS total, row_number() OVER w AS n FROM page p WINDOW w AS (ORDER BY archived_at, id, group_id)) p
  WHERE total <= 4194304 OR n = 1
), matching AS MATERIALIZED (
  SELECT f.id, f.group_id, coalesce((SELECT true FROM outbox_events e WHERE e.id = f.id), false) AS waits, EXISTS (
    SELECT FROM outbox_dead_letters d
    WHERE d.pipeline = $11 AND d.event_id = f.id AND d.created_at = f.created_at
      AND CASE WHEN d.closed_at IS NOT NULL THEN d.sink = '*' AND d.closed_as = 'discarded' AND f.routes_no IS NULL
               ELSE $12 = '' OR d.sink IN ('*', 'default', $12) OR d.sink IN (SELECT unnest(s.formerly) FROM outbox_sinks s WHERE s.buffer = $13 AND s.sink = $12) END) AS dead,
         coalesce(f.id > (SELECT coalesce(pg_sequence_last_value(s.sequence), 0) FROM (SELECT $10::regclass) s (sequence) WHERE s.sequence IS NOT NULL), false) AS ahead, (
    SELECT max(o.archived_at + interval '0') FROM outbox_archive o
    WHERE o.id = f.id AND o.created_at = f.created_at AND (o.archived_at + interval '0', o.group_id) > (f.archived_at, f.group_id)) AS later
  FROM fitting f
  WHERE ($6::text[] = '{""}' OR left(f.topic, 4096) ~ ANY ($6::text[])) AND ($9::text[] = '{""}' OR left(f.topic, 4096) ~ ANY ($9::text[]))
), chosen AS MATERIALIZED (
  SELECT id, group_id, (row_number() OVER (ORDER BY id) - 1) / $8::bigint AS batch
  FROM (SELECT DISTINCT ON (id) id, group_id FROM matching WHERE NOT waits AND NOT dead AND NOT ahead AND later IS NULL ORDER BY id, group_id) c
)`

	// The last row that was read, and what became of the page.
	endSQL = `
SELECT last.archived_at, last.id, last.group_id,
       (SELECT count(*) FILTER (WHERE waits AND later IS NULL) FROM matching),
       (SELECT count(*) FILTER (WHERE later >= $2::timestamptz) FROM matching),
       (SELECT count(*) FILTER (WHERE ahead AND NOT waits AND NOT dead AND later IS NULL) FROM matching),
       (SELECT count(*) FILTER (WHERE dead AND NOT waits AND later IS NULL) FROM matching), `

	lastSQL = `
FROM fitting last ORDER BY archived_at DESC, id DESC, group_id DESC LIMIT 1`

	countSQL = pageSQL + endSQL + `(SELECT count(*) FROM chosen)` + lastSQL

	putSQL = `
INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
  OVERRIDING SYSTEM VALUE
  SELECT a.id, a.topic, a.key, a.payload, a.headers, a.created_at, `

	ofArchiveSQL = ` JOIN outbox_archive a ON a.id = c.id AND a.group_id = c.group_id
  ON CONFLICT (id) DO NOTHING
  RETURNING id, key, created_at, group_id
)`

	// Batches of the single sink, or of those that are not routed yet.
	replaySQL = pageSQL + `, groups AS MATERIALIZED (
  SELECT batch, ` + backlog.NewGroupSQL + ` AS new FROM (SELECT DISTINCT batch FROM chosen) c
), put AS (` + putSQL + `g.new FROM chosen c JOIN groups g USING (batch)` + ofArchiveSQL + `, opened AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, sink, lanes)
  SELECT group_id, $13, 'stamp', 'waiting', 0, clock_timestamp(), $14, 0,
         0, 0, count(*), min(id), max(id), min(created_at), 'replayed', $15,
         CASE WHEN $16::boolean THEN coalesce(array_agg(DISTINCT hashtext(key)) FILTER (WHERE key IS NOT NULL), '{}') END
  FROM put GROUP BY group_id ORDER BY min(id)
)` + endSQL + `(SELECT count(*) FROM put)` + lastSQL

	// One of several sinks gets a claim of its own.
	replayToSinkSQL = pageSQL + `, put AS (` + putSQL + `$17::uuid FROM chosen c` + ofArchiveSQL + `, opened AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, seq, lanes)
  SELECT ` + backlog.NewGroupSQL + `, $13, 'range', 'waiting', 0, clock_timestamp(), $14, 0,
         0, 0, count(*), min(id), max(id), min(created_at), '-infinity', 'replayed',
         range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')), $15, $17::uuid,
         CASE WHEN $16::boolean THEN nextval('outbox_numbers') END,
         CASE WHEN $16::boolean THEN coalesce(array_agg(DISTINCT hashtext(key)) FILTER (WHERE key IS NOT NULL), '{}') END
  FROM (SELECT put.*, (row_number() OVER (ORDER BY id) - 1) / $8::bigint AS batch FROM put) p
  GROUP BY batch ORDER BY min(id)
)` + endSQL + `(SELECT count(*) FROM put)` + lastSQL
)

// Replay puts events of the archive back; see buffer.Archiver. takes are the topics of f.Sink, which is "" for the single sink or for all of them.
func Replay(
	ctx context.Context, base *ledger.Base, t *ledger.Tables, f buffer.ArchiveFilter, takes buffer.Patterns, dry bool, progress func(buffer.Replayed),
) (all buffer.Replayed, err error) {
	now, err := begin(ctx, base, t)
	if err != nil {
		return all, err
	}
	if all.Until = f.Until; f.Until.IsZero() || f.Until.After(now) { // what is put back is archived again, later than this
		all.Until = now
	}
	for after := (key{pg.Timestamp(time.Time{}), pg.Int(math.MinInt64), uuid.Nil.String()}); ; {
		more, next, err := page(ctx, base, t, f, takes, pg.Timestamp(all.Until), dry, after)
		if err != nil || next == nil {
			return all, base.Explain(ctx, "replaying the archive", err)
		}
		all.Events += more.Events
		all.Waiting += more.Waiting
		all.Repeated += more.Repeated
		all.Ahead += more.Ahead
		all.Dead += more.Dead
		if progress != nil {
			progress(all)
		}
		if err := ctx.Err(); err != nil {
			return all, err
		}
		after = *next
	}
}

// begin returns the time of the database. The error wraps buffer.ErrNotReady if the archive has no index on archived_at.
func begin(ctx context.Context, base *ledger.Base, t *ledger.Tables) (now time.Time, err error) {
	var (
		indexed bool
		name    = t.SQL("outbox_archive")
	)
	err = base.DB.Transact(ctx, pg.ReadTx(base.DB.StatementTimeout), pg.Step{SQL: beginSQL, Args: []string{name}, Row: func(v [][]byte) error {
		now, indexed = pg.ReadTime(v[0]), pg.ReadBool(v[1])
		return nil
	}})
	switch {
	case err != nil:
		return now, base.Explain(ctx, "replaying the archive", err)
	case !indexed:
		return now, fmt.Errorf("%w: the archive %s has no index on archived_at: CREATE INDEX CONCURRENTLY ON %s (archived_at)", buffer.ErrNotReady, name, name)
	}
	return now, nil
}

// planOfPage makes the planner walk the index of archived_at, from where the last page ended, and look the rest up by key.
var planOfPage = append([]string{"enable_bitmapscan", "off", "enable_sort", "off"}, pg.PlanByKey...)

// rowsOf returns how many rows of the archive a transaction reads.
func rowsOf(f *buffer.ArchiveFilter) int {
	if f.PageSize > 0 {
		return min(pageRows, f.PageSize)
	}
	return pageRows
}

// key is a row of the archive: archived_at, id and group_id.
type key [3]string

// page puts back what one page of the archive has. next is its last row; nil: there is none.
func page(
	ctx context.Context, base *ledger.Base, t *ledger.Tables, f buffer.ArchiveFilter, takes buffer.Patterns, until string, dry bool, after key,
) (more buffer.Replayed, next *key, err error) {
	var (
		sql   = countSQL
		sink  = base.ClaimsFor()
		rows  = rowsOf(&f)
		write = base.DB.WriteTx(pg.BulkTimeout, planOfPage...)
		args  = []string{
			pg.Timestamp(f.Since), until, after[0], after[1], after[2],
			pg.TextArray(f.Topics.Regexps()), pg.Int(int64(rows)), pg.Int(int64(f.BatchSize)), pg.TextArray(takes.Regexps()), t.Sequence,
			base.Pipeline, f.Sink, t.Buffer,
		}
		lock = pg.Step{SQL: lockReplaySQL, Args: []string{t.Buffer}}
	)
	write.Row = func([][]byte) error {
		more, next = buffer.Replayed{}, nil
		return nil
	}
	switch ordered := base.Ordered && sink != ledger.Unrouted; {
	case dry:
	case f.Sink != "":
		sql, args = replayToSinkSQL, append(args, base.Owner, f.Sink, pg.Bool(base.Ordered), buffer.NewGroupID().String())
	default:
		sql, args = replaySQL, append(args, base.Owner, sink, pg.Bool(ordered))
	}
	steps := []pg.Step{write, lock}
	if !dry && base.Ordered && f.Sink != "" {
		steps = append(steps, ledger.LockClaiming(t))
	}
	steps = append(steps, pg.Step{SQL: t.SQL(sql), Args: args, Row: func(v [][]byte) error {
		next = &key{pg.Timestamp(pg.ReadTime(v[0])), pg.Int(pg.ReadInt8(v[1])), uuid.UUID(v[2]).String()}
		more = buffer.Replayed{Waiting: pg.ReadInt8(v[3]), Repeated: pg.ReadInt8(v[4]), Ahead: pg.ReadInt8(v[5]), Dead: pg.ReadInt8(v[6]), Events: pg.ReadInt8(v[7])}
		return nil
	}})
	return more, next, base.DB.Transact(ctx, steps...)
}
