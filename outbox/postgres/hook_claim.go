package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// As a claim of events, with the letters' own stamp. Two letters of one event are not
// in one batch, whose events are told apart by their ids, or by their uuids: the older
// goes first. A later letter of a uuid has a greater number, so it is not picked before
// the earlier one is.
const hookClaimSQL = `
WITH picked AS MATERIALIZED (
  SELECT d.event_id, d.group_id, d.died_at, d.event_uuid FROM outbox_dead_letters d
  WHERE d.pipeline = $3 AND d.closed_at IS NULL AND d.notified_at IS NULL AND d.hook_group_id IS NULL
    AND NOT EXISTS (
      SELECT FROM outbox_dead_letters o
      WHERE o.pipeline = $3 AND o.event_id = d.event_id AND o.closed_at IS NULL AND o.notified_at IS NULL
        AND o.hook_group_id IS NULL AND (o.died_at, o.group_id) < (d.died_at, d.group_id))
  ORDER BY d.event_id, d.group_id LIMIT $4::bigint
  FOR UPDATE OF d SKIP LOCKED
), apart AS MATERIALIZED (
  SELECT event_id, group_id, died_at
  FROM (SELECT *, row_number() OVER (PARTITION BY event_uuid ORDER BY event_id) AS n FROM picked) p
  WHERE n = 1 OR event_uuid IS NULL
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $5::interval, $6, 1,
         0, 0, count(*), min(event_id), max(event_id), min(died_at)
  FROM apart HAVING count(*) > 0
)
UPDATE outbox_dead_letters d SET hook_group_id = $2::uuid
FROM apart p WHERE d.pipeline = $3 AND d.event_id = p.event_id AND d.group_id = p.group_id
RETURNING d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at, ` + letterSQL + `, clock_timestamp()`

// Claim is described by buffertest.Hook.
func (h *Hook) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	t, err := h.b.ready(ctx)
	if err != nil {
		return nil, err
	}
	var (
		groupID  = buffer.NewGroupID()
		rows     = h.letters(t)
		clock    time.Time
		leaseEnd = time.Now().Add(lease)
	)
	begin := h.b.db.WriteTx(h.b.db.StatementTimeout, append([]string{"enable_bitmapscan", "off", "enable_sort", "off"}, pg.PlanByKey...)...)
	begin.Row = rows.Reset
	err = h.b.db.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(hookClaimSQL),
		Args: []string{
			t.Buffer + hookSuffix, groupID.String(), h.b.config.Pipeline, pg.Int(int64(limit)), pg.Interval(lease), h.b.config.Owner,
		},
		Row: func(v [][]byte) error {
			clock = pg.ReadTime(v[14])
			return rows.addLetter(v)
		},
	})
	if err != nil {
		return nil, h.b.explain(ctx, "claiming dead letters", err)
	}
	if len(rows.Events) == 0 {
		return nil, nil
	}
	batch := h.b.base.Complete(&rows.EventDecoder, buffer.Lease{
		Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: leaseEnd, UnfinishedLeases: 1,
		ClaimedAt: clock, ClaimedLocal: time.Now(),
	})
	rows.deadLetters(batch)
	return batch, nil
}

func (h *Hook) letters(t *table) deadLetterDecoder {
	return deadLetterDecoder{EventDecoder: pg.EventDecoder{PayloadOID: t.DeadPayloadOID}, pipeline: h.b.config.Pipeline}
}

const hookTakeOverSQL = ledger.DueSQL + ledger.TakenSQL + `
       d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at, ` + letterSQL + `
FROM taken t
LEFT JOIN outbox_dead_letters d ON d.pipeline = $5 AND d.event_id BETWEEN t.first_id AND t.last_id
  AND d.hook_group_id = t.group_id AND d.notified_at IS NULL`

// TakeOver is described by buffertest.Hook.
func (h *Hook) TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error) {
	t, err := h.b.ready(ctx)
	if err != nil {
		return nil, err
	}
	rows := h.letters(t)
	batch, err := ledger.TakeOver(ctx, h.Ledger, &t.Tables, lease, &rows.EventDecoder, rows.addLetter, []string{"synchronous_commit", "on", "enable_seqscan", "off"}, hookTakeOverSQL, h.b.config.Pipeline)
	if batch != nil {
		rows.deadLetters(batch)
	}
	return batch, err
}
