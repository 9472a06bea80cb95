package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// application is a database client that inserts events, as an application does, and
// reads what is left of them.
type application struct {
	db             *sql.DB
	insertTx       func(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error
	inserted, rest string // SQL
	maxID          string
}

// leftover is an event that is still in the buffer.
type leftover struct {
	id int64
	// state is its batch's state, "" for none, "lost" without a ledger row.
	state string
	// err is what its batch waits for.
	err string
}

const (
	maxIDSQL = `
SELECT coalesce(max(id), 0) FROM outbox_events`

	// Only this transaction sees its rows, and xmin tells them from others.
	postgresInsertedSQL = `
SELECT id FROM outbox_events
WHERE id > $1 AND xmin::text = (txid_current() % 4294967296)::text
ORDER BY id`

	// SQLite has one writer at a time, so all rows since are the transaction's.
	sqliteInsertedSQL = `
SELECT id FROM outbox_events WHERE id > ?1 ORDER BY id`

	postgresLeftSQL = `
SELECT e.id, CASE WHEN e.group_id IS NULL THEN '' ELSE coalesce(l.state, 'lost') END, coalesce(l.error, '')
FROM outbox_events e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
WHERE e.id IN (SELECT value::bigint FROM json_array_elements_text($1::json)) ORDER BY e.id`

	sqliteLeftSQL = `
SELECT e.id, CASE WHEN e.group_id IS NULL THEN '' ELSE coalesce(l.state, 'lost') END, coalesce(l.error, '')
FROM outbox_events e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
WHERE e.id IN (SELECT value FROM json_each(?1)) ORDER BY e.id`

	postgresBytesSQL = `
SELECT atttypid = 'bytea'::regtype FROM pg_attribute WHERE attrelid = 'outbox_events'::regclass AND attname = 'payload'`

	sqliteBytesSQL = `
SELECT upper(type) = 'BLOB' FROM pragma_table_info('outbox_events') WHERE name = 'payload'`
)

func newApplication(ctx context.Context, s *config.Source) (_ *application, err error) {
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
	a := &application{maxID: named(maxIDSQL)}
	defer func() {
		if err != nil && a.db != nil {
			err = errors.Join(err, a.db.Close())
		}
	}()
	var bytes bool
	if s.Driver == "sqlite" {
		dsn := url.URL{Scheme: "file", Path: s.Path, RawQuery: "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)"}
		if a.db, err = sql.Open("sqlite", dsn.String()); err != nil {
			return nil, err
		}
		if err := a.db.QueryRowContext(ctx, named(sqliteBytesSQL)).Scan(&bytes); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.Path, err)
		}
		a.insertTx = sqlite.Table{Name: s.Table, Bytes: bytes}.Insert
		a.inserted, a.rest = named(sqliteInsertedSQL), named(sqliteLeftSQL)
		return a, nil
	}
	c, err := pgx.ParseConfig(s.URL.Reveal())
	if err != nil {
		return nil, errors.New("source.url is invalid") // without the URL, which has a password
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing, for connection poolers
	a.db = stdlib.OpenDB(*c)
	if err := a.db.QueryRowContext(ctx, named(postgresBytesSQL)).Scan(&bytes); err != nil {
		return nil, err
	}
	a.insertTx = postgres.Table{Name: s.Table, Bytes: bytes}.InsertSQL
	a.inserted, a.rest = named(postgresInsertedSQL), named(postgresLeftSQL)
	return a, nil
}

// insert commits events in one transaction and returns their ids.
func (a *application) insert(ctx context.Context, events []outbox.Event) (ids []int64, err error) {
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // no effect after the commit; before it, the error is known
	var before int64
	if err := tx.QueryRowContext(ctx, a.maxID).Scan(&before); err != nil {
		return nil, err
	}
	if err := a.insertTx(ctx, tx, events...); err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, a.inserted, before)
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
	if len(ids) != len(events) {
		return nil, fmt.Errorf("inserted %d probes, found %d ids", len(events), len(ids))
	}
	return ids, tx.Commit()
}

// left returns the events with these ids that are still in the buffer.
func (a *application) left(ctx context.Context, ids []int64) (all []leftover, err error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	rows, err := a.db.QueryContext(ctx, a.rest, string(list))
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

func (a *application) close() error { return a.db.Close() }
