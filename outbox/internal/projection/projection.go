// Package projection holds the rules of `source.project` that do not depend on the database: the
// placeholder {events}, the columns that a projection returns, what one row of it may hold, and
// the messages for what is wrong. Mistakes in the columns concern the whole batch; mistakes in a row
// that names an event concern that event alone, so that the others need not wait for it.
package projection

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Events is the placeholder for the rows of the batch. It is replaced wherever it stands in the
// text of the projection, in string literals and comments too.
const Events = "{events}"

// Expand replaces the placeholder by a SELECT of the batch's rows, in parentheses. uses reports whether the
// projection has the placeholder.
func Expand(project, rows string) (sql string, uses bool) {
	return strings.ReplaceAll(project, Events, "("+rows+")"), strings.Contains(project, Events)
}

// Trim removes the semicolons, blanks and comments at the end of the projection, so that it can stand in
// parentheses. Quotes and comments may be left open.
func Trim(project string) string { return untilEnding.FindStringSubmatch(project)[1] }

const comment = `--[^\n]*(?:\n|$)|/\*(?:[^*]|\*+[^*/])*(?:\*+/|\**$)`

var untilEnding = regexp.MustCompile(`^((?:` + comment + `|'[^']*(?:'|$)|"[^"]*(?:"|$)|\x60[^\x60]*(?:\x60|$)|\[[^\]]*(?:\]|$)|[^'"\x60\[])*?)` +
	`(?:[; \t\r\n\f]|` + comment + `)*$`)

// The columns that a projection may return, as indexes of [Columns] and [Names].
const (
	ID = iota
	Payload
	Topic
	Key
	Headers
	CreatedAt
	columns
)

// Names are the names of the columns. Other columns are not sent; see [Ignored].
var Names = [columns]string{"id", "payload", "topic", "key", "headers", "created_at"}

// Columns is the position of each column among those that the projection returns; -1: it does not
// return it.
type Columns [columns]int

// SameName reports whether two names are equal, upper and lower case too. SQLite compares with [strings.EqualFold].
func SameName(a, b string) bool { return a == b }

// Find finds the columns by their names, which same compares.
func Find(names []string, same func(a, b string) bool) (Columns, error) {
	var c Columns
	for i := range c {
		c[i] = -1
	}
	for i, name := range names {
		for at, known := range Names {
			switch {
			case !same(name, known):
			case c[at] >= 0:
				return c, fmt.Errorf("source.project returns column %s twice; expected it once (list the columns one by one)", known)
			default:
				c[at] = i
			}
		}
	}
	for _, required := range []int{ID, Payload} {
		if c[required] < 0 {
			return c, fmt.Errorf("source.project returns %s; expected a column %s (write ... AS %s)",
				strings.Join(names, ", "), Names[required], Names[required])
		}
	}
	return c, nil
}

// ErrNullID is a row without an id. The projection fails as a whole.
var ErrNullID = errors.New("source.project returns a row whose id is NULL; expected the event's primary key (check the joins)")

// ForeignID is the error of a row that is not of the batch. parameter is how the database writes
// the group_id.
func ForeignID(id, parameter string) error {
	return fmt.Errorf("source.project returns id %s, which is not in the batch; expected the primary key of an event of the batch (write FROM %s e, or WHERE e.group_id = %s)",
		id, Events, parameter)
}

// Failed is the error of a projection that the database cannot run.
func Failed(err error) error { return fmt.Errorf("source.project failed: %w", err) }

// TookTooLong is the error of a projection that did not end within half of the lease.
func TookTooLong(limit time.Duration) error {
	return fmt.Errorf("source.project did not end within %v, half of the lease; add an index for what it looks up, or use a smaller batch_size or a longer lease", limit)
}

// OneLine returns err as an error whose text is one line; databases use several.
func OneLine(err error) error {
	if err == nil || !strings.ContainsAny(err.Error(), "\r\n") {
		return err
	}
	return lineError{err}
}

type lineError struct{ error }

func (e lineError) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e lineError) Unwrap() error { return e.error }

// EventData marks err as caused by the data of an event that the database did not name.
func EventData(err error) error { return fmt.Errorf("%w: %w", buffer.ErrEventData, OneLine(err)) }

// Unavailable marks err as caused by the database, and by no event.
func Unavailable(err error) error {
	return fmt.Errorf("%w: %w", buffer.ErrDatabaseUnavailable, OneLine(err))
}
