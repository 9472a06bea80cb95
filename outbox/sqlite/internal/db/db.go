// Package db opens SQLite files and reads their answers. It knows no table of the relay's.
package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	sqlite "modernc.org/sqlite"
)

// BusyTimeout is how long a connection waits for another process's lock.
const BusyTimeout = 5 * time.Second

// File returns the path in a URL of the form sqlite:///absolute/path.db.
func File(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "sqlite" || u.Host != "" || u.Opaque != "" || !path.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("source.url is %q; expected sqlite:///absolute/path.db", rawURL)
	}
	return u.Path, nil
}

// Open opens the file in mode rw, rwc (create it) or ro, with one connection: all that a file with
// one writer needs. In this process callers queue for it in order; against other processes
// it waits for the lock for BusyTimeout.
func Open(file, mode string, pragmas ...string) (*sql.DB, error) {
	db := sql.OpenDB(fixed(dataSource(file, mode, pragmas...)))
	db.SetMaxOpenConns(1)
	return db, nil
}

// fixed is the connector for a data source.
type fixed string

func (f fixed) Connect(context.Context) (driver.Conn, error) { return relayDriver.Open(string(f)) }

func (f fixed) Driver() driver.Driver { return relayDriver }

func dataSource(file, mode string, pragmas ...string) string {
	name := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"mode":      {mode},
		"_txlock":   {"immediate"},
		"_dqs":      {"false"},
		"_error_rc": {"true"},
		// FULL: a claim that a power cut undoes would come back under another group_id
		// after it was sent.
		"_pragma": append([]string{fmt.Sprintf("busy_timeout(%d)", BusyTimeout.Milliseconds()), "synchronous(FULL)"}, pragmas...),
	}.Encode()}
	return name.String()
}

// Code returns the primary result code of an error of SQLite's; otherwise 0.
func Code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// Message returns what SQLite says of an error, without the name and the number of its code.
func Message(err error) string {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return ""
	}
	text := strings.TrimSuffix(e.Error(), fmt.Sprintf(" (%d)", e.Code()))
	if _, said, ok := strings.Cut(text, ": "); ok {
		return said
	}
	return text
}

// Quote returns a name as an SQL identifier.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// Text returns a string as an SQL literal.
func Text(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Column reads and closes rows of one column.
func Column[T any](rows *sql.Rows, err error) (all []T, _ error) {
	return All(rows, err, func(rows *sql.Rows, one *T) error { return rows.Scan(one) })
}

// All reads and closes rows.
func All[T any](rows *sql.Rows, err error, scan func(rows *sql.Rows, one *T) error) (all []T, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one T
		if err := scan(rows, &one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
