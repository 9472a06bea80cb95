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

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// application is a client of the database as applications are: it inserts events, and
// looks what is still there of them.
type application interface {
	// insert commits the events in one transaction and returns their ids, in order.
	insert(ctx context.Context, events []outbox.Event) ([]int64, error)
	// left returns what the buffer still has of these ids.
	left(ctx context.Context, ids []int64) ([]leftover, error)
	close(ctx context.Context) error
}

// leftover is an event in the buffer. state is its batch's: "" for none, "lost" where
// the ledger has no row; why is what it waits for.
type leftover struct {
	id         int64
	state, why string
}

func newApplication(ctx context.Context, s *config.Source) (application, error) {
	if s.Driver == "sqlite" {
		return openSQLite(ctx, s)
	}
	return openPostgres(ctx, s)
}

type postgresApplication struct {
	conn           *pgx.Conn
	table          postgres.Table
	events, ledger string
	last           int64 // no id of ours is at or below it
}

const postgresLastSQL = `
SELECT coalesce((SELECT max(id) FROM outbox_events), 0),
       (SELECT atttypid = 'bytea'::regtype FROM pg_attribute WHERE attrelid = 'outbox_events'::regclass AND attname = 'payload')`

func openPostgres(ctx context.Context, s *config.Source) (*postgresApplication, error) {
	c, err := pgx.ParseConfig(s.URL.Reveal())
	if err != nil {
		return nil, errors.New("source.url cannot be understood") // it was, by the buffer
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing prepared: a pooler may stand in between
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &postgresApplication{conn: conn, table: postgres.Table{Name: s.Table}}
	table := strings.Split(s.Table, ".")
	p.events = pgx.Identifier(table).Sanitize()
	ledger := append(table[:len(table)-1:len(table)-1], "outbox_batches")
	if s.Schema != "" {
		ledger = []string{s.Schema, "outbox_batches"}
	}
	p.ledger = pgx.Identifier(ledger).Sanitize()
	quoted := strings.ReplaceAll(p.events, "'", "''")
	statement := strings.NewReplacer("'outbox_events'", "'"+quoted+"'", "outbox_events", p.events).Replace(postgresLastSQL)
	if err := conn.QueryRow(ctx, statement).Scan(&p.last, &p.table.Bytes); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return p, nil
}

// Those of this transaction, found before anybody else sees them.
const postgresOwnSQL = `
SELECT id FROM outbox_events
WHERE id > $1 AND xmin::text = (txid_current() % 4294967296)::text
ORDER BY id`

func (p *postgresApplication) insert(ctx context.Context, events []outbox.Event) (ids []int64, err error) {
	err = pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error {
		if err := p.table.Insert(ctx, tx, events...); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, strings.ReplaceAll(postgresOwnSQL, "outbox_events", p.events), p.last)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		if err == nil && len(ids) != len(events) {
			err = fmt.Errorf("%d probes have the ids %v", len(events), ids)
		}
		return err
	})
	if err == nil {
		p.last = ids[len(ids)-1]
	}
	return ids, err
}

const postgresLeftSQL = `
SELECT e.id, CASE WHEN e.group_id IS NULL THEN '' ELSE coalesce(l.state, 'lost') END, coalesce(l.error, '')
FROM outbox_events e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
WHERE e.id = ANY ($1::bigint[]) ORDER BY e.id`

func (p *postgresApplication) left(ctx context.Context, ids []int64) ([]leftover, error) {
	statement := strings.NewReplacer("outbox_events", p.events, "outbox_batches", p.ledger).Replace(postgresLeftSQL)
	rows, err := p.conn.Query(ctx, statement, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l leftover, err error) {
		return l, row.Scan(&l.id, &l.state, &l.why)
	})
}

func (p *postgresApplication) close(ctx context.Context) error { return p.conn.Close(ctx) }

type sqliteApplication struct {
	db    *sql.DB
	table sqlite.Table
	name  string
}

const sqliteBytesSQL = `
SELECT upper(type) = 'BLOB' FROM pragma_table_info(?1) WHERE name = 'payload'`

func openSQLite(ctx context.Context, s *config.Source) (*sqliteApplication, error) {
	dsn := url.URL{Scheme: "file", Path: s.Path, RawQuery: "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)"}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	a := &sqliteApplication{db: db, table: sqlite.Table{Name: s.Table}, name: `"` + strings.ReplaceAll(s.Table, `"`, `""`) + `"`}
	if err := db.QueryRowContext(ctx, sqliteBytesSQL, s.Table).Scan(&a.table.Bytes); err != nil {
		return nil, errors.Join(fmt.Errorf("looking at %s: %w", s.Path, err), db.Close())
	}
	return a, nil
}

// insert knows the ids: there is one writer at a time, so they follow each other.
func (a *sqliteApplication) insert(ctx context.Context, events []outbox.Event) ([]int64, error) {
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing, before it the error is known
	if err := a.table.Insert(ctx, tx, events...); err != nil {
		return nil, err
	}
	var last int64
	if err := tx.QueryRowContext(ctx, "SELECT last_insert_rowid()").Scan(&last); err != nil {
		return nil, err
	}
	ids := make([]int64, len(events))
	for i := range ids {
		ids[i] = last - int64(len(ids)-1-i)
	}
	return ids, tx.Commit()
}

const sqliteLeftSQL = `
SELECT e.id, CASE WHEN e.group_id IS NULL THEN '' ELSE coalesce(l.state, 'lost') END, coalesce(l.error, '')
FROM outbox_events e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
WHERE e.id IN (SELECT value FROM json_each(?1)) ORDER BY e.id`

func (a *sqliteApplication) left(ctx context.Context, ids []int64) ([]leftover, error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	rows, err := a.db.QueryContext(ctx, strings.ReplaceAll(sqliteLeftSQL, "outbox_events", a.name), string(list))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []leftover
	for rows.Next() {
		var l leftover
		if err := rows.Scan(&l.id, &l.state, &l.why); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, rows.Err()
}

func (a *sqliteApplication) close(context.Context) error { return a.db.Close() }
