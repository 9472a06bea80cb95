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

// ErrEventData is found in a Batch.ProjectErr that is some event's doing, of which the
// database did not say which: a division by zero, a text that is no number.
var ErrEventData = errors.New("the data of an event")

// ErrDatabaseUnavailable is found in a Batch.ProjectErr that is nobody's doing: the database could not
// run the projection just then.
var ErrDatabaseUnavailable = errors.New("the database could not do it")

// NotProjected is the reason with which an event is buried that the projection returns
// no row for.
const NotProjected = "not projected"
