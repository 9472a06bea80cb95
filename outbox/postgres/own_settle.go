package postgres

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// As the statements of the relay's own table (see settle.go). Events are found one by
// one: keys need not be numbers, and numbers need not be near each other.
const (
	deleteOwnSQL = `
DELETE FROM outbox_events e
WHERE current_setting('relay.fenced') = '1' AND own_find = ANY ($2::own_finds) AND e.group_id = $1::uuid`

	deleteFreeOwnSQL = `
DELETE FROM outbox_events e
WHERE own_find = ANY (ARRAY(
  SELECT own_find FROM outbox_events e
  WHERE current_setting('relay.fenced') = '1' AND own_find = ANY ($2::own_finds) AND e.group_id = $1::uuid
  ORDER BY own_find
  FOR UPDATE SKIP LOCKED))`

	// What was sent comes with the statement. Of an event that there was nothing to
	// send of, the row is what there is.
	archiveOwnSQL = `
RETURNING own_id::bigint AS id, own_json AS event_row)
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id)
SELECT id, s.topic, s.key, coalesce(own_payload, own_row), s.headers::json, s.created_at, $1::uuid
FROM gone JOIN unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[])
  s(id, topic, key, payload, headers, created_at) USING (id)
ON CONFLICT (id, group_id) DO NOTHING`

	archiveDeletedOwnSQL = `WITH gone AS (` + deleteOwnSQL + archiveOwnSQL
	archiveFreeOwnSQL    = `WITH gone AS (` + deleteFreeOwnSQL + archiveOwnSQL

	closeLedgerOwnSQL = `
DELETE FROM outbox_batches l
WHERE current_setting('relay.fenced') = '1' AND l.buffer = $1 AND l.group_id = $2::uuid AND l.lease_no = $3::bigint
  AND NOT EXISTS (SELECT FROM outbox_events e WHERE own_find = ANY ($4::own_finds) AND e.group_id = $2::uuid)`

	keepLedgerOwnSQL = `
UPDATE outbox_batches l SET events = locked.events, delivered = locked.ids
FROM (SELECT count(*) AS events, array_agg(own_marked ORDER BY find) AS ids
      FROM (SELECT own_find AS find FROM outbox_events e WHERE own_find = ANY ($4::own_finds) AND e.group_id = $2::uuid) f,
           (SELECT first_id, uuids FROM outbox_batches WHERE group_id = $2::uuid) was) locked
WHERE current_setting('relay.fenced') = '1' AND l.buffer = $1 AND l.group_id = $2::uuid
  AND l.lease_no = $3::bigint AND locked.events > 0`

	// The letter has what was sent, and the row, which a replay puts back.
	buryOwnSQL = `
WITH found AS MATERIALIZED (
  SELECT own_find AS find, own_uuid AS key, own_json AS event_row, own_created AS created_at FROM outbox_events e
  WHERE current_setting('relay.fenced') = '1' AND own_find = ANY ($5::own_finds) AND e.group_id = $2::uuid
)
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, event_uuid, event_row)
SELECT $1, s.id, s.topic, s.key, coalesce(own_payload, own_row), s.headers::json, s.created_at,
       $2::uuid, $3::int, $4, f.key, f.event_row
FROM unnest($5::own_finds, $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::timestamptz[])
  s(find, id, topic, key, payload, headers, created_at) JOIN found f USING (find)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = EXCLUDED.topic, key = EXCLUDED.key, payload = EXCLUDED.payload, headers = EXCLUDED.headers,
    created_at = EXCLUDED.created_at, attempts = EXCLUDED.attempts, error = EXCLUDED.error,
    event_uuid = EXCLUDED.event_uuid, event_row = EXCLUDED.event_row,
    died_at = clock_timestamp(), notified_at = NULL, closed_at = NULL, closed_as = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	moveOwnSQL = `
WITH moved AS (
  UPDATE outbox_events e SET group_id = $3::uuid
  WHERE current_setting('relay.fenced') = '1' AND own_find = ANY ($4::own_finds) AND e.group_id = $2::uuid
  RETURNING own_find AS find, own_created AS created_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, uuids)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $5::interval, $6, 0,
       $7::int, $8::int, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, $9::uuid[], $10, $11, uuids
FROM (SELECT count(*) AS events, min(created_at) AS oldest_at, own_block FROM moved HAVING count(*) > 0) block`
)

// customSettlement is a settlement of events of a custom table.
type customSettlement struct {
	*ledger.Settlement
	own   *own
	owner string
}

// settleOwn are the steps for the events of a custom table.
func (b *Buffer) settleOwn(settlement *ledger.Settlement, t *table, o *outcomes.Set) []pg.Step {
	s := customSettlement{settlement, t.own, b.config.Owner}
	if o.RetriesWhole() {
		return nil
	}
	var work []pg.Step
	for _, d := range o.Dead {
		work = append(work, s.buryOwn(d))
	}
	for _, r := range o.Retry {
		work = append(work, s.moveOwn(r))
	}
	gone, dead := o.IDs(s.Batch)
	plainSQL, archiveSQL := deleteOwnSQL, archiveDeletedOwnSQL
	if s.Batch.DeliveryRecorded() {
		plainSQL, archiveSQL = deleteFreeOwnSQL, archiveFreeOwnSQL
	}
	if s.Tables.Archive {
		if len(gone) > 0 {
			slices.Sort(gone)
			work = append(work, pg.Step{SQL: s.Tables.SQL(archiveSQL), Args: append([]string{s.Batch.GroupID.String(), s.finds(gone)}, s.contents(gone)...)})
		}
	} else { // they go the same way
		dead = append(gone, dead...)
	}
	if len(dead) > 0 {
		slices.Sort(dead)
		work = append(work, pg.Step{Prepare: true, SQL: s.Tables.SQL(plainSQL), Args: []string{s.Batch.GroupID.String(), s.finds(dead)}})
	}
	if s.Batch.DeliveryRecorded() {
		closing := func(sql string, affected *int64) pg.Step {
			return pg.Step{SQL: s.Tables.SQL(sql), Args: []string{
				s.Tables.Buffer, s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo), s.finds(s.Batch.IDs()),
			}, Affected: affected}
		}
		work = append(work, closing(closeLedgerOwnSQL, &s.Closed), closing(keepLedgerOwnSQL, nil))
	}
	return work
}

func (s *customSettlement) finds(ids []int64) string { return s.own.finds(s.Batch, ids) }

func (s *customSettlement) buryOwn(o *buffer.Outcome) pg.Step {
	ids := o.IDs
	if ids == nil {
		ids = s.Batch.IDs()
	}
	args := []string{s.Batch.Pipeline, s.Batch.GroupID.String(), pg.Int(int64(o.Attempts)), pg.Text(o.Error), s.finds(ids)}
	return pg.Step{SQL: s.Tables.SQL(buryOwnSQL), Args: append(args, s.contents(ids)...)}
}

func (s *customSettlement) moveOwn(o *buffer.Outcome) pg.Step {
	origins := append(append(make([]uuid.UUID, 0, len(s.Batch.Origins)+1), s.Batch.Origins...), s.Batch.GroupID)
	return pg.Step{SQL: s.Tables.SQL(moveOwnSQL), Args: []string{
		s.Tables.Buffer, s.Batch.GroupID.String(), o.GroupID.String(), s.finds(o.IDs), pg.Interval(o.After), s.owner,
		pg.Int(int64(o.Attempts)), pg.Int(int64(o.Outages)), pg.UUIDArray(origins), pg.Text(o.Error), pg.OptionalText(o.Address),
	}}
}

// contents are what was sent of these events, in arrays: their ids, topics, keys,
// payloads, headers and times.
func (s *customSettlement) contents(ids []int64) []string {
	var numbers, topics, keys, payloads, headers, times pg.Array
	all := s.Batch.AllEvents()
	for _, id := range ids {
		e := eventOf(all, id)
		if e == nil {
			continue
		}
		numbers.Append(strconv.AppendInt(nil, id, 10))
		topics.Append([]byte(e.Topic))
		if e.Key == nil {
			keys.Append(nil)
		} else {
			keys.Append(append([]byte{}, *e.Key...))
		}
		payloads.Append(s.payload(e))
		if depth(e.Headers) <= maxDepth {
			headers.Append(e.Headers)
		} else {
			headers.Append(nil)
		}
		times.Append([]byte(pg.Timestamp(e.CreatedAt)))
	}
	return []string{numbers.String(), topics.String(), keys.String(), payloads.String(), headers.String(), times.String()}
}

// payload is how a letter's column reads what was sent; nil: nothing was.
func (s *customSettlement) payload(e *outbox.Event) []byte {
	switch {
	case e.Payload == nil:
		return nil
	case !pg.IsJSON(s.Tables.DeadPayloadOID):
		return []byte(`\x` + hex.EncodeToString(e.Payload))
	case fitsJSON(e.Payload):
		return e.Payload
	}
	// A letter is for people, and for the hook; what a replay puts back is the row.
	wrapped := map[string]string{"payload_base64": base64.StdEncoding.EncodeToString(e.Payload)}
	text, err := json.Marshal(wrapped)
	if err != nil { // strings always marshal
		panic(err)
	}
	return text
}
