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

// most is how many events one look finds at most.
const most = 20_000

// Found is the result of a look.
type Found struct {
	watermark.Due
	// Next is how long until the next event is due; 0: none is delayed.
	Next time.Duration
}

// Look is the step that looks for up to limit events.
func Look(t *ledger.Tables, w *watermark.Watermarks, limit int, f *Found) pg.Step {
	limit = min(limit, most)
	return pg.Step{Prepare: true, SQL: t.Statements.Due, Args: []string{t.Buffer, pg.Timestamp(w.DelayedAfter()), pg.Int(int64(limit))}, Row: func(v [][]byte) error {
		*f = Found{Due: watermark.Due{Now: pg.ReadTime(v[0])}}
		pg.ReadArray(v[1], func(id []byte) { f.IDs = append(f.IDs, pg.ReadInt8(id)) })
		slices.Sort(f.IDs)
		f.Limited = len(f.IDs) >= limit
		if v[2] != nil {
			f.Oldest = pg.ReadTime(v[2])
		}
		if v[3] != nil {
			f.Next = max(1, time.Duration(pg.ReadInt8(v[3]))*time.Microsecond)
		}
		return nil
	}}
}
