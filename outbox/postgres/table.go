package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// eventTable is how the events of a buffer are claimed and settled: relayTable for the relay's own table,
// custom.Table for one that the application owns. Statements about ledger and dead letters are the same for both.
type eventTable interface {
	// Stamp claims by stamp; it is a claim.InRange.
	Stamp(ctx context.Context, t *ledger.Tables, limit int, lease time.Duration, in watermark.Range) (*buffer.Lease, *claim.Start, error)
	// TakeOver leases the batch of a kind that has been due longest.
	TakeOver(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error)
	// TakeOverUnrouted leases one that was claimed for several sinks and is not routed yet, with what its route needs.
	TakeOverUnrouted(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error)
	// TakeOverEnding leases one of a dropped sink.
	TakeOverEnding(ctx context.Context, l *ledger.Ledger, lease time.Duration, as buffer.Dropped) (*buffer.Lease, error)
	// Read reads the event of a batch that has no other.
	Read(ctx context.Context, batch *buffer.Lease) error
	// Peek returns the events that a claim would take first.
	Peek(ctx context.Context, limit int) (*buffer.Lease, error)
	// View reads up to limit events of a batch without its lease; nil if there is no such batch.
	View(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error)
	// SettleSteps are the steps for the events of a settlement.
	SettleSteps(s *ledger.Settlement, o *outcomes.Set) []pg.Step
	// Replay puts dead letters that match back into the table.
	Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)
	// EditDead changes what a replay of an event's dead letters puts back.
	EditDead(ctx context.Context, e buffer.DeadEdit) error
	// Example returns a claim in a mode with parameters, for EXPLAIN.
	Example(mode buffer.ClaimMode) (sql string, args []string)
}

// relayTable is the relay's own table.
type relayTable struct {
	*claim.Claimer
	ledger *ledger.Ledger
	dead   *deadletter.DeadLetters
	tables *ledger.Tables
}

func (r relayTable) TakeOver(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return ledger.TakeOverEvents(ctx, l, r.tables, lease, due)
}

func (r relayTable) TakeOverUnrouted(ctx context.Context, l *ledger.Ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return ledger.TakeOverUnrouted(ctx, l, r.tables, lease, due)
}

func (r relayTable) TakeOverEnding(ctx context.Context, l *ledger.Ledger, lease time.Duration, _ buffer.Dropped) (*buffer.Lease, error) {
	return ledger.TakeOverEnding(ctx, l, r.tables, lease)
}

func (r relayTable) Read(ctx context.Context, batch *buffer.Lease) error {
	return ledger.ReadEvents(ctx, r.ledger, r.tables, batch)
}

func (r relayTable) Peek(ctx context.Context, limit int) (*buffer.Lease, error) {
	return r.Claimer.Peek(ctx, r.tables, limit)
}

func (r relayTable) View(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error) {
	return ledger.ViewEvents(ctx, r.ledger, r.tables, groupID, limit)
}

func (r relayTable) SettleSteps(s *ledger.Settlement, o *outcomes.Set) []pg.Step {
	return s.EventSteps(o)
}

func (r relayTable) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	return r.dead.Replay(ctx, f, limit)
}

func (r relayTable) EditDead(ctx context.Context, e buffer.DeadEdit) error {
	return r.dead.EditDead(ctx, e)
}

func (r relayTable) Example(mode buffer.ClaimMode) (sql string, args []string) {
	return claim.Example(r.tables, mode)
}
