package custom

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Statements are written for a table custom_events with the columns custom_id (by which events are found: the
// integer, or the uuid if there is none), custom_key (by which the projection names them), custom_uuid (the key
// if it is a uuid), created_at and group_id. custom_member reports whether the event is one of those of the row l, and custom_uuids are
// the uuids of a row of the ledger, in the order of their numbers x.n; NULL with integers. custom_where reports whether the row e is an event.
// names puts the real ones in their place.

// names returns what stands for the default names, in pairs. relay are the names of the relay's own tables.
func (t *Table) names(events string, deadPayloadOID uint32, relay []string) []string {
	key, uuid := "e."+t.key.Quoted+"::text", "NULL::uuid"
	if t.key.Name == t.number.Name {
		key = "NULL::text"
	}
	if t.key.OID == pg.OIDUUID {
		uuid = "e." + t.key.Quoted
	}
	deadID, member, finds, uuids := "d.event_uuid", "e."+t.key.Quoted+" = ANY (l.uuids)", "uuid[]", "array_agg(e."+t.key.Quoted+" ORDER BY x.n)"
	if t.Numbered() {
		deadID, member, finds, uuids = "d.event_id", "e."+t.number.Quoted+"::bigint <@ l.members", "bigint[]", "NULL::uuid[]"
	}
	columns, values := t.putBack()
	names := []string{
		"custom_events", events, "d.custom_id", deadID, "custom_member", member, "custom_uuids", uuids, "custom_finds", finds, "custom_id", t.find().Quoted, "e.custom_key::text", key, "e.custom_uuid", uuid,
		"e.created_at", t.created, "e.available_at", t.available, "t.created_at", strings.ReplaceAll(t.created, noTime, "t.claimed_at"), // t is the ledger's row
		"custom_where", t.where, "to_json(e)", t.row, "(custom_columns)", "(" + columns + ")", "SELECT custom_values", "SELECT " + values,
	}
	if !pg.IsJSON(deadPayloadOID) {
		names = append(names, "coalesce(s.payload::json, event_row)", "coalesce(s.payload::bytea, convert_to(event_row::text, 'UTF8'))")
	}
	return slices.Concat(names, t.markNames(), relay)
}

// backlogStatements returns the statements about all events. In those for the relay's own table outbox_events becomes a
// SELECT from the custom table. It calls nothing volatile, so that the planner can merge it into
// the statement around it, and finds the index for the condition is_event. inserted is the expression for the time of an event, NULL if its row does not say it. relay are the
// names of the relay's own tables.
func (t *Table) backlogStatements(events, inserted string, relay []string) ledger.Statements {
	id := "1::bigint" // every event is beyond every watermark
	if t.Numbered() {
		id = "e." + t.number.Quoted
	}
	statements := func(created string) ledger.Statements {
		columns, names := id+" AS id, NULL::text AS key, "+created+" AS created_at, e.group_id, "+t.available+" AS available_at", relay
		if t.tables.Conditional {
			columns, names = columns+", "+t.where+" AS is_event", append([]string{"e.group_id IS NULL", "e.group_id IS NULL AND e.is_event"}, relay...)
		}
		return backlog.Statements(strings.NewReplacer(append([]string{"outbox_events", "(SELECT " + columns + " FROM " + events + " e)"}, names...)...))
	}
	s := statements(t.created)
	s.Status = statements(inserted).Status
	s.Adopt, s.AdoptAll, s.Windows = t.tables.SQL(adoptSQL), t.tables.SQL(adoptAllSQL), false
	if t.tables.Conditional && t.Numbered() {
		s.FullSweep = t.tables.SQL(fullSweepSQL)
	}
	if t.tables.AvailableAt == "" {
		s.Due = ""
	}
	if !t.Numbered() {
		s.Audit, s.AuditSinks, s.RemoveEmpty = t.tables.SQL(auditUUIDSQL), t.tables.SQL(auditSinksUUIDSQL), t.tables.SQL(removeEmptyUUIDSQL)
		s.CorrectCounts, s.Adopt, s.AdoptAll = t.tables.SQL(correctCountsUUIDSQL), t.tables.SQL(adoptUUIDSQL), t.tables.SQL(adoptAllUUIDSQL)
	}
	return s
}

// A claim by stamp without the events' content, which is the projection's; see package claim.
const (
	stampSQL = `
WITH picked AS MATERIALIZED (
  SELECT e.custom_id AS id, greatest(e.created_at, e.available_at) AS created_at FROM custom_events e
  WHERE e.custom_id > $3::bigint AND e.custom_id <= $4::bigint AND e.group_id IS NULL AND custom_where AND ` + ledger.AvailableOfSQL + `
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp' AND routed = ($8 = '*'))
  ORDER BY e.custom_id LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), stamped AS (
  UPDATE custom_events e SET group_id = $2::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM picked))
  RETURNING e.custom_id::bigint AS id, e.custom_key::text AS key, e.created_at AS created_at, e.group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, sink, events, first_id, last_id, oldest_at, claimed_at)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, $8, CASE WHEN count(*) = (SELECT count(*) FROM stamped WHERE group_id = $2::uuid) THEN count(*) END, min(id), max(id), min(created_at), statement_timestamp()
  FROM picked HAVING count(*) > 0
)
SELECT id, key, created_at FROM stamped`

	// A projection needs rows with a group_id and a ledger row, which are rolled back.
	peekSQL = `
WITH picked AS MATERIALIZED (
  SELECT e.custom_id AS id, e.created_at AS created_at FROM custom_events e
  WHERE e.custom_id > $2::bigint AND e.group_id IS NULL AND custom_where AND ` + ledger.AvailableOfSQL + `
    AND NOT e.custom_id::bigint = ANY ($6::bigint[])
  ORDER BY e.custom_id LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
), stamped AS (
  UPDATE custom_events e SET group_id = $1::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM picked))
  RETURNING e.custom_id::bigint AS id, e.custom_key::text AS key, e.created_at AS created_at, to_json(e)::text AS event_row, e.group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at)
  SELECT $1::uuid, $4, 'stamp', 'leased', 1, clock_timestamp(), $5, 1,
         0, 0, CASE WHEN count(*) = (SELECT count(*) FROM stamped WHERE group_id = $1::uuid) THEN count(*) END, min(id), max(id), min(created_at)
  FROM picked HAVING count(*) > 0
)
SELECT id, key, created_at, event_row, clock_timestamp() FROM stamped`

	takeOverSQL = ledger.DueSQL + ledger.TakenSQL + takenRowsSQL

	// The rows of one of several sinks carry the claim_id, and only its members are the batch's.
	takenRowsSQL = `
       e.custom_id::bigint, e.custom_key::text, t.created_at
FROM taken t
LEFT JOIN custom_events e ON e.custom_id BETWEEN t.first_id AND t.last_id AND e.group_id = coalesce(t.claim_id, t.group_id)
  AND (t.members IS NULL OR e.custom_id::bigint <@ t.members)`
)

// fullSweepSQL is a sweep of a table in which only some rows are events: an index finds those, and the others are not read. It stops at a number of
// events, because millions may become events at once, and is then repeated.
const fullSweepSQL = `
SELECT max(id), count(*), count(*), min(id) FROM (
  SELECT e.custom_id::bigint AS id FROM custom_events e
  WHERE e.custom_id >= $5::bigint AND e.custom_id <= $3::bigint AND e.group_id IS NULL AND custom_where AND ` + ledger.AvailableOfSQL + `
    AND $1::text IS NOT NULL AND $2::bigint IS NOT NULL AND $6::boolean IS NOT NULL
  ORDER BY e.custom_id LIMIT least($4::bigint, 10000)) late`

// Orphans; see package backlog. A custom table has no keys before it is projected.
// What carries a group_id was claimed, so it is sent even if it is no event any more. A sweep looks only for those that still are: the index that finds
// events finds them, and the table may be a long journal.
const (
	orphansSQL = `
WITH orphans AS MATERIALIZED (
  SELECT e.custom_id AS id, e.group_id FROM custom_events e
  WHERE e.group_id IS NOT NULL AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = e.group_id)
    AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.claim_id = e.group_id AND custom_member)`

	adoptedSQL = `
), groups AS MATERIALIZED (
  SELECT group_id, ` + backlog.NewGroupSQL + ` AS new FROM (SELECT DISTINCT group_id FROM orphans) o
), adopted AS (
  UPDATE custom_events e SET group_id = g.new FROM orphans o JOIN groups g ON g.group_id = o.group_id
  WHERE e.custom_id = o.id AND e.group_id = o.group_id AND $3::boolean IS NOT NULL
  RETURNING e.group_id AS group_id, e.custom_id AS id, e.created_at AS created_at
)`

	adoptSQL    = orphansSQL + ` AND custom_where` + adoptedSQL + adoptedRowsSQL
	adoptAllSQL = orphansSQL + adoptedSQL + adoptedRowsSQL

	adoptedRowsSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, sink)
SELECT group_id, $1, 'stamp', 'waiting', 0, clock_timestamp(), $2, 0,
       0, 0, count(*), min(id), max(id), min(created_at), 'found without a ledger row', $4
FROM adopted GROUP BY group_id
RETURNING events::bigint`
)

// rowsSQL are the rows of events that the projection did not return.
const rowsSQL = `
SELECT e.custom_id::text, to_json(e)::text FROM custom_events e
WHERE e.group_id = $1::uuid AND e.custom_id = ANY ($2)`

// keySQL is how the projection names an event.
const keySQL = `
SELECT e.custom_key::text FROM custom_events e
WHERE e.group_id = $1::uuid AND e.custom_id = ANY ($2)`

// Settlements find events one by one, because their keys need not be near each other. See package ledger.
const (
	deleteSQL = `
DELETE FROM custom_events e
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2) AND e.group_id = $1::uuid`

	deleteUnlockedSQL = `
DELETE FROM custom_events e
WHERE e.custom_id = ANY (ARRAY(
  SELECT e.custom_id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2) AND e.group_id = $1::uuid
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED))`

	// What was sent comes with the statement. For an event that was not projected the row is archived.
	archiveSQL = `
RETURNING e.custom_id::bigint AS id, to_json(e) AS event_row, custom_still AS still)` + archiveGoneSQL

	archiveGoneSQL = `
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id)
SELECT id, s.topic, s.key, coalesce(s.payload::json, event_row), s.headers::json, s.created_at, $1::uuid
FROM gone JOIN unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[])
  s(id, topic, key, payload, headers, created_at) USING (id)
ON CONFLICT (id, group_id) DO NOTHING`
	closeSQL = `
DELETE FROM outbox_batches l
WHERE current_setting('relay.fenced') = '1' AND l.buffer = $1 AND l.group_id = $2::uuid AND l.lease_no = $3::bigint
  AND NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = ANY ($4) AND e.group_id = $2::uuid)`

	keepSQL = `
UPDATE outbox_batches l SET events = locked.events, delivered = locked.ids
FROM (SELECT count(*) AS events, array_agg(s.id ORDER BY s.id) AS ids
      FROM custom_events e JOIN unnest($5::text[], $6::bigint[]) s(key, id) ON s.key = e.custom_id::text
      WHERE e.custom_id = ANY ($4) AND e.group_id = $2::uuid) locked
WHERE current_setting('relay.fenced') = '1' AND l.buffer = $1 AND l.group_id = $2::uuid
  AND l.lease_no = $3::bigint AND locked.events > 0
RETURNING locked.ids`

	freeSQL = `
SELECT s.id FROM (
  SELECT e.custom_id::text AS key FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($1) AND e.group_id = $2::uuid
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED) locked JOIN unnest($3::text[], $4::bigint[]) s(key, id) USING (key)`

	recordKeptSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, delivered, sink, stamp_xid)
SELECT $2::uuid, $1, 'stamp', 'delivered', $3::bigint, clock_timestamp() + $5::interval, $4, 1,
       0, 0, count(*), min(e.custom_id), max(e.custom_id), min(e.created_at), array_agg(e.custom_id::bigint ORDER BY e.custom_id), ` + ledger.SinkSQL + `, ` + ledger.StampXidSQL + `
FROM custom_events e WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($6) AND e.group_id = $2::uuid
HAVING count(*) > 0
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`

	// The dead letter has what was sent, and the row, which a replay puts back.
	burySQL = `
WITH found AS MATERIALIZED (
  SELECT e.custom_id::text AS find, e.custom_uuid AS uuid, to_json(e) AS event_row FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($5) AND e.group_id = $13::uuid
)
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, event_uuid, event_row, sink, history)
SELECT $1, s.id, s.topic, s.key, coalesce(s.payload::json, event_row), s.headers::json, s.created_at,
       $2::uuid, $3::int, $4, f.uuid, f.event_row, ` + ledger.SinkSQL + `, ` + ledger.HistorySQL + `
FROM unnest($6::text[], $7::bigint[], $8::text[], $9::text[], $10::text[], $11::text[], $12::timestamptz[])
  s(find, id, topic, key, payload, headers, created_at) JOIN found f USING (find)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = EXCLUDED.topic, key = EXCLUDED.key, payload = EXCLUDED.payload, headers = EXCLUDED.headers,
    created_at = EXCLUDED.created_at, attempts = EXCLUDED.attempts, error = EXCLUDED.error, history = EXCLUDED.history,
    event_uuid = EXCLUDED.event_uuid, event_row = EXCLUDED.event_row,
    died_at = clock_timestamp(), notified_at = NULL, closed_at = NULL, closed_as = NULL, closed_by = NULL, closed_reason = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	// See package ledger.
	unburiedSQL = `
SELECT (s.find || ' has no dead letter: a trigger on INSERT of outbox_dead_letters drops or deletes the row')::bigint
FROM unnest($4::text[], $5::bigint[]) s(find, id) JOIN custom_events e ON e.custom_id::text = s.find
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($3) AND e.group_id = $6::uuid
  AND NOT EXISTS (SELECT FROM outbox_dead_letters d WHERE d.pipeline = $1 AND d.event_id = s.id AND d.group_id = $2::uuid)`

	regroupSQL = `
WITH found AS MATERIALIZED (
  SELECT e.custom_id AS id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($4) AND e.group_id = $2::uuid
  ORDER BY e.custom_id
  FOR NO KEY UPDATE
), regrouped AS (
  UPDATE custom_events e SET group_id = $3::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM found)) AND e.group_id = $2::uuid
  RETURNING e.custom_id AS id, greatest(e.created_at, e.available_at) AS created_at, e.group_id
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, sink, routes_no, history)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $5::interval, $6, $12::int,
       $7::int, $8::int, CASE WHEN count(*) = (SELECT count(*) FROM found) THEN count(*) END, min(id), max(id), min(created_at), $9::uuid[], $10, $11,
       ` + ledger.SinkSQL + `, ` + ledger.RoutesNoSQL + `, ` + ledger.HistorySQL + `
FROM regrouped WHERE group_id = $3::uuid HAVING EXISTS (SELECT FROM found)`
)
