// Package ledger holds the life of a batch after its claim: its lease is renewed, taken over, settled,
// or recorded as delivered. Each batch is one row of outbox_batches:
//
//	claim ──▶ leased ──retry──▶ waiting ──due──▶ leased (taken over)
//	            │ └──lease over──────────────────▲
//	            └──settle failed after a send──▶ delivered ──due──▶ delivered (taken over, only deleted)
//	leased, delivered ──settle──▶ gone
//
// The fence is group_id with lease_no, which rises with every lease: an owner that lost its lease
// changes nothing. Statements about batches alone are the same for events and for dead letters,
// whose batches belong to the dead-letter hook.
package ledger

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Base is what the parts of a buffer share.
type Base struct {
	DB              *pg.DB
	Pipeline, Owner string
	// Ordered is set for `order: key`.
	Ordered bool
	// Sinks are those that the buffer's events are routed to; nil for a single one.
	Sinks []buffer.Route
	// Unmatched says what becomes of an event that none of them takes; "" is [buffer.UnmatchedError].
	Unmatched buffer.Unmatched
	// Current returns the name that a sink has now; nil: the one it is configured with.
	Current func(sink string) string
	// Ownership is who owns the buffer, as last seen.
	Ownership ownership.State
	// Ready returns the tables; it checks the database the first time.
	Ready func(context.Context) (*Tables, error)
	// Explain adds to an error what was being done, and what Check finds missing.
	Explain func(ctx context.Context, doing string, err error) error
}

// InOrder reports whether an event waits for the live batches of its key: with several sinks, each keeps an order of its own.
func (b *Base) InOrder() bool { return b.Ordered && b.Sinks == nil }

// ClaimsFor returns the sink of a batch when it is claimed.
func (b *Base) ClaimsFor() string {
	if b.Sinks != nil {
		return Unrouted
	}
	return DefaultSink
}

// Tables are the tables of a buffer, as Check found them.
type Tables struct {
	// Buffer is "schema.table", as the ledger names the buffer.
	Buffer string
	// Events is the quoted name of the buffer table, OID its oid.
	Events string
	OID    int64
	// Schema is that of the ledger.
	Schema string
	// Sequence generates the ids; a name that regclass reads, or pg.Null.
	Sequence string
	// PayloadOID and DeadPayloadOID are the types of the payload of events and of dead letters.
	PayloadOID, DeadPayloadOID uint32
	// Archive reports whether delivered events are copied to the archive.
	Archive bool
	// ArchiveMaintain is the function that makes and drops the archive's partitions; "" if it has none.
	ArchiveMaintain string
	// RangeIneligible is why range claims do not suit the table, with its fix; zero if they do.
	RangeIneligible buffer.Finding
	// LockTimeout is shorter than the server's deadlock_timeout, so that in a deadlock with the
	// application the relay is the one that gives up.
	LockTimeout time.Duration
	replaced    atomic.Bool
	// Names replaces the default names in statements.
	Names *strings.Replacer
	// Statements are those about all events of the buffer.
	Statements Statements
	// UUIDs reports whether numbers stand for events that only have a uuid, and rows of the ledger have the uuids.
	UUIDs bool
	// AvailableAt is the column that delays events; "" if a custom table has none.
	AvailableAt string
	// Conditional reports whether only some rows are events, so that a row may become one at any time after its insert.
	Conditional bool
	// Marks reports whether the rows of a custom table stay and are marked.
	Marks bool
	// NoAges reports whether nothing says when events were inserted; then oldest_at is the time of the claim.
	NoAges bool
	// Bury are the steps that bury events that no sink gets, under a group_id, for the same reason; nil for the relay's own table.
	Bury func(batch *buffer.Lease, group uuid.UUID, reason string, ids []int64) []pg.Step
}

// Statements about all events of a buffer, with the real names. See package backlog.
type Statements struct {
	Count, FullSweep, Status, Audit, AuditSinks, RemoveEmpty, CorrectCounts string
	// Adopt gives orphans a ledger row, those that a sweep looks for; AdoptAll all of them.
	Adopt, AdoptAll string
	// Due finds delayed events that are due; "" if nothing delays the table's events. See package delayed.
	Due string
	// Windows: FullSweep and Adopt take a part of the ids; otherwise they go over all events at once.
	Windows bool
}

// SQL fills the real names into a statement written with the default ones.
func (t *Tables) SQL(statement string) string { return t.Names.Replace(statement) }

// Age returns the age of the oldest of pending events from microseconds, which are NULL if nothing says it, and whether it is unknown.
func (t *Tables) Age(micros []byte, pending int64) (age time.Duration, unknown bool) {
	if t.NoAges || micros == nil {
		return 0, t.NoAges || pending > 0
	}
	return pg.ReadAge(micros), false
}

// Complete returns the lease with the events that were read.
func (b *Base) Complete(rows *pg.EventDecoder, batch buffer.Lease) *buffer.Lease {
	events := rows.Sorted()
	batch.Pipeline = b.Pipeline
	batch.PayloadIsJSON = pg.IsJSON(rows.PayloadOID)
	batch.Events = events
	if len(events) > 0 && batch.FirstID == 0 && batch.LastID == 0 {
		batch.FirstID, batch.LastID = events[0].ID, events[len(events)-1].ID
	}
	return &batch
}

// AvailableSQL reports whether an event is not delayed any more. statement_timestamp() is one time for a whole statement, and is later
// than the lock of a claim, which an earlier statement takes.
const (
	AvailableSQL = `(available_at IS NULL OR available_at <= statement_timestamp())`

	// AvailableOfSQL is AvailableSQL of the event e.
	AvailableOfSQL = `(e.available_at IS NULL OR e.available_at <= statement_timestamp())`
)

// HeldSQL are the ids that live batches hold beyond $2. Nothing is '{}' and not NULL, because NOT (id <@ NULL) is
// not true. ORDER BY makes the plan use the index on last_id even with wrong statistics.
// upto is where fresh events begin. An id that was given by hand may lie far beyond the sequence's last
// value, $3, with unclaimed events before it; a sweep finds the events between the others.
const HeldSQL = `
held AS MATERIALIZED (
  SELECT coalesce(range_agg(m), '{}') AS members,
         greatest($2::bigint, max(last_id) FILTER (WHERE last_id <= $3::bigint)) AS upto
  FROM (SELECT last_id, members FROM outbox_batches
        WHERE buffer = $1 AND last_id > $2::bigint AND members IS NOT NULL
        ORDER BY last_id) beyond, unnest(members) m
)`
