package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// explain says what was being done. When the database answers that something is
// missing, Check says what, and with which command it comes.
func (b *Buffer) explain(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	switch code(err) {
	case codeNoTable, codeNoColumn, codeNoPrivilege, codeNoSchema:
		if checkErr := b.Check(ctx); errors.Is(checkErr, outbox.ErrNotReady) {
			err = checkErr
		}
	}
	return fmt.Errorf("%s: %w", doing, b.connectError(err))
}

func (b *Buffer) connectError(err error) error { return connectError(b.pool.Config().ConnConfig, err) }

// connectError adds what mends a connection that cannot be made. pgx keeps the
// password out of its errors, and the server's name out of a deadline's.
func connectError(to *pgx.ConnConfig, err error) error {
	switch code(err) {
	case codeBadAuth, codeBadAuthMethod:
		return fmt.Errorf("%w: the database refuses the role: look at user and password in source.url, and at pg_hba.conf: %w", outbox.ErrNotReady, err)
	case codeNoDatabase:
		return fmt.Errorf("%w: there is no such database: look at source.url, or createdb: %w", outbox.ErrNotReady, err)
	}
	connectErr, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("PostgreSQL at %s:%d did not answer in time: %w", to.Host, to.Port, err)
	case connecting && connectErr.Config != nil:
		return fmt.Errorf("cannot reach PostgreSQL at %s:%d: %w", connectErr.Config.Host, connectErr.Config.Port, err)
	}
	return err
}
