package buffer

import "errors"

// CustomTable describes a buffer table that the application owns. The zero value means the relay's own table.
type CustomTable struct {
	// ID is the primary key's column, an integer that grows or a uuid.
	ID string
	// Cursor is an integer column that grows, unique and not null, for a primary key that does
	// not grow; "" if the primary key grows, or no column does.
	Cursor string
	// CreatedAt is the column that ages are measured by, and the events' created_at; "" for created_at, if there is one.
	CreatedAt string
	// AvailableAt is the column that delays events: one is not delivered before that time; "" if none does. It needs an index, and the table
	// a primary key or a Cursor that is an integer.
	AvailableAt string
	// Where is a condition on the columns of a row, in SQL: a row for which it is not true is no event, or not yet. "" for all rows. It calls
	// nothing volatile.
	Where string
	// Mark are SQL expressions by column. They are set in the row of an event that is delivered or dead, in the transaction that would delete it, and must
	// make Where false. nil: the row is deleted.
	Mark map[string]string
	// Project is the SELECT that returns what to send of a batch: one row an event, with columns id (the
	// primary key) and payload, and optionally topic, key, headers and created_at. Its only parameter is the
	// batch's group_id. The default topic is the table's name.
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
