package postgres

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The letters behind one, $10 and $11, in whose places no other event is.
const pickOwnSQL = pickOpenSQL + `
    AND d.event_row IS NOT NULL AND ($10::bigint IS NULL OR (d.event_id, d.group_id) > ($10::bigint, $11::uuid))
    AND NOT EXISTS (SELECT FROM outbox_events e WHERE own_find = d.own_letter)
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED
`

const nextOpenOwnSQL = pickOwnSQL + `)
SELECT event_id, group_id FROM picked`

// As replaySQL (which see), with the row as it was: whatever generates a column of it by
// itself is left to. The last letter that was looked at comes with how many went back.
const replayOwnSQL = pickOwnSQL + `), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (d.own_letter) d.own_letter AS find, d.event_id, d.group_id, d.event_row
  FROM picked p JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id
  ORDER BY d.own_letter, d.event_id, d.group_id
), put AS (
  INSERT INTO outbox_events AS e (own_columns)
  OVERRIDING SYSTEM VALUE
  SELECT own_values FROM chosen c, json_populate_record(NULL::outbox_events, c.event_row) r
  ON CONFLICT DO NOTHING
  RETURNING own_find AS find, own_created AS created_at
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, uuids)
  SELECT $12::uuid, $13, 'stamp', 'waiting', 0, clock_timestamp(), $14, 0,
         0, 0, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, 'replayed', uuids
  FROM (SELECT count(*) AS events, min(created_at) AS oldest_at, own_block FROM put HAVING count(*) > 0) block
), closed AS (
  UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'replayed'
  FROM put JOIN chosen c USING (find)
  WHERE d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id
  RETURNING 1
)
SELECT event_id, group_id, (SELECT count(*) FROM closed) FROM picked ORDER BY event_id DESC, group_id DESC LIMIT 1`

// replayOwn is Replay for a table of the user's own. Letters whose rows do not go in do
// not hold up those beside them: whom a unique value is in the way of is left out, and
// where anything else of the user's refuses a row, they are halved until it stands alone.
func (b *Buffer) replayOwn(ctx context.Context, t *table, f buffer.DeadFilter, limit int) (replayed int, err error) {
	var last, refused letterKey
	for size, halved := limit, false; size > 0; {
		var n, picked int64
		begin := b.db.WriteTx(pg.BulkTimeout, pg.PlanByKey...)
		begin.Row = func([][]byte) error {
			n, picked = 0, 0
			return nil
		}
		behind, before := last.args(), last
		steps := []pg.Step{begin}
		if size == 1 {
			steps = append(steps, pg.Step{SQL: t.SQL(nextOpenOwnSQL), Args: b.matching(f, append([]string{"1"}, behind...)...), Row: refused.read})
		}
		args := append(append([]string{pg.Int(int64(size))}, behind...), buffer.NewGroupID().String(), t.Buffer, b.config.Owner)
		err := b.db.Transact(ctx, append(steps, pg.Step{SQL: t.SQL(replayOwnSQL), Args: b.matching(f, args...), Row: func(v [][]byte) error {
			n = pg.ReadInt8(v[2])
			picked++
			return last.read(v)
		}})...)
		switch {
		case err != nil && !refuses(err):
			return replayed, b.explain(ctx, "replaying dead letters", err)
		case err != nil && size > 1:
			last, size, halved = before, size/2, true
		case err != nil:
			last = refused
		default:
			if replayed += int(n); picked == 0 || n > 0 && !halved {
				return replayed, nil
			}
			size = min(2*size, limit-replayed)
		}
	}
	return replayed, nil
}

// letterKey is where a letter stands among the others; none is before all of them.
type letterKey struct {
	eventID int64
	groupID uuid.UUID
	is      bool
}

func (k *letterKey) read(v [][]byte) error {
	*k = letterKey{pg.ReadInt8(v[0]), uuid.UUID(v[1]), true}
	return nil
}

func (k *letterKey) args() []string {
	if !k.is {
		return []string{pg.Null, pg.Null}
	}
	return []string{pg.Int(k.eventID), k.groupID.String()}
}

// refuses tells whether it is a row that was not taken: by a constraint, a type or a
// trigger.
func refuses(err error) bool {
	c := pg.Code(err)
	return strings.HasPrefix(c, "22") || strings.HasPrefix(c, "23") || strings.HasPrefix(c, "P0")
}
