package pgsink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/sink"
)

// classify says what an error means for the events. The statement is all or nothing, so a rejection is that of the whole batch, which
// the relay halves to find the event. Its text has the message and the constraint, and not the detail, which quotes the row.
func classify(err error) error {
	var (
		server  *pgconn.PgError
		table   *tableError
		standby *readOnlyError
	)
	switch {
	case errors.As(err, &server):
		return classifyState(server)
	case errors.As(err, &table), errors.As(err, &standby):
		return sink.Unavailable(err)
	case errors.Is(err, sink.ErrPermanent):
		return err
	case pgconn.SafeToRetry(err):
		return sink.Unavailable(sink.ExplainTLS(withoutURL(err)))
	}
	// The statement may have been committed. Sent again, it adds nothing.
	return sink.MaybePoison(sink.MaybeAccepted(sink.ExplainTLS(withoutURL(err))))
}

func classifyState(server *pgconn.PgError) error {
	err := errors.New(describe(server))
	switch class := server.Code[:min(2, len(server.Code))]; {
	case server.Code == "23503", class == "P0":
		return err // a parent that is not there yet, or a trigger that says no: it may succeed later
	case class == "22", class == "23", class == "54", class == "44":
		return sink.Permanent(err) // data, a constraint, a limit such as that of an index entry, a view's check option
	case server.Code == "57014":
		return sink.MaybePoison(err) // statement_timeout, or a cancel
	case class == "42", class == "0A":
		return sink.NotAccepted(withCause(err, server.Code)) // the table was changed, a privilege is missing, or a trigger is wrong
	}
	return sink.Unavailable(withCause(err, server.Code))
}

// withCause has errors.Is find what somebody must correct before the outage ends, if the server says it.
func withCause(err error, code string) error {
	switch {
	case strings.HasPrefix(code, "28"), code == "42501": // authentication, a missing privilege
		return sink.Access(err)
	case code == "53100": // its disk
		return sink.Full(err)
	}
	return err
}

func describe(e *pgconn.PgError) string {
	text := fmt.Sprintf("%s (SQLSTATE %s)", e.Message, e.Code)
	if e.ConstraintName != "" && !strings.Contains(e.Message, e.ConstraintName) {
		text += ", constraint " + e.ConstraintName
	}
	return text
}

// leaves reports whether a new connection may reach another server, or the same one after it has become a primary again.
func leaves(err error) bool {
	var (
		server  *pgconn.PgError
		standby *readOnlyError
	)
	if errors.As(err, &server) {
		return server.Code == "25006" || strings.HasPrefix(server.Code, "57P")
	}
	return errors.As(err, &standby)
}

// withoutURL drops what pgx says of the URL, which holds the password in some forms.
func withoutURL(err error) error {
	var wrong *pgconn.ParseConfigError
	if errors.As(err, &wrong) {
		return errURL
	}
	return err
}
