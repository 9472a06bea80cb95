package buffer

import "errors"

// CustomTable says how events are found in a buffer table that the application owns, and
// what is sent of them. The zero value means the relay's own table.
type CustomTable struct {
	// ID is the primary key's column, an integer that grows, or a uuid.
	ID string
	// Cursor is a column that grows, an integer, unique and not null, beside a primary
	// key that does not; "" where the primary key does, or nothing.
	Cursor string
	// Project is the SELECT that says what to send. It is run for each batch, with the
	// batch's group_id as its only parameter, and returns one row an event: columns id
	// (the primary key) and payload, and, where it likes, topic, key, headers and
	// created_at. Without a topic it is the table's name.
	Project string
}

// Is reports whether the table is a custom one.
func (o CustomTable) Is() bool { return o.Project != "" }

// The errors of a projection.
var (
	// ErrEventData is found in a Lease.ProjectErr that the data of some event caused: a
	// division by zero, a text that is not a number. The database did not say which event.
	ErrEventData = errors.New("projection failed on event data")
	// ErrDatabaseUnavailable is found in a Lease.ProjectErr that no event caused.
	ErrDatabaseUnavailable = errors.New("database unavailable")
	// ErrNotProjected is the error of an event for which the projection returns no row. Its
	// text is the dead letter's.
	ErrNotProjected = errors.New("not projected")
)
