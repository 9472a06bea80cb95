// Package delayed finds delayed events (available_at) when they are due. Until then nothing reads them: see package watermark.
package delayed

import (
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// DueSQL are the delayed events that are due and that no batch has, and when the next one is due. The ids that batches hold are
// read only if there is one that is due.
const DueSQL = `
WITH held AS MATERIALIZED (
  SELECT coalesce(range_agg(m), '{}') AS members FROM outbox_batches, unnest(members) m
  WHERE buffer = $1 AND members IS NOT NULL AND EXISTS (
    SELECT FROM outbox_events e WHERE e.available_at > $2::timestamptz AND e.available_at <= statement_timestamp() AND e.group_id IS NULL)
), due AS MATERIALIZED (
  SELECT e.id::bigint AS id, e.available_at FROM outbox_events e
  WHERE e.available_at > $2::timestamptz AND e.available_at <= statement_timestamp() AND e.group_id IS NULL
    AND NOT e.id::bigint <@ (SELECT members FROM held)
  ORDER BY e.available_at LIMIT $3::bigint
)
SELECT statement_timestamp(), (SELECT array_agg(id) FROM due), (SELECT min(available_at) FROM due),
       (SELECT (extract(epoch FROM least(e.available_at, statement_timestamp() + interval '1 year') - statement_timestamp()) * 1000000)::bigint
        FROM outbox_events e WHERE e.available_at > statement_timestamp() AND e.group_id IS NULL ORDER BY e.available_at LIMIT 1)`

// DueInOrderSQL is DueSQL for `order: key` with a single sink. An event whose key is in a live batch cannot be claimed, so it is not
// found, but its lane is. A look passes over it once: the lanes that were passed ($5), with the first time at which an event of each
// became available ($6), come back with every look, which begins at the first of those that are free again. Up to $4 events are read,
// and up to $7 lanes returned, those with the earliest events.
const DueInOrderSQL = `
WITH held AS MATERIALIZED (
  SELECT DISTINCT unnest(lanes) AS lane FROM outbox_batches WHERE buffer = $1
), passed AS MATERIALIZED (
  SELECT lane, available_at, lane IN (SELECT lane FROM held) AS blocked
  FROM unnest($5::int[], $6::timestamptz[]) p(lane, available_at)
), seen AS MATERIALIZED (
  SELECT e.id::bigint AS id, e.available_at, hashtext(e.key) AS lane FROM outbox_events e
  WHERE e.available_at > (SELECT least($2::timestamptz, min(available_at) FILTER (WHERE NOT blocked) - interval '1 microsecond') FROM passed)
    AND e.available_at <= statement_timestamp() AND e.group_id IS NULL
  ORDER BY e.available_at LIMIT $4::bigint
), due AS MATERIALIZED (
  SELECT id, available_at FROM seen WHERE lane IS NULL OR lane NOT IN (SELECT lane FROM held)
  ORDER BY available_at LIMIT $3::bigint
), blocked AS MATERIALIZED (
  SELECT lane, min(available_at) AS available_at FROM (
    SELECT lane, available_at FROM passed WHERE blocked
    UNION ALL
    SELECT lane, available_at FROM seen WHERE lane IN (SELECT lane FROM held)) b
  GROUP BY lane ORDER BY min(available_at) LIMIT $7::bigint
)
SELECT statement_timestamp(), (SELECT array_agg(id) FROM due), (SELECT min(available_at) FROM due),
       (SELECT (extract(epoch FROM least(e.available_at, statement_timestamp() + interval '1 year') - statement_timestamp()) * 1000000)::bigint
        FROM outbox_events e WHERE e.available_at > statement_timestamp() AND e.group_id IS NULL ORDER BY e.available_at LIMIT 1),
       (SELECT count(*) FROM seen), (SELECT max(available_at) FROM seen), b.lane, b.available_at
FROM (SELECT) one LEFT JOIN blocked b ON true`

// most is how many events one look finds at most.
const most = 20_000

// Found is the result of a look.
type Found struct {
	watermark.Due
	// Next is how long until the next event is due; 0: none is delayed.
	Next time.Duration
}

// Look is the step that looks for up to limit events.
func Look(base *ledger.Base, t *ledger.Tables, w *watermark.Watermarks, limit int, f *Found) pg.Step {
	limit = min(limit, most)
	from := w.NextLook()
	step := pg.Step{Prepare: true, SQL: t.Statements.Due, Args: []string{t.Buffer, pg.Timestamp(from.After), pg.Int(int64(limit))}}
	if base.InOrder() {
		lanes, times := make([]int64, 0, len(from.Blocked)), make([]string, 0, len(from.Blocked))
		for _, b := range from.Blocked {
			lanes, times = append(lanes, int64(b.Lane)), append(times, pg.Timestamp(b.Oldest))
		}
		step.SQL = t.SQL(DueInOrderSQL)
		step.Args = append(step.Args, pg.Int(int64(from.Rows)), pg.IDArray(lanes), pg.TextArray(times), pg.Int(watermark.MaxBlocked+1))
	}
	var now time.Time // of the rows that were read
	step.Row = func(v [][]byte) error {
		if at := pg.ReadTime(v[0]); !at.Equal(now) { // the first row, of this attempt
			now = at
			*f = Found{Due: watermark.Due{Now: now}}
			pg.ReadArray(v[1], func(id []byte) { f.IDs = append(f.IDs, pg.ReadInt8(id)) })
			slices.Sort(f.IDs)
			f.Limited = len(f.IDs) >= limit
			if v[2] != nil {
				f.Oldest = pg.ReadTime(v[2])
			}
			if v[3] != nil {
				f.Next = max(1, time.Duration(pg.ReadInt8(v[3]))*time.Microsecond)
			}
			if base.InOrder() && pg.ReadInt8(v[4]) >= int64(from.Rows) {
				f.ReadUpTo = pg.ReadTime(v[5])
			}
		}
		if base.InOrder() && v[6] != nil {
			f.Blocked = append(f.Blocked, watermark.Blocked{Lane: int32(pg.ReadInt4(v[6])), Oldest: pg.ReadTime(v[7])}) //nolint:gosec // an int4
		}
		return nil
	}
	return step
}
