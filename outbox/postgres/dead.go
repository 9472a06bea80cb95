package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
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
func (b *Buffer) matching(f outbox.DeadFilter, more ...string) []string {
	ids, uuids, older, newer := null, null, null, null
	if f.UUIDs != nil {
		uuids = uuidArray(f.UUIDs)
	}
	if f.IDs != nil {
		ids = idArray(f.IDs)
	}
	if f.OlderThan != 0 {
		older = interval(f.OlderThan)
	}
	if f.NewerThan != 0 {
		newer = interval(f.NewerThan)
	}
	return append([]string{b.config.Pipeline, ids, text(f.Topic), text(f.Error), older, newer, boolean(f.Told), uuids}, more...)
}

// letterSQL is the rest of a row after an event's own columns.
const letterSQL = `d.group_id, d.attempts, d.error, d.died_at, d.notified_at, d.closed_at, d.event_uuid`

const deadSQL = `
SELECT d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at, ` + letterSQL + `, d.event_row
FROM outbox_dead_letters d
WHERE ` + matchSQL + `
  AND ($9::boolean OR d.closed_at IS NULL)
  AND ($10::bigint IS NULL OR (d.event_id, d.group_id) > ($10::bigint, $11::uuid))
ORDER BY d.event_id, d.group_id LIMIT $12::bigint`

// Dead is described by buffertest.Buffer.
func (b *Buffer) Dead(ctx context.Context, f outbox.DeadFilter, after *outbox.DeadKey, limit int) ([]outbox.Event, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	eventID, groupID := null, null
	if after != nil {
		eventID, groupID = itoa(after.EventID), after.GroupID.String()
	}
	rows := decoder{payloadOID: t.letterOID, pipeline: b.config.Pipeline}
	begin := reading(aWhile, "enable_seqscan", "off")
	begin.row = rows.forget
	err = b.transact(ctx, begin, step{
		sql:  t.sql(deadSQL),
		args: b.matching(f, boolean(f.Closed), eventID, groupID, itoa(int64(limit))),
		row:  rows.addRow,
	})
	return rows.events, b.explain(ctx, "listing dead letters", err)
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
func (b *Buffer) CountDead(ctx context.Context, f outbox.DeadFilter) (outbox.DeadCount, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return outbox.DeadCount{}, err
	}
	var n outbox.DeadCount
	err = b.transact(ctx, reading(aWhile, "enable_seqscan", "off"), step{
		sql: t.sql(countDeadSQL), args: b.matching(f),
		row: func(v [][]byte) error {
			n = outbox.DeadCount{Open: int8Of(v[0]), Untold: int8Of(v[1]), Closed: int8Of(v[2])}
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
UPDATE outbox_dead_letters d SET closed_at = clock_timestamp()
FROM picked p WHERE d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id`

// Discard is described by buffertest.Buffer.
func (b *Buffer) Discard(ctx context.Context, f outbox.DeadFilter, limit int) (int, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	err = b.transact(ctx, t.writing(aWhile, byKey...), step{
		sql: t.sql(discardSQL), args: b.matching(f, itoa(int64(limit))), affected: &n,
	})
	return int(n), b.explain(ctx, "discarding dead letters", err)
}

// byKey makes the planner look each picked letter up by its key. Statistics taken while
// all letters were open make it believe that reading the whole table is as good.
var byKey = []string{
	"synchronous_commit", "on", "enable_seqscan", "off", "enable_hashjoin", "off", "enable_mergejoin", "off",
}

// addLetter is a step's row function for an event's columns and letterSQL.
func (d *decoder) addLetter(v [][]byte) error {
	if err := d.add(v); err != nil {
		return err
	}
	v = v[6:]
	letter := &outbox.DeadLetter{
		Pipeline: d.pipeline, GroupID: uuid.UUID(v[0]), Attempts: int4Of(v[1]), Error: string(v[2]), DiedAt: timeOf(v[3]),
	}
	if v[4] != nil {
		letter.ToldAt = timeOf(v[4])
	}
	if v[5] != nil {
		letter.ClosedAt = timeOf(v[5])
	}
	event := &d.events[len(d.events)-1]
	event.DeadLetter = letter
	if v[6] != nil {
		event.UUID = uuid.UUID(v[6])
	}
	return nil
}

// addRow is addLetter, with the row that a replay puts back.
func (d *decoder) addRow(v [][]byte) error {
	if err := d.addLetter(v); err != nil {
		return err
	}
	if row := v[13]; len(row) > 0 {
		d.events[len(d.events)-1].DeadLetter.Row = d.bytes(row[1:]) // jsonb's version byte
	}
	return nil
}
