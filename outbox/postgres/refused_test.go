package postgres_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// refusing is a server that answers each attempt to connect with an error, the one with TLS too, as PostgreSQL does when a session cannot begin.
func refusing(t *testing.T, answer *pgproto3.ErrorResponse) (url string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			server := pgproto3.NewBackend(conn, conn)
			if _, err := server.ReceiveStartupMessage(); err == nil { // with TLS or without
				server.Send(answer)
				_ = server.Flush()
			}
			_ = conn.Close()
		}
	}()
	return "postgres://app@" + l.Addr().String() + "/app"
}

// A server that cannot begin a session says why, and what pgx says of TLS is not it.
func TestCheck_ConnectionsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer   pgproto3.ErrorResponse
		says     []string
		noWrites bool
	}{
		"Full":     {pgproto3.ErrorResponse{Code: "53100", Message: "could not write: No space left on device"}, []string{"its disk is full: PostgreSQL at 127.0.0.1:", "No space left on device (SQLSTATE 53100)"}, true},
		"Cache":    {pgproto3.ErrorResponse{Code: "XX000", Message: "could not write init file", File: "relcache.c"}, []string{"its disk is full: PostgreSQL at 127.0.0.1:", "FATAL: could not write init file (SQLSTATE XX000)"}, true},
		"Internal": {pgproto3.ErrorResponse{Code: "XX000", Message: "something", File: "other.c"}, []string{" refuses connections: FATAL: something (SQLSTATE XX000)"}, false},
		"Password": {pgproto3.ErrorResponse{Code: "28P01", Message: "password authentication failed for user"}, []string{"the database rejects the role; check user and password in source.url, and pg_hba.conf: PostgreSQL at 127.0.0.1:", " refuses connections: FATAL: password authentication failed for user (SQLSTATE 28P01)"}, false},
		"Database": {pgproto3.ErrorResponse{Code: "3D000", Message: "database does not exist"}, []string{"the database does not exist; check source.url, or run createdb: PostgreSQL at 127.0.0.1:"}, false},
		"Recovery": {pgproto3.ErrorResponse{Code: "57P03", Message: "the database system is in recovery mode"}, []string{" refuses connections: FATAL: the database system is in recovery mode (SQLSTATE 57P03)"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.answer.Severity, c.answer.SeverityUnlocalized = "FATAL", "FATAL"
			at := refusing(t, &c.answer)
			err := opened(t, at, buffer.SupervisorPolicy{}).Check(t.Context())
			if err == nil || errors.Is(err, buffer.ErrNoWrites) != c.noWrites || strings.Contains(err.Error(), "tls error") {
				t.Fatalf("the error is %v", err)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the error is %q, without %q", err, says)
				}
			}
			f := find(diagnose(t, at, time.Hour), buffer.LevelError, "server", c.says[0])
			if f == nil || (f.Fix == "free space on the disk of the database") != c.noWrites {
				t.Errorf("the finding is %+v", f)
			}
		})
	}
}
