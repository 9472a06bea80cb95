package postgres

import (
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
)

// statements returns the statements about all events of the table. In those for the relay's own table
// outbox_events becomes a SELECT from the custom table. It calls nothing volatile, so that the planner can merge it
// into the statement around it. names are the names of all tables, in pairs.
func (o *own) statements(events string, t *ledger.Tables, names []string) ledger.Statements {
	id := "1::bigint" // every event is beyond every watermark
	if o.numbered() {
		id = "e." + o.number.quoted
	}
	view := "(SELECT " + id + " AS id, NULL::text AS key, " + strings.ReplaceAll(o.created, "clock_timestamp()", "statement_timestamp()") + " AS created_at, e.group_id FROM " + events + " e)"
	s := backlog.Statements(strings.NewReplacer(append([]string{"outbox_events", view}, names...)...))
	if !o.numbered() {
		s.Audit, s.CorrectCounts, s.Adopt = t.SQL(auditUUIDSQL), t.SQL(correctCountsUUIDSQL), t.SQL(adoptUUIDSQL)
	}
	return s
}

// The statements of package backlog where the ledger has the events' keys.
const (
	foundUUIDSQL = `
WITH found AS (
  SELECT e.group_id, own_find AS find, own_created AS created_at FROM outbox_events e WHERE e.group_id IS NOT NULL
)`

	auditUUIDSQL = foundUUIDSQL + `, stamped AS (
  SELECT e.group_id, count(*) AS events, count(*) FILTER (WHERE own_marked = ANY (l.delivered)) AS delivered, l.group_id IS NULL AS orphan
  FROM found e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
  GROUP BY e.group_id, l.group_id
), ledger AS (
  SELECT l.state, l.events AS said, coalesce(s.events, 0) AS events, coalesce(s.delivered, 0) AS delivered
  FROM outbox_batches l LEFT JOIN stamped s ON s.group_id = l.group_id
  WHERE l.buffer = $1
)
SELECT (SELECT count(*) FROM outbox_events WHERE group_id IS NULL),` + backlog.AuditedSQL

	correctCountsUUIDSQL = foundUUIDSQL + `
UPDATE outbox_batches l
SET events = s.events, oldest_at = s.oldest_at, own_corrected,
    delivered = coalesce(s.delivered, l.delivered)
FROM (SELECT l.group_id, count(*) AS events, min(f.created_at) AS oldest_at, own_more,
             array_agg(own_marked ORDER BY find) FILTER (WHERE own_marked = ANY (l.delivered)) AS delivered
      FROM found f JOIN outbox_batches l ON l.group_id = f.group_id AND l.buffer = $1
      GROUP BY l.group_id) s
WHERE l.buffer = $1 AND s.group_id = l.group_id AND s.events <> l.events
  AND $2::boolean IS NOT NULL AND NOT (l.state = 'leased' AND l.due_at > clock_timestamp())`

	adoptUUIDSQL = foundUUIDSQL + `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, uuids)
SELECT group_id, $1, 'stamp', 'waiting', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp(), $2, 0,
       0, 0, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, 'found without a ledger row', uuids
FROM (SELECT f.group_id, count(*) AS events, min(created_at) AS oldest_at, own_block FROM found f
      WHERE $3::boolean IS NOT NULL AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = f.group_id)
      GROUP BY f.group_id) block
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`
)
