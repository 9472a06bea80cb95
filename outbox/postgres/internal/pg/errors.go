package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Codes of https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	CodeReadOnly           = "25006"
	CodeDiskFull           = "53100"
	CodeNoConnection       = "53300" // of the server, the role or the database
	CodeNoStatement        = "26000"
	CodeDuplicateStatement = "42P05"
	CodeResultChanged      = "0A000" // and RETURNING, where a rule replaces the statement; a subquery in the condition of an index
	CodeInvalidObject      = "42P17" // a function in the condition of an index that is not immutable
	CodeNotNull            = "23502"
	CodeCancelled          = "57014"
	CodeLockTimeout        = "55P03"
	CodeDeadlock           = "40P01"
	CodeSerialization      = "40001"
	CodeNoPrivilege        = "42501"
	CodeNoTable            = "42P01"
	CodeNoColumn           = "42703"
	CodeNoSchema           = "3F000"
	CodeNoObject           = "42704"
	CodeNoDatabase         = "3D000"
	CodeBadAuth            = "28P01"
	CodeBadAuthMethod      = "28000"
	codeInternal           = "XX000"
)

// Code is the server's code of an error, "" if the error is not the server's.
func Code(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// Message is the server's primary message of an error, "" if the error is not the server's. The detail of a constraint's is left out: it quotes the row.
func Message(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Message
	}
	return ""
}

// IsStatementError reports whether the server objects to the statement itself. Other errors
// are about the connection, a lock, or a server that stops or is full.
func IsStatementError(err error) bool {
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		return false
	}
	c := Code(err)
	for _, class := range []string{"08", "25P", "40", "53", CodeLockTimeout, "57P", "58", "XX"} {
		if strings.HasPrefix(c, class) {
			return false
		}
	}
	return c != ""
}

// IsRefused reports whether the server refuses what a statement does to a row, and would again: a constraint, a privilege, a
// trigger, which may raise any code.
func IsRefused(err error) bool {
	switch Code(err) {
	case CodeReadOnly, CodeNoStatement, CodeDuplicateStatement, CodeResultChanged, CodeCancelled:
		return false
	}
	return IsStatementError(err)
}

// IsDataError reports whether the server cannot compute or send a value.
func IsDataError(err error) bool {
	c := Code(err)
	return strings.HasPrefix(c, "22") || strings.HasPrefix(c, "54")
}

// ConnectError adds to an error of this database how to fix it.
func (db *DB) ConnectError(err error) error { return ConnectError(db.pool.Config().ConnConfig, err) }

// ConnectError adds how to fix a connection that cannot be made. pgx keeps the password
// out of its errors, and the server's name out of a deadline's.
func ConnectError(to *pgx.ConnConfig, err error) error {
	if errors.Is(err, buffer.ErrNoWrites) {
		return err
	}
	full := isDiskFull(err)
	answer, isRefused := refused(to, err)
	switch {
	case full && isRefused:
		return fmt.Errorf("%w: its disk is full: %w", buffer.ErrNoWrites, answer)
	case full:
		return fmt.Errorf("%w: its disk is full: %w", buffer.ErrNoWrites, err)
	}
	shown := err
	if isRefused {
		shown = answer
	}
	switch Code(err) {
	case CodeBadAuth, CodeBadAuthMethod:
		return fmt.Errorf("%w: the database rejects the role; check user and password in source.url, and pg_hba.conf: %w", buffer.ErrNotReady, shown)
	case CodeReadOnly:
		return fmt.Errorf("%w: %w", buffer.ErrNoWrites, err)
	case CodeNoDatabase:
		return fmt.Errorf("%w: the database does not exist; check source.url, or run createdb: %w", buffer.ErrNotReady, shown)
	}
	connectErr, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case connecting && Code(err) == CodeNoObject: // a parameter that the server does not have
		return fmt.Errorf("%w: PostgreSQL does not know a parameter of source.url, which is perhaps one of the application's driver, such as pool or schema; remove it: %w", buffer.ErrNotReady, shown)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("PostgreSQL at %s:%d did not answer in time: %w", to.Host, to.Port, err)
	case isRefused:
		return answer
	case connecting && connectErr.Config != nil:
		return fmt.Errorf("cannot reach PostgreSQL at %s:%d: %w", connectErr.Config.Host, connectErr.Config.Port, err)
	}
	return err
}
