package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// matchSQL is a DeadFilter, by the parameters of matching. The server plans with their
// values, so that a part that matches everything costs nothing, and the index of the
// open letters is used.
const matchSQL = `
  d.pipeline = $1
  AND ($2::bigint[] IS NULL AND $8::uuid[] IS NULL OR d.event_id = ANY ($2::bigint[]) OR $8::uuid[] IS NOT NULL AND d.event_uuid = ANY ($8::uuid[]))
  AND ($3 = '' OR d.topic = $3)
  AND ($4 = '' OR position(lower($4) IN lower(d.error)) > 0)
  AND ($5::interval IS NULL OR d.died_at <= (SELECT clock_timestamp()) - $5::interval)
  AND ($6::interval IS NULL OR d.died_at > (SELECT clock_timestamp()) - $6::interval)
  AND (NOT $7::boolean OR d.notified_at IS NOT NULL)`

// matching are the parameters of matchSQL.
func (b *Buffer) matching(f buffer.DeadFilter, more ...string) []string {
	ids, uuids, older, newer := pg.Null, pg.Null, pg.Null, pg.Null
	if f.UUIDs != nil {
		uuids = pg.UUIDArray(f.UUIDs)
	}
	if f.IDs != nil {
		ids = pg.IDArray(f.IDs)
	}
	if f.OlderThan != 0 {
		older = pg.Interval(f.OlderThan)
	}
	if f.NewerThan != 0 {
		newer = pg.Interval(f.NewerThan)
	}
	return append([]string{b.config.Pipeline, ids, pg.Text(f.Topic), pg.Text(f.Error), older, newer, pg.Bool(f.Notified), uuids}, more...)
}

// letterSQL is the rest of a row after an event's own columns.
const letterSQL = `d.group_id, d.attempts, d.error, d.died_at, d.notified_at, d.closed_at, d.closed_as, d.event_uuid`

const deadSQL = `
SELECT d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at, ` + letterSQL + `, d.event_row
FROM outbox_dead_letters d
WHERE ` + matchSQL + `
  AND ($9::boolean OR d.closed_at IS NULL)
  AND ($10::bigint IS NULL OR (d.event_id, d.group_id) > ($10::bigint, $11::uuid))
ORDER BY d.event_id, d.group_id LIMIT $12::bigint`

// ListDead is described by buffertest.Buffer.
func (b *Buffer) ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]buffer.DeadEvent, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	eventID, groupID := pg.Null, pg.Null
	if after != nil {
		eventID, groupID = pg.Int(after.EventID), after.GroupID.String()
	}
	rows := deadLetterDecoder{EventDecoder: pg.EventDecoder{PayloadOID: t.DeadPayloadOID}, pipeline: b.config.Pipeline}
	begin := pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off")
	begin.Row = rows.Reset
	err = b.db.Transact(ctx, begin, pg.Step{
		SQL:  t.SQL(deadSQL),
		Args: b.matching(f, pg.Bool(f.Closed), eventID, groupID, pg.Int(int64(limit))),
		Row:  rows.addRow,
	})
	return rows.dead, b.explain(ctx, "listing dead letters", err)
}

// The open ones are counted by their index. Whoever asks for the closed ones waits for
// as many as there are.
const countDeadSQL = `
SELECT open.letters, open.untold, closed.letters
FROM (SELECT count(*) AS letters, count(*) FILTER (WHERE d.notified_at IS NULL) AS untold
      FROM outbox_dead_letters d WHERE d.closed_at IS NULL AND ` + matchSQL + `) open,
     (SELECT count(*) AS letters
      FROM outbox_dead_letters d WHERE d.closed_at IS NOT NULL AND ` + matchSQL + `) closed`

// CountDead is described by buffertest.Buffer.
func (b *Buffer) CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return buffer.DeadCount{}, err
	}
	var n buffer.DeadCount
	err = b.db.Transact(ctx, pg.ReadTx(pg.BulkTimeout, "enable_seqscan", "off"), pg.Step{
		SQL: t.SQL(countDeadSQL), Args: b.matching(f),
		Row: func(v [][]byte) error {
			n = buffer.DeadCount{Open: pg.ReadInt8(v[0]), Unnotified: pg.ReadInt8(v[1]), Closed: pg.ReadInt8(v[2])}
			return nil
		},
	})
	return n, b.explain(ctx, "counting dead letters", err)
}

// pickOpenSQL locks the letters that are meant. What somebody else has locked is
// being replayed, discarded or told.
const pickOpenSQL = `
WITH picked AS MATERIALIZED (
  SELECT d.event_id, d.group_id FROM outbox_dead_letters d
  WHERE d.closed_at IS NULL AND ` + matchSQL

const discardSQL = pickOpenSQL + `
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE SKIP LOCKED
)
UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'discarded'
FROM picked p WHERE d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id`

// Discard is described by buffertest.Buffer.
func (b *Buffer) Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	err = b.db.Transact(ctx, b.db.WriteTx(pg.BulkTimeout, pg.PlanByKey...), pg.Step{
		SQL: t.SQL(discardSQL), Args: b.matching(f, pg.Int(int64(limit))), Affected: &n,
	})
	return int(n), b.explain(ctx, "discarding dead letters", err)
}

// deadLetterDecoder decodes an event's columns and letterSQL.
type deadLetterDecoder struct {
	pg.EventDecoder
	pipeline string
	dead     []buffer.DeadEvent
}

// addLetter is a step's row function for an event's columns and letterSQL.
func (d *deadLetterDecoder) addLetter(v [][]byte) error {
	if err := d.Append(v); err != nil {
		return err
	}
	v = v[6:]
	n := len(d.Events)
	event := &d.Events[n-1]
	if v[7] != nil {
		event.UUID = uuid.UUID(v[7])
	}
	one := buffer.DeadEvent{Event: *event, DeadLetter: buffer.DeadLetter{
		Pipeline: d.pipeline, GroupID: uuid.UUID(v[0]), Attempts: pg.ReadInt4(v[1]), Error: string(v[2]), DiedAt: pg.ReadTime(v[3]),
	}, ClosedAs: string(v[6])}
	if v[4] != nil {
		one.NotifiedAt = pg.ReadTime(v[4])
	}
	if v[5] != nil {
		one.ClosedAt = pg.ReadTime(v[5])
	}
	d.dead = append(d.dead[:n-1], one) // a transaction that is tried again begins anew
	return nil
}

// addRow is addLetter, with the row that a replay puts back.
func (d *deadLetterDecoder) addRow(v [][]byte) error {
	if err := d.addLetter(v); err != nil {
		return err
	}
	if row := v[14]; len(row) > 0 {
		d.dead[len(d.dead)-1].Row = d.Copy(row)
	}
	return nil
}

// deadLetters completes a batch for the hook: why its events were buried, in their order.
func (d *deadLetterDecoder) deadLetters(batch *buffer.Lease) {
	if len(batch.Events) == 0 {
		return
	}
	slices.SortFunc(d.dead, func(a, b buffer.DeadEvent) int { return cmp.Compare(a.ID, b.ID) })
	for i := range d.dead {
		batch.DeadLetters = append(batch.DeadLetters, &d.dead[i].DeadLetter)
	}
}
