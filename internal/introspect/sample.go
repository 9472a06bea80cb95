package introspect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sample is a question about the values in the newest rows of a table. All of it is SQL.
type Sample struct {
	// Table is the table, Key the column that it is read by, Where the condition that a row must meet; "" for none.
	Table, Key, Where string
	// Conditions are those that are counted.
	Conditions []string
}

// Counts is how many of some rows meet each condition.
type Counts struct {
	Rows int
	Of   []int
}

// sampled is how many rows are read.
const sampled = 1000

// Count reads the newest rows, at most 1000.
func Count(ctx context.Context, driver, source string, s Sample) (c Counts, err error) {
	query := "SELECT count(*)"
	for _, condition := range s.Conditions {
		query += ", count(CASE WHEN " + condition + " THEN 1 END)"
	}
	query += " FROM (SELECT * FROM " + s.Table
	if s.Where != "" {
		query += " WHERE " + s.Where
	}
	query += fmt.Sprintf(" ORDER BY %s DESC LIMIT %d) AS e", s.Key, sampled)
	c.Of = make([]int, len(s.Conditions))
	into := []any{&c.Rows}
	for i := range c.Of {
		into = append(into, &c.Of[i])
	}
	if driver == "sqlite" {
		err = readSQLite(ctx, source, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, query).Scan(into...) })
	} else {
		err = readPostgres(ctx, source, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '5s'"); err != nil {
				return err
			}
			return tx.QueryRow(ctx, query).Scan(into...)
		})
	}
	return c, err
}

// readPostgres calls read in a transaction that changes nothing, with one snapshot.
func readPostgres(ctx context.Context, source string, read func(pgx.Tx) error) (err error) {
	c, err := pgx.ParseConfig(source)
	if err != nil {
		return err
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // works through a pooler
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return connectError(c, err)
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, conn.Close(late))
	}()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it is read-only
	// Nothing that others made along the search path is called.
	if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err != nil {
		return err
	}
	return read(tx)
}

// readSQLite calls read in a transaction that changes nothing.
func readSQLite(ctx context.Context, source string, read func(*sql.Tx) error) (err error) {
	path := strings.TrimPrefix(source, "sqlite://")
	if decoded, err := url.PathUnescape(path); err == nil {
		path = decoded
	}
	name := &url.URL{Scheme: "file", Path: path, RawQuery: "mode=ro&_pragma=busy_timeout(5000)"}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = tx.Rollback() }() // it is read-only
	if err := read(tx); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
