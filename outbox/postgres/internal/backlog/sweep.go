package backlog

import (
	"context"
	"math"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A window: the last of its rows, how many it has, and how many of them are unclaimed. $6: delayed events are left to the look for those
// that are due, which knows of the keys that they wait for.
const fullSweepSQL = `
WITH` + ledger.HeldSQL + `
SELECT max(id), count(*), count(*) FILTER (WHERE late) FROM (
  SELECT e.id, e.group_id IS NULL AND NOT e.id::bigint <@ (SELECT members FROM held) AND ` + ledger.AvailableOfSQL + `
      AND (NOT $6::boolean OR e.available_at IS NULL) AS late
  FROM outbox_events e WHERE e.id >= $5::bigint AND e.id <= $3::bigint
  ORDER BY e.id LIMIT $4::bigint) beyond`

// fullSweepTimeout bounds a scan: if a snapshot was pinned for hours, there may be hundreds of millions of dead entries
// before the next row. Then the next sweep tries again.
const fullSweepTimeout = 2 * time.Second

// fullSweep scans everything up to the cursor, every few minutes, for ids that the watermarks cannot know: given by
// hand, or drawn in an earlier transaction. Where sessions draw ids in blocks, it does so every few seconds.
//
// Every few minutes it also finds orphans: events that carry a group_id without a ledger row (rows put back from an
// archive, a restore, a manual change). They get a new group_id without origins: a sink may know the old
// one, from events that were delivered long ago, and would take these for the same.
//
// It goes in windows and remembers where it stopped, because millions of events may lie there that wait for a sink.
func (b *Backlog) fullSweep(ctx context.Context, t *ledger.Tables, limit int, more bool) (late, orphans int, err error) {
	began := time.Now()
	upTo, due, orphaned := b.watermarks.FullSweepDue(began, more)
	if !due {
		return 0, 0, nil
	}
	sweep := &b.idsSweep
	if orphaned {
		sweep = &b.orphansSweep
	}
	from, rows, free := sweep.begin(t.Statements.Windows)
	if !free {
		return 0, 0, nil
	}
	w, err := b.sweepWindow(ctx, t, from, upTo, rows, orphaned)
	timedOut := false
	if c := pg.Code(err); (c == pg.CodeCancelled || c == pg.CodeLockTimeout) && ctx.Err() == nil {
		timedOut, err = true, nil // out of time: the next one tries again, with a smaller window
	}
	took := time.Since(began)
	whole := sweep.end(w, timedOut || err != nil, took)
	if err == nil && !timedOut {
		b.watermarks.FullySwept(w.late, w.first, whole, took, time.Now())
	}
	if err == nil && orphaned && whole && b.base.InOrder() {
		b.watermarks.ForgetDue()
	}
	if err == nil && orphaned && w.late == 0 && (whole || timedOut) {
		err = b.storeSweep(ctx, t)
	}
	return min(limit, w.late), w.orphans, err
}

// window is what a sweep has found from one id on.
type window struct {
	asked, rows   int64 // rows < asked: it was the last one
	first         int64 // where its late events begin, at the earliest
	last          int64
	late, orphans int
}

// sweepWindow scans a number of rows.
func (b *Backlog) sweepWindow(ctx context.Context, t *ledger.Tables, from, upTo, rows int64, orphaned bool) (w window, err error) {
	begin := b.base.DB.WriteTx(fullSweepTimeout, append([]string{"synchronous_commit", "on"}, pg.PlanByPrimaryKey...)...)
	before := from
	if before > math.MinInt64 {
		before--
	}
	err = b.base.DB.Transact(ctx, begin, pg.Step{
		SQL: t.Statements.FullSweep, Args: []string{t.Buffer, pg.Int(before), pg.Int(upTo), pg.Int(rows), pg.Int(from), pg.Bool(b.base.InOrder())},
		Row: func(v [][]byte) error {
			w = window{asked: rows, rows: pg.ReadInt8(v[1]), late: int(pg.ReadInt8(v[2])), last: math.MaxInt64, first: from}
			if len(v) > 3 && v[3] != nil {
				w.first = pg.ReadInt8(v[3])
			}
			if w.rows == rows {
				w.last = pg.ReadInt8(v[0])
			}
			return nil
		},
	})
	if err != nil || !orphaned {
		return w, err
	}
	var adopted buffer.Count
	begin.Row = func([][]byte) error {
		adopted = buffer.Count{}
		return nil
	}
	err = b.base.DB.Transact(ctx, begin, b.adopt(t, t.Statements.Adopt, &adopted, from, w.last))
	w.orphans = int(adopted.Batches)
	return w, err
}

const storeSweepSQL = `
UPDATE outbox_buffers SET swept_at = clock_timestamp() WHERE buffer = $1`

// storeSweep writes that everything was scanned, or would have taken too long, so that no other process does it again,
// nor the next one that starts.
func (b *Backlog) storeSweep(ctx context.Context, t *ledger.Tables) error {
	return b.base.DB.Transact(ctx, b.base.DB.WriteTx(b.base.DB.StatementTimeout, "synchronous_commit", "off"),
		pg.Step{SQL: t.SQL(storeSweepSQL), Args: []string{t.Buffer}})
}

// Orphans are batches by stamp in every mode: a ledger row says for itself how its events are found. The update
// names the old group_id: somebody else may have adopted and claimed the event since the snapshot.
const adoptSQL = `
WITH orphans AS MATERIALIZED (
  SELECT e.id, e.group_id FROM outbox_events e
  WHERE e.group_id IS NOT NULL AND e.id BETWEEN $5::bigint AND $6::bigint
    AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = e.group_id)
    AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.claim_id = e.group_id AND e.id <@ l.members)
), groups AS MATERIALIZED (
  SELECT group_id, ` + NewGroupSQL + ` AS new FROM (SELECT DISTINCT group_id FROM orphans) o
), adopted AS (
  UPDATE outbox_events e SET group_id = g.new FROM orphans o JOIN groups g ON g.group_id = o.group_id
  WHERE e.id = o.id AND e.group_id = o.group_id
  RETURNING e.group_id, e.id, e.key, e.created_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, sink, lanes)
SELECT group_id, $1, 'stamp', 'waiting', 0, clock_timestamp(), $2, 0,
       0, 0, count(*), min(id), max(id), min(created_at), 'found without a ledger row', $4,
       CASE WHEN $3::boolean THEN coalesce(array_agg(DISTINCT hashtext(key)) FILTER (WHERE key IS NOT NULL), '{}') END
FROM adopted GROUP BY group_id
RETURNING events::bigint`

// NewGroupSQL is a version 7 uuid, as buffer.NewGroupID draws it.
const NewGroupSQL = `(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' ||
                    substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid`

// adopt is the step that gives orphans with these ids a ledger row, by one of the statements for it.
func (b *Backlog) adopt(t *ledger.Tables, sql string, adopted *buffer.Count, from, last int64) pg.Step {
	args := []string{t.Buffer, b.base.Owner, pg.Bool(b.base.Ordered), b.base.ClaimsFor()}
	if t.Statements.Windows {
		args = append(args, pg.Int(from), pg.Int(last))
	}
	return pg.Step{SQL: sql, Args: args, Row: func(v [][]byte) error {
		adopted.Batches++
		adopted.Events += pg.ReadInt8(v[0])
		return nil
	}}
}
