package probe

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// application is a database client that inserts events, as an application does, and reads how many are left.
type application struct {
	db                   *sql.DB
	insert, left, remove string // SQL
}

// leftover is an event that is still in the buffer.
type leftover struct {
	id int64
	// state is its batch's state, "" for none, "lost" without a ledger row.
	state string
	// err is what its batch waits for.
	err string
}

// The parameters are a topic, the run, and the first and the last number. The record gives the payload the
// type of its column, json, jsonb or bytea.
const postgresInsertSQL = `
INSERT INTO outbox_events (topic, payload)
SELECT $1::text, r.payload
FROM generate_series($3::int, $4::int) n,
     json_populate_record(NULL::outbox_events, json_build_object('payload', json_build_object('relay_verify', $2::text, 'n', n))) r
RETURNING id`

const sqliteInsertSQL = `
WITH RECURSIVE numbers (n) AS (VALUES (?3) UNION ALL SELECT n + 1 FROM numbers WHERE n < ?4)
INSERT INTO outbox_events (topic, payload)
SELECT ?1, CASE (SELECT upper(type) FROM pragma_table_info('outbox_events') WHERE name = 'payload')
           WHEN 'BLOB' THEN CAST(json_object('relay_verify', ?2, 'n', n) AS BLOB) ELSE json_object('relay_verify', ?2, 'n', n) END
FROM numbers
RETURNING id`

// The parameter is a JSON array of ids. A range claim sets no group_id; its ledger row has the ids. Of several sinks that an event waits for,
// the first with an error is told.
const postgresLeftSQL = `
WITH claimed AS (
    SELECT DISTINCT ON (e.id) e.id, l.state, CASE WHEN l.sink IN ('default', '*') THEN l.error ELSE 'sink ' || l.sink || ': ' || coalesce(l.error, 'not sent yet') END AS error
    FROM outbox_batches l CROSS JOIN unnest(l.members) run
    JOIN outbox_events e ON e.id >= lower(run) AND e.id < upper(run)
         AND (e.group_id IS NULL AND e.created_at <= coalesce(l.newest_at, 'infinity') OR e.group_id = l.claim_id)
    WHERE l.buffer = (SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                      WHERE c.oid = 'outbox_events'::regclass)
    ORDER BY e.id, l.error IS NULL, l.sink
)
SELECT e.id, coalesce(l.state, c.state, CASE WHEN e.group_id IS NULL THEN '' ELSE 'lost' END), coalesce(l.error, c.error, '')
FROM outbox_events e LEFT JOIN outbox_batches l ON l.group_id = e.group_id LEFT JOIN claimed c ON c.id = e.id
WHERE e.id IN (SELECT value::bigint FROM json_array_elements_text($1::json))
ORDER BY e.id`

const sqliteLeftSQL = `
WITH claimed AS (
    SELECT id, state, error FROM (
      SELECT e.id, l.state, CASE WHEN l.sink IN ('default', '*') THEN l.error ELSE 'sink ' || l.sink || ': ' || coalesce(l.error, 'not sent yet') END AS error,
             row_number() OVER (PARTITION BY e.id ORDER BY l.error IS NULL, l.sink) AS n
      FROM outbox_batches l CROSS JOIN json_each(l.members) run CROSS JOIN outbox_events e
      WHERE l.buffer = 'outbox_events' AND e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]')
        AND (e.group_id IS NULL AND (l.newest_at IS NULL OR e.created_at <= l.newest_at) OR e.group_id = l.claim_id)
    ) WHERE n = 1
)
SELECT e.id, coalesce(l.state, c.state, CASE WHEN e.group_id IS NULL THEN '' ELSE 'lost' END), coalesce(l.error, c.error, '')
FROM outbox_events e LEFT JOIN outbox_batches l ON l.group_id = e.group_id LEFT JOIN claimed c ON c.id = e.id
WHERE e.id IN (SELECT value FROM json_each(?1))
ORDER BY e.id`

// The parameter is a JSON array of ids.
const (
	postgresRemoveSQL = `
DELETE FROM outbox_events WHERE group_id IS NULL AND id IN (SELECT value::bigint FROM json_array_elements_text($1::json))`
	sqliteRemoveSQL = `
DELETE FROM outbox_events WHERE group_id IS NULL AND id IN (SELECT value FROM json_each(?1))`
)

func newApplication(s *config.Source) (*application, error) {
	schema, table, _ := buffer.SplitTable(s.Table)
	events, ledger := buffer.QuoteName(table), "outbox_batches"
	literal := events // for ::regclass, which needs the quotes
	if s.Driver == "sqlite" {
		literal = table
	}
	if schema != "" {
		events = buffer.QuoteName(schema) + "." + events
		literal, ledger = events, buffer.QuoteName(schema)+"."+ledger
	}
	if s.Schema != "" {
		ledger = buffer.QuoteName(s.Schema) + ".outbox_batches"
	}
	literal = "'" + strings.ReplaceAll(literal, "'", "''") + "'"
	named := strings.NewReplacer("'outbox_events'", literal, "outbox_events", events, "outbox_batches", ledger).Replace
	if s.Driver == "sqlite" {
		dsn := url.URL{Scheme: "file", Path: s.Path, RawQuery: "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)"}
		db, err := sql.Open("sqlite", dsn.String())
		return &application{db, named(sqliteInsertSQL), named(sqliteLeftSQL), named(sqliteRemoveSQL)}, err
	}
	c, err := pgx.ParseConfig(s.URL.Reveal())
	if err != nil {
		return nil, errors.New("source.url is invalid") // without the URL, which has a password
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing, for connection poolers
	return &application{stdlib.OpenDB(*c), named(postgresInsertSQL), named(postgresLeftSQL), named(postgresRemoveSQL)}, nil
}

// commit inserts probes with the numbers first to last in one transaction and returns their ids.
func (a *application) commit(ctx context.Context, topic, run string, first, last int) (ids []int64, err error) {
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // no effect after the commit; before it, the error is known
	rows, err := tx.QueryContext(ctx, a.insert, topic, run, first, last)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return ids, tx.Commit()
}

// leftovers returns the events with these ids that are still in the buffer.
func (a *application) leftovers(ctx context.Context, ids []int64) (all []leftover, err error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	rows, err := a.db.QueryContext(ctx, a.left, string(list))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l leftover
		if err := rows.Scan(&l.id, &l.state, &l.err); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, rows.Err()
}

// removeUnclaimed deletes those of the events that no relay has claimed, and returns how many were. A relay that claims one
// at that moment sends it, or finds it deleted.
func (a *application) removeUnclaimed(ctx context.Context, ids []int64) (removed int64, err error) {
	left, err := a.leftovers(ctx, ids)
	if err != nil {
		return 0, err
	}
	unclaimed := []int64{}
	for _, l := range left {
		if l.state == "" {
			unclaimed = append(unclaimed, l.id)
		}
	}
	list, err := json.Marshal(unclaimed)
	if err != nil {
		return 0, err
	}
	result, err := a.db.ExecContext(ctx, a.remove, string(list))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
