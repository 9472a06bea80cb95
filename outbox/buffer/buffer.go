package buffer

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Buffer is the whole contract. Distributor,
// claimer, worker, commands and the admin endpoint each use the part that they need.
type Buffer interface {
	Queue
	DeadLetters
	DeadTimes
	DeadEditor
	Auditor
	Diagnoser
	TokenBucket
	LiveBatches
	// DeadLetterQueue returns the pipeline's dead letters, as the buffer of their hook's
	// pipeline: see [Queue]. It shares the buffer's connections.
	DeadLetterQueue() Queue
	// Close gives back the connections.
	Close() error
}

// Queue is what a pipeline works through: a buffer of events, or a pipeline's dead letters.
//
// A queue of dead letters notifies a sink of each of them at least once, by the same claims,
// leases, retries and fences, in the same ledger, whose rows name another buffer:
//
//   - Claim stamps a new group_id (hook_group_id) on up to limit dead letters that are
//     open, unnotified and unclaimed, with different event ids, in the order of these.
//     Batch.DeadLetters says why each was buried.
//   - Settle sets notified_at of what is Delivered. A dead letter that was closed meanwhile is
//     notified all the same. Dead is an error: a dead letter is not buried again.
//   - CountBacklog counts unnotified dead letters as Unclaimed. At the start and every few
//     minutes it releases those whose ledger row is gone. Status counts them as Pending.
type Queue interface {
	Inspector
	Claimer
	Settler
	Deferrer
}

// Inspector reads a buffer and changes nothing.
type Inspector interface {
	// Check returns nil if the tables, columns and privileges exist that the relay needs. Otherwise
	// it returns an error wrapping [ErrNotReady] that lists everything missing and each fix, or
	// the connection's error.
	Check(ctx context.Context) error

	// CountBacklog counts unclaimed events up to limit, and due, suspect and waiting batches. With limit 0
	// it counts no events.
	CountBacklog(ctx context.Context, limit int) (Backlog, error)

	// Status is the operator's view.
	Status(ctx context.Context) (Status, error)
}

// Claimer leases batches.
type Claimer interface {
	// Claim makes up to limit unclaimed events a batch with a new group_id. It writes the ledger
	// row (leased, lease_no 1, unfinished_leases 1) and returns the batch with its events in id
	// order. Which events, and how the ledger finds them again, depends on the [ClaimMode].
	// It returns nil, nil if it found nothing to claim; then it has written nothing.
	//
	// The claim is committed before the events are read, and reading takes at most half of the lease. If the
	// events are larger than [MaxBytes] or cannot be read, the lease says so in NotRead.
	Claim(ctx context.Context, limit int, lease time.Duration) (*Lease, error)

	// TakeOver leases the batch of this kind that has been due longest and is not locked. lease_no rises by
	// one, and unfinished_leases too (Outcome.UnfinishedLeases is what a retry was settled with). A batch
	// whose delivery is recorded stays so, and has Delivered filled. A batch whose events were all deleted
	// has no Events. TakeOver returns nil, nil if nothing of this kind is due.
	//
	// The lease is committed before the events are read, as in Claim: what kills its worker while it is
	// read must count. Of a batch whose delivery is recorded only the ids are read.
	TakeOver(ctx context.Context, lease time.Duration, due Due) (*Lease, error)

	// Read reads the events of a batch with a single event whose NotRead is set, which is nil then. It takes
	// until ctx is done; the caller renews the lease.
	Read(ctx context.Context, l *Lease) error

	// Renew makes the lease end that long from now and sets l.Ends. It returns [ErrLeaseLost] if
	// the batch has another owner.
	Renew(ctx context.Context, l *Lease, lease time.Duration) error
}

// Settler writes down what became of a batch. Both methods are fenced by the batch's group_id
// and lease_no: [ErrLeaseLost] means that nothing was changed.
type Settler interface {
	// Settle writes the outcomes down in one transaction:
	//
	//   - Delivered: exactly those events are deleted. With an archive table they are copied
	//     there in the same transaction, once for each id and group_id.
	//   - Dead: they move to outbox_dead_letters, one row each.
	//   - Retry of all (IDs nil): the ledger row waits, with the outcome's unfinished_leases, due After.
	//   - Retry of a part: the events get Outcome.GroupID, with a ledger row of its own: waiting,
	//     lease_no 0, the outcome's unfinished_leases, due After, origins = the batch's origins
	//     and then its group_id.
	//
	// The old ledger row is removed unless all of the batch is retried. For a batch whose delivery
	// is recorded the delete skips rows that other transactions have locked. While some are
	// left the batch stays delivered, due again soon, and Settle returns [ErrLocked], or a [*KeptError]; retried
	// events have their new group_id nevertheless. The outcomes of such a batch may be only retries, of the events that were not
	// delivered: then it stays delivered, due again soon, without a delete.
	//
	// If the database refuses the settle for a reason that does not pass by itself, the error is a [*SettleError].
	Settle(ctx context.Context, l *Lease, outcomes []Outcome) error

	// MarkDelivered records, on the batch's ledger row alone, that these ids reached the sink
	// (state delivered, due again soon).
	MarkDelivered(ctx context.Context, l *Lease, delivered []int64) error
}

// Deferrer finds the batches that wait for an outage to end: Outcome.Address was set and Outages is not 0. With
// Outages 0 they are held, because the sink refused everything.
type Deferrer interface {
	// DeferredAddresses lists the addresses that batches of this buffer wait for, each once, ""
	// for the sink as a whole.
	DeferredAddresses(ctx context.Context) ([]string, error)

	// RetryNow makes up to limit batches due that wait for the address, or all if limit is 0, the
	// soonest first. It returns how many were not due before. Batches that wait for another
	// reason (a refusal) stay unchanged.
	RetryNow(ctx context.Context, address string, limit int) (int, error)

	// RetryRefused makes all batches due that are held. It returns how many were not due before.
	RetryRefused(ctx context.Context) (int, error)

	// RetryAll makes all waiting batches due, whatever they wait for, by request of an operator. It returns how
	// many wait. A request has a name of its own, by which relays in other processes notice it, though they
	// send nothing at the time (RetryRequest). It is one to all sinks and dead-letter hooks of the pipeline.
	RetryAll(ctx context.Context, request string) (int, error)

	// RetryRequest returns the latest request of the last minute, or of which batches still wait; "" if there is none. A request is
	// kept for a minute, because one relay may deliver all that waits before another one asks.
	RetryRequest(ctx context.Context) (string, error)
}

// LiveBatches are the batches of a buffer for an operator: those of events, for one or several sinks, and those of its dead-letter hooks.
type LiveBatches interface {
	// ListBatches lists up to limit of them, the one that was claimed last first, and says how many there are.
	ListBatches(ctx context.Context, limit int) (batches []LiveBatch, total int64, err error)

	// LiveBatch returns one of them; ok is false if there is none.
	LiveBatch(ctx context.Context, groupID uuid.UUID) (b LiveBatch, ok bool, err error)

	// BatchEvents reads up to limit events of a batch, as a worker would get them, without taking its lease, and writes nothing: the lease's other fields say nothing of a
	// lease. If they cannot be read, NotRead, ProjectErr and Rejected say why, as in TakeOver. It returns nil, nil if there is no such batch, or it is one of a
	// dead-letter hook.
	BatchEvents(ctx context.Context, groupID uuid.UUID, limit int) (*Lease, error)

	// RetryBatch makes one waiting batch due. A request has a name of its own, as in RetryAll. The error wraps [ErrNotWaiting] if
	// the batch does not wait.
	RetryBatch(ctx context.Context, groupID uuid.UUID, request string) error

	// DivideBatch gives the two halves of a waiting batch, by id, new group_ids, as a settle does. They are due now, with the batch's attempts. The
	// error wraps [ErrNotWaiting] if the batch does not wait, and [ErrMaybeSent] if the sink may have accepted it, unless doubled says that
	// the operator accepts that its events may arrive twice. Another error says why the batch is not divided. A batch that could not be divided waits as before.
	DivideBatch(ctx context.Context, groupID uuid.UUID, doubled bool) error
}

// DeadLetters are a pipeline's dead letters.
type DeadLetters interface {
	// ListDead lists up to limit dead letters that match, ordered by event id and group_id, behind
	// after; nil means from the beginning. It lists fewer if they are larger than [MaxBytes] together, and none
	// only behind the last one.
	ListDead(ctx context.Context, f DeadFilter, after *DeadKey, limit int) ([]DeadEvent, error)

	// ListNewestDead lists up to limit dead letters that match, the one that died last first, without payload, headers and row, and with
	// the first 4096 characters of topic, key and error: it is for people. It reads all that match, and keeps no more than limit in memory.
	ListNewestDead(ctx context.Context, f DeadFilter, limit int) ([]DeadEvent, error)

	// CountDead counts the dead letters that match, the closed ones too. It ignores f.Closed.
	CountDead(ctx context.Context, f DeadFilter) (DeadCount, error)

	// CountDropped counts the open dead letters that match and that no replay puts back, because their sink is dropped, by sink. It ignores
	// f.Closed. A buffer with a single sink has none.
	CountDropped(ctx context.Context, f DeadFilter) ([]DroppedLetters, error)

	// Replay inserts up to limit events of open dead letters that match into the buffer again, in one
	// transaction, and closes the dead letters. Each event keeps its id and fields. All have one new
	// group_id, whose ledger row waits, is due now, and has lease_no, unfinished_leases, attempts and outages
	// 0 and no origins. It skips an event whose id is in the buffer, and the second of two dead letters with
	// one event id. It inserts fewer if they are larger than [MaxBytes] together, but at least one. It returns how many events it
	// inserted; 0 means that none is left to replay.
	Replay(ctx context.Context, f DeadFilter, limit int) (int, error)

	// Rename gives this pipeline the buffer and the dead letters of a pipeline that had another name. It is not for a
	// pipeline that still runs.
	Rename(ctx context.Context, from string) (Renamed, error)

	// Discard closes up to limit open dead letters that match and returns how many; 0 means that
	// none is left.
	Discard(ctx context.Context, f DeadFilter, limit int) (int, error)
}

// DeadTimes counts a pipeline's dead letters by time.
type DeadTimes interface {
	// CountDeadByTime counts the dead letters that match by when they died. A period is an hour or a day in UTC, or another number of whole seconds that divides a
	// day. It returns up to limit periods in which some died, the latest first. It reads all that match.
	CountDeadByTime(ctx context.Context, f DeadFilter, period time.Duration, limit int) ([]DeadPeriod, error)
}

// DeadEditor corrects events before they are replayed.
type DeadEditor interface {
	// EditDead replaces the payload, and the headers if asked, of all open dead letters of an event in one transaction, or the row that a replay inserts. Each
	// must still have the old texts, byte for byte, otherwise it changes none and returns an error wrapping [ErrDeadChanged]. If the
	// event is in the buffer, because another sink still waits for it, the error wraps [ErrEventWaits]: that sink gets the old text,
	// and a replay would join it.
	EditDead(ctx context.Context, e DeadEdit) error

	// RowColumns returns the columns of a custom table, which a row may have; nil for the relay's own table.
	RowColumns(ctx context.Context) ([]string, error)
}

// Auditor compares ledger and buffer.
type Auditor interface {
	// Audit compares both by one snapshot. It reads all of them.
	Audit(ctx context.Context) (Audit, error)

	// Repair fixes what an Audit finds: it gives orphaned events a ledger row (waiting, due now),
	// removes empty ledger rows and corrects the counts of others. It does not
	// change a batch whose lease is not over.
	Repair(ctx context.Context) (Repair, error)
}

// Diagnoser reads the database for an operator and changes nothing.
type Diagnoser interface {
	// Diagnose checks tables, columns, indexes, privileges, the claim's plan and settings. It
	// returns a finding for each check, OK ones too.
	Diagnose(ctx context.Context) []Finding

	// Peek returns up to limit events that a claim would take first, as the claim would return them. Of those that a claim
	// would halve because of ErrEventData, it returns the bad ones alone as rejected, unless all are bad. It
	// writes nothing, and no other transaction waits for it. It returns nil, nil if there are none.
	Peek(ctx context.Context, limit int) (*Lease, error)

	// UnsentColumns returns the columns of the table of events that are not sent, and are lost when a delivered row is deleted: see
	// [CustomTable.Unsent] and [UnsentEventColumns].
	UnsentColumns(ctx context.Context) ([]string, error)

	// IgnoredColumns returns the columns that the projection returns and the relay does not know; see [CustomTable.Ignored].
	IgnoredColumns(ctx context.Context) ([]IgnoredColumn, error)

	// CountExcluded counts the rows of a custom table that [CustomTable.Where] excludes, up to a limit; 0 without a condition.
	CountExcluded(ctx context.Context, limit int) (int, error)
}

// TokenBucket is a rate limit that processes share.
type TokenBucket interface {
	// TakeToken takes one token of that name and returns how long to wait, from when it returned, before it
	// may be used; 0: at once. requests, at least 1, may begin per that time, evenly spaced. The database's
	// clock decides. A token cannot be given back. An error: none was taken, or one is lost.
	TakeToken(ctx context.Context, name string, requests int, per time.Duration) (time.Duration, error)
}
