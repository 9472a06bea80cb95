package custom

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The dead letters after one, $10 and $11, whose events are not in the table. d.custom_id is the column of a dead letter
// that has the event's custom_id: event_id or event_uuid.
const (
	pickSQL = deadletter.PickReplayedSQL + `
    AND d.event_row IS NOT NULL AND ($10::bigint IS NULL OR (d.event_id, d.group_id) > ($10::bigint, $11::uuid))
    AND NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = d.custom_id AND custom_held)
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED` + deadletter.FitSQL

	nextSQL = pickSQL + `)
SELECT event_id, group_id, d.event_uuid FROM picked JOIN outbox_dead_letters d USING (event_id, group_id) WHERE d.pipeline = $1`

	// Columns that the database computes are left to it. The last dead letter that was read comes with how many went back.
	replaySQL     = putSQL + replayedRowSQL + closedSQL
	replayUUIDSQL = putSQL + replayedRowUUIDSQL + closedSQL

	replayedRowSQL = `
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error)
  SELECT $12::uuid, $13, 'stamp', 'waiting', 0, clock_timestamp(), $14, 0,
         0, 0, count(*), min(id), max(id), min(created_at), 'replayed'
  FROM put HAVING count(*) > 0`

	replayedRowUUIDSQL = `
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, uuids)
  SELECT $12::uuid, $13, 'stamp', 'waiting', 0, clock_timestamp(), $14, 0,
         0, 0, n, first_id, first_id + n - 1, oldest_at, 'replayed', uuids
  FROM (SELECT count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(id ORDER BY created_at, id) AS uuids,
               min(created_at) AS oldest_at
        FROM put HAVING count(*) > 0) block`

	chosenSQL = `), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (d.custom_id) d.custom_id AS id, d.event_id, d.group_id, d.event_row, $12::uuid AS stamp
  FROM picked p JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id
  ORDER BY d.custom_id, d.event_id, d.group_id
`

	putSQL = pickSQL + chosenSQL + `), put AS (
  INSERT INTO custom_events AS e (custom_columns)
  OVERRIDING SYSTEM VALUE
  SELECT custom_values FROM chosen c, json_populate_record(NULL::custom_events, c.event_row) r
  ON CONFLICT DO NOTHING
  RETURNING e.custom_id AS id, e.created_at AS created_at
), ledger AS (`

	closedSQL = `
), closed AS (
  UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'replayed', closed_by = nullif(($3::text[])[4], ''), closed_reason = nullif(($3::text[])[5], '')
  FROM put JOIN chosen c USING (id)
  WHERE d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id
  RETURNING 1
)
SELECT event_id, group_id, (SELECT count(*) FROM closed) FROM picked ORDER BY event_id DESC, group_id DESC LIMIT 1`
)

// Replay puts dead letters back. Rows that the table refuses do not hold up the others: a row with a duplicate value is
// left out, and if anything else of the table refuses a row, half as many are tried until it stands
// alone.
func (t *Table) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (replayed int, err error) {
	var (
		last, refused *buffer.DeadKey // nil: before all of them
		dead          = deadletter.New(t.Base)
	)
	for size, halved := limit, false; size > 0; {
		var n, picked int64
		var refusal buffer.Refusal
		refused = nil
		begin := t.Base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...)
		begin.Row = func([][]byte) error {
			n, picked = 0, 0
			return nil
		}
		after, before := []string{pg.Null, pg.Null}, last
		if last != nil {
			after = []string{pg.Int(last.EventID), last.GroupID.String()}
		}
		var (
			steps         = []pg.Step{begin, dead.LockForReplay()}
			group         = buffer.NewGroupID().String()
			next, putBack = nextSQL, t.replays()
			picked1, args = append([]string{"1"}, after...), append(append([]string{pg.Int(int64(size))}, after...), group, t.tables.Buffer, t.Base.Owner)
		)
		if t.Base.Sinks != nil {
			next = nextRoutedSQL
			picked1 = append([]string{"1", t.tables.Buffer}, after...)
			args = append([]string{pg.Int(int64(size)), t.tables.Buffer}, after...)
			steps = append(steps, pg.Step{SQL: dead.SQL(t.tables, t.either(lockRoutedSQL, lockRoutedUUIDSQL)), Args: dead.Match(f, args...)})
			args = append(args, group, buffer.NewGroupID().String(), t.Base.Owner)
		}
		if size == 1 {
			steps = append(steps, pg.Step{SQL: dead.SQL(t.tables, next), Args: dead.Match(f, picked1...), Row: func(v [][]byte) error {
				if refused = deadKey(v); len(v[2]) > 0 {
					refusal.UUID = uuid.UUID(v[2])
				}
				refusal.ID = refused.EventID
				return nil
			}})
		}
		err := t.Base.DB.Transact(ctx, append(steps, pg.Step{
			SQL: dead.SQL(t.tables, putBack), Args: dead.Match(f, args...), Row: func(v [][]byte) error {
				n = pg.ReadInt8(v[2])
				picked++
				last = deadKey(v)
				return nil
			},
		})...)
		switch {
		case err != nil && (!refuses(err) || size == 1 && refused == nil):
			return replayed, t.Base.Explain(ctx, "replaying dead letters", err)
		case err != nil && size > 1:
			last, size, halved = before, size/2, true
		case err != nil:
			f.Refuse(refusal, pg.Message(err))
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

func deadKey(v [][]byte) *buffer.DeadKey {
	return &buffer.DeadKey{EventID: pg.ReadInt8(v[0]), GroupID: uuid.UUID(v[1])}
}

// refuses reports whether a constraint, a type or a trigger of the table refused a row.
func refuses(err error) bool {
	c := pg.Code(err)
	return strings.HasPrefix(c, "22") || strings.HasPrefix(c, "23") || strings.HasPrefix(c, "P0")
}
