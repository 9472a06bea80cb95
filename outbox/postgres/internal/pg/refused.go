package pg

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// refusedError is what a server answers instead of a connection. pgx's own text begins with the attempt with TLS, which fails for the same reason:
// "tls error: server refused TLS connection".
type refusedError struct {
	to     *pgx.ConnConfig
	answer *pgconn.PgError
	err    error // pgx's
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("PostgreSQL at %s:%d refuses connections: %v", e.to.Host, e.to.Port, e.answer)
}

func (e *refusedError) Unwrap() error { return e.err }

// refused returns what the server answers to an attempt to connect; false if err is not about that, nothing answers, or several servers could.
func refused(to *pgx.ConnConfig, err error) (*refusedError, bool) {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); !ok || !connecting {
		return nil, false
	}
	for _, other := range to.Fallbacks {
		if other.Host != to.Host || other.Port != to.Port {
			return nil, false
		}
	}
	return &refusedError{to, answer, err}, true
}

// isDiskFull reports whether the server says that its disk is full. A session that cannot write the cache of the catalogs while it begins says so
// without a code of its own (relcache.c, "could not write init file").
func isDiskFull(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (answer.Code == CodeDiskFull || answer.File == "relcache.c" && answer.SeverityUnlocalized == "FATAL" && answer.Code == codeInternal)
}
