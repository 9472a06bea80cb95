// Package buffertest is the one suite every buffer passes, with its benchmarks.
package buffertest

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Buffer is all that a buffer owes. Nobody but the suite and the pipeline's
// wiring asks for the whole of it: distributor, claimer and sink.Worker each
// declare the few methods they need.
//
// Every method is safe for concurrent use, by several processes too, honours
// its context, and is one round trip where the database allows it. An error
// that is none of outbox's is the database's (connection, lock, full disk): the
// caller tries again. No error carries a password.
type Buffer interface {
	// Check looks whether the tables, columns and privileges the relay needs
	// are there: nil, an error wrapping buffer.ErrNotReady that lists all that
	// is missing and the command that mends each, or the connection's error.
	Check(ctx context.Context) error

	// CountBacklog counts, unclaimed events no further than limit (0: it does not look
	// at the events at all).
	CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error)

	// Claim makes up to limit unclaimed events a batch with a new group_id: it
	// writes the ledger row (leased, lease_no 1, starts 1) and returns the batch
	// with its events in id order. Which events, and how the ledger knows them, is
	// the mode's (buffer.ClaimMode):
	//   stamp: the first in id order that no other transaction has locked get the
	//     group_id.
	//   optimistic: some from a window of the first ones do; one that is locked
	//     holds up no others.
	//   range: the first in id order, locked or not; the ledger row names their
	//     ids, and the events are left as they are.
	// nil, nil: there was nothing to claim, and nothing was written.
	Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error)

	// TakeOver leases the batch that has been due longest and is not locked:
	// waiting and its time has come; leased and its lease is over; marked
	// delivered and its time has come. lease_no rises by one; starts is one
	// more than before (a retry was settled with starts 0). A marked batch
	// stays marked and comes with DeliveredEvents filled. nil, nil: nothing is due.
	// A batch whose event rows are all gone comes with no Events.
	TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error)

	// Renew makes the lease end lease from now and sets b.Ends.
	// ErrLeaseLost if b is not its owner's any more.
	Renew(ctx context.Context, b *buffer.Lease, lease time.Duration) error

	// Settle writes the outcomes down in one transaction, fenced by b's
	// group_id and lease_no (ErrLeaseLost: nothing was changed):
	//   DeliveredEvents: exactly those events are deleted.
	//   ListDead: they move to outbox_dead_letters, one row each.
	//   Retry of all (IDs nil): the ledger row waits, starts 0, due After.
	//   Retry of a part: the events get Outcome.GroupID, with a ledger row of
	//     its own: waiting, lease_no 0, starts 0, due After, origins = b's
	//     origins and then b's group_id.
	//   With an archive table, what is deleted as delivered is copied there in the
	//   same transaction, once for each id and group_id.
	// The old ledger row goes away unless all of the batch is retried.
	// For a marked batch the delete skips rows that others have locked; while
	// some are left the batch stays marked, due again soon, and Settle returns
	// ErrLocked. What is retried goes on under its new group_id all the same.
	Settle(ctx context.Context, b *buffer.Lease, outcomes []buffer.Outcome) error

	// MarkDelivered notes, on the batch's ledger row alone, that these ids reached the
	// sink (state delivered, due again soon). Fenced like Settle.
	MarkDelivered(ctx context.Context, b *buffer.Lease, delivered []int64) error

	// DeferredAddresses lists the addresses that batches of this buffer wait for because of an
	// outage (Outcome.Address), each once, "" for the sink as a whole.
	DeferredAddresses(ctx context.Context) ([]string, error)

	// RetryNow looks at the batches that wait for the address because of an outage
	// (Outcome.Address is set and Outages is not 0): at up to limit of them, or all
	// when it is 0, those first that are due first. It makes them due now and
	// returns how many were not due before. Batches that wait for another reason
	// (a refusal) are left alone.
	RetryNow(ctx context.Context, address string, limit int) (int, error)

	// ListDead lists the pipeline's dead letters that match, with Event.DeadLetter
	// filled, by event id and group_id, behind after (nil: from the beginning),
	// no more than limit.
	ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]outbox.Event, error)

	// CountDead counts the pipeline's dead letters that match; those closed too,
	// whatever f.Closed says.
	CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error)

	// Replay puts up to limit of the open dead letters that match back into the
	// buffer, in one transaction: each event under its old id with all that it had,
	// all under one new group_id whose ledger row waits, is due now, and has
	// lease_no, unfinished_leases, attempts and outages 0 and no origins; the dead letters
	// are closed. One whose id is in the buffer is left alone, and so is one whose
	// event id another one of this call has. It returns how many went back; 0:
	// none is left to replay.
	Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)

	// Discard closes up to limit of the open dead letters that match and returns
	// how many; 0: none is left.
	Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error)

	// Audit compares ledger and buffer by one snapshot. It reads all of both.
	Audit(ctx context.Context) (buffer.Audit, error)

	// Repair mends what an Audit finds: it gives orphans a ledger row (waiting, due
	// now), removes empty ledger rows and corrects the counts of miscounted ones. What
	// is leased, and its lease not over, is left alone.
	Repair(ctx context.Context) (buffer.Repair, error)

	// Diagnose looks at all that may be wrong with the database as it is: tables,
	// columns, indexes, privileges, the claim's plan, settings, whatever else the
	// database has. It lists what it looked at, the fine too, and changes nothing.
	Diagnose(ctx context.Context) []buffer.Finding

	// Peek returns the up to limit events that a claim would take first, as it would
	// bring them (a custom table: projected, with ProjectErr where that
	// failed), and claims nothing: nothing is written, and nobody waits. nil, nil: there
	// are none.
	Peek(ctx context.Context, limit int) (*buffer.Lease, error)

	// TakeToken is described by sink.Bucket.
	TakeToken(ctx context.Context, name string, requests int, per time.Duration) (time.Duration, error)

	// Status is the operator's view.
	Status(ctx context.Context) (buffer.Status, error)

	// Close gives back what the buffer holds, its connections.
	Close() error
}
