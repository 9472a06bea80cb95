package buffertest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Harness is how the suite gets at one kind of buffer.
type Harness struct {
	// Open makes a new, migrated place (a schema, a file) with one empty buffer
	// table, and opens a buffer on it. Everything is gone when t ends.
	Open func(t testing.TB, opt Options) *Fixture
	// RowLocks: several transactions may write to the buffer at once, and a row
	// that one has changed is locked for the others. Without it one writer at a
	// time is let in, and the cases that need two of them do not exist.
	RowLocks bool
	// Claim is the mode that is tested; the cases that keep order have their own.
	Claim buffer.ClaimMode
	// Custom is set if the buffer tables are custom, with integer ids, and what is sent is
	// what [Options.Project] makes of them. They have the columns of the relay's table,
	// with nothing demanded of topic and headers, and three more, which may be NULL:
	// parent_id (an integer), seal (text, UNIQUE) and raw (bytes; Tx.Insert puts some
	// there). Beside them is a table parents (id integer primary key, name text) that
	// nothing refers to.
	Custom bool
}

// Options say what to open.
type Options struct {
	// Bytes: the payload's column takes opaque bytes, not JSON.
	Bytes bool
	// Archive: delivered events are copied to the table outbox_archive.
	Archive bool
	// Ordered: the buffers keep order by key.
	Ordered bool
	// Random: claims that choose at random do so, and not the first they could choose.
	Random bool
	// Claim is how the buffers claim; "" where they keep order.
	Claim buffer.ClaimMode
	// Project is the projection of a harness for custom tables: SQL that every database
	// understands, with {table} for the buffer's table and {group} for the parameter.
	// "": it returns the table's columns as they are.
	Project string
}

// Fixture is an open buffer and what the suite needs to see behind it. Its
// functions are called by one goroutine at a time.
type Fixture struct {
	// Buffer is the one under test.
	Buffer Buffer
	// Pipeline is its pipeline's name.
	Pipeline string
	// Table is the buffer table's name, as Exec understands it unquoted.
	Table string
	// Second opens the buffer that another process would have: same table, same
	// pipeline, another owner.
	Second func(t testing.TB) Buffer
	// Plain is Second without Options.Ordered.
	Plain func(t testing.TB) Buffer
	// Queue opens the dead-letter queue of Pipeline: the first call
	// those of Buffer, each further one those of another process.
	Queue func(t testing.TB) Queue
	// Neighbour opens another pipeline with a buffer table of its own, its
	// ledger and dead letters in the same place.
	Neighbour func(t testing.TB) *Fixture

	// Begin starts an application's transaction.
	Begin func(t TB) Tx
	// Exec runs one statement that every database understands (unqualified
	// table names, no parameters) outside the buffer's own connections.
	Exec func(t TB, statement string)
	// ExpireLease moves the batch's due_at that far into the past.
	ExpireLease func(t TB, groupID uuid.UUID, ago time.Duration)
	// Rows is what is in the buffer table, by id.
	Rows func(t TB) []Row
	// Row is all that a custom table says of one event, its group_id apart, in any
	// form that tells two rows apart.
	Row func(t TB, id int64) string
	// Ledger is what is in outbox_batches, every buffer's, by group_id.
	Ledger func(t TB) []LedgerRow
	// ListDead is what is in outbox_dead_letters, every pipeline's, by event_id and
	// died_at.
	Dead func(t TB) []DeadLetter
	// Archived is what is in outbox_archive, by id and group_id.
	Archived func(t TB) []ArchivedEvent
}

// TB is what the fixture's functions need of a test; *testing.T, *testing.B and
// *rapid.T have it.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Tx is a transaction of the application's.
type Tx interface {
	// Insert puts events into the buffer table with plain SQL and returns their
	// ids, in the events' order.
	Insert(t TB, events ...outbox.Event) []int64
	// Exec is [Fixture.Exec] inside the transaction.
	Exec(t TB, statement string)
	Commit(t TB)
	// Rollback does nothing when the transaction has ended.
	Rollback(t TB)
}

// Row is what the buffer table says of one event.
type Row struct {
	ID      int64
	GroupID uuid.UUID // uuid.Nil is NULL
}

// LedgerRow is a row of outbox_batches.
type LedgerRow struct {
	GroupID       uuid.UUID
	Buffer, Claim string
	State         string // leased, waiting, delivered
	LeaseNo       int64
	// DueIn is due_at less the database's clock.
	DueIn                               time.Duration
	Owner                               string
	UnfinishedLeases, Attempts, Outages int
	Events                              int
	FirstID, LastID                     int64
	Origins                             []uuid.UUID // nil when there are none
	Delivered                           []int64     // nil when there are none
	Address                             *string     // nil is NULL
	Error                               string
	OldestAt, ClaimedAt                 time.Time // zero is NULL
}

// DeadLetter is a row of outbox_dead_letters.
type DeadLetter struct {
	Pipeline             string
	EventID              int64
	Topic                string
	Key                  *string
	Payload, Headers     []byte // nil is NULL
	CreatedAt            time.Time
	GroupID              uuid.UUID
	Attempts             int
	Error                string
	DiedAt               time.Time
	ClosedAs             string    // "" is NULL
	NotifiedAt, ClosedAt time.Time // zero is NULL
	HookGroupID          uuid.UUID // uuid.Nil is NULL
}

// ArchivedEvent is a row of outbox_archive.
type ArchivedEvent struct {
	ID                    int64
	Topic                 string
	Key                   *string
	Payload, Headers      []byte // nil is NULL
	GroupID               uuid.UUID
	CreatedAt, ArchivedAt time.Time
}

// Insert commits events in a transaction of their own and returns their ids.
func (f *Fixture) Insert(t TB, events ...outbox.Event) []int64 {
	t.Helper()
	tx := f.Begin(t)
	ids := tx.Insert(t, events...)
	tx.Commit(t)
	return ids
}
