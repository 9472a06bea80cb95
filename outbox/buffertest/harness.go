package buffertest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Harness describes one kind of buffer to the suite.
type Harness struct {
	// Open makes a migrated database or file with one empty buffer table, and opens a
	// buffer on it. It removes everything when t ends.
	Open func(t testing.TB, opt Options) *Fixture
	// RowLocks reports whether several transactions may write to the buffer at once, and
	// lock the rows that they change. Otherwise the cases that need two writers are skipped.
	RowLocks bool
	// Claim is the mode under test. The cases of order choose their own.
	Claim buffer.ClaimMode
	// Custom reports whether the buffer tables are custom ones, with integer ids, and events
	// come from [Options.Project]. They have the columns of the relay's table, all of which
	// but id and payload may be NULL, and three more, which may be NULL too: parent_id (an
	// integer), seal (text, UNIQUE) and raw (bytes; Tx.Insert fills it). The database also
	// has a table parents (id integer primary key, name text), without foreign keys.
	Custom bool
	// Delays reports whether the buffer has delayed events.
	Delays bool
	// Marked reports whether the rows of the custom tables stay and are marked: they have a column processed_at, the fixture shows
	// only rows in which it is NULL, and those are events.
	Marked bool
	// UUIDKeys reports whether the key of the custom tables is a uuid without a cursor. The
	// column id is an integer nevertheless, so that the cases can name rows by it, and the
	// fixture converts between that id and the numbers that the relay gives to events.
	UUIDKeys bool
}

// Options of one database.
type Options struct {
	// Bytes: the payload's column takes opaque bytes, not JSON.
	Bytes bool
	// Archive: delivered events are copied to the table outbox_archive.
	Archive bool
	// Ordered: the buffers keep order by key.
	Ordered bool
	// Delays: column available_at of a custom table delays events.
	Delays bool
	// Claim is how the buffers claim; "" where they keep order.
	Claim buffer.ClaimMode
	// Project is the projection of a custom table, in SQL that every database understands.
	// {table} stands for the buffer's table, {group} for the parameter, {id} for the
	// key's column, and {other} for a key that no event has; {events} is the relay's own. "": it returns
	// the table's columns unchanged.
	Project string
	// Where is the condition for an event of a custom table; "": every row is one.
	Where string
	// Marked: see [Harness.Marked].
	Marked bool
}

// Marking returns the condition and the mark of a custom table; now is how SQL says it.
func (o Options) Marking(now string) (where string, mark map[string]string) {
	switch {
	case !o.Marked:
		return o.Where, nil
	case o.Where == "":
		return "processed_at IS NULL", map[string]string{"processed_at": now}
	}
	return "(" + o.Where + "\n) AND processed_at IS NULL", map[string]string{"processed_at": now}
}

// Fixture is an open buffer with access to its tables. One goroutine at a time calls its
// functions.
type Fixture struct {
	// Buffer is the buffer under test.
	Buffer buffer.Buffer
	// Pipeline is its pipeline's name.
	Pipeline string
	// Table is the buffer table's name as Exec needs it, quoted if necessary.
	Table string
	// Second opens the buffer of another process: same table, same pipeline, another
	// owner.
	Second func(t testing.TB) buffer.Buffer
	// Plain is Second without Options.Ordered.
	Plain func(t testing.TB) buffer.Buffer
	// Queue opens the dead-letter queue of Pipeline: the first call returns that of Buffer,
	// each further one belongs to another process.
	Queue func(t testing.TB) buffer.Queue
	// Neighbour opens another pipeline on another buffer table, with the same ledger and
	// dead letters.
	Neighbour func(t testing.TB) *Fixture

	// Begin starts an application's transaction.
	Begin func(t TB) Tx
	// Exec runs one statement that every database understands (unqualified
	// table names, no parameters) outside the buffer's own connections.
	Exec func(t TB, statement string)
	// ExpireLease moves the batch's due_at that far into the past.
	ExpireLease func(t TB, groupID uuid.UUID, ago time.Duration)
	// Rows returns the buffer table's rows by id.
	Rows func(t TB) []Row
	// Row returns a text of all columns of a custom table's row but group_id; different rows
	// have different texts.
	Row func(t TB, id int64) string
	// Ledger returns outbox_batches, of every buffer, by group_id.
	Ledger func(t TB) []LedgerRow
	// Dead returns outbox_dead_letters, of every pipeline, by event_id and died_at.
	Dead func(t TB) []DeadLetter
	// Archived returns outbox_archive by id and group_id.
	Archived func(t TB) []ArchivedEvent
}

// TB is the part of *testing.T, *testing.B and *rapid.T that the fixture uses.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Tx is a transaction of the application.
type Tx interface {
	// Insert puts events into the buffer table with plain SQL and returns their
	// ids, in the events' order. Only events with an AvailableAt name that column.
	Insert(t TB, events ...outbox.Event) []int64
	// Exec is [Fixture.Exec] inside the transaction.
	Exec(t TB, statement string)
	Commit(t TB)
	// Rollback does nothing when the transaction has ended.
	Rollback(t TB)
}

// Row is a row of the buffer table.
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
	// DueIn is due_at minus the database's clock.
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
	ClosedAs, ClosedBy   string // "" is NULL
	ClosedReason         string
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
