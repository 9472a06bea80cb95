package sqlite

import (
	"errors"
	"fmt"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Whose doing it is that a batch cannot be projected.

func projectionErr(err error) error { return fmt.Errorf("the projection does not run: %w", err) }

// valueErr is what a projection met while it ran.
type valueErr struct{ error }

func (e valueErr) Unwrap() error { return e.error }

// runErr is what goes wrong with a projection that was prepared just before, in the same
// snapshot. SQLite has one code for what is wrong with a statement and with a value that it
// meets, and of these only values are left: JSON that is malformed, an integer that
// overflows, a text that is too long.
func runErr(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH:
		return valueErr{projectionErr(err)}
	}
	return projectionErr(err)
}

// blamed is err as a batch's ProjectErr says it, in one line.
func blamed(err error) error {
	line := oneLine(err)
	if _, is := errors.AsType[valueErr](err); is {
		return fmt.Errorf("%w: %w", buffer.ErrEventData, line)
	}
	switch code(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
		sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w", buffer.ErrDatabaseUnavailable, line)
	}
	return line
}

// oneLine is err in one line; a database says things in several.
func oneLine(err error) error {
	if text := err.Error(); strings.ContainsAny(text, "\r\n") {
		return errors.New(strings.Join(strings.Fields(text), " "))
	}
	return err
}
