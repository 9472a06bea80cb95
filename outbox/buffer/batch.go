package buffer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// Batch is the events that share a group_id: all that a sink sees. The events of a group_id
// never change, so GroupID is an idempotency key at every sink.
//
// Sinks read a Batch and keep no reference to it after Send has returned.
type Batch struct {
	// GroupID is a version 7 UUID.
	GroupID uuid.UUID
	// Pipeline is the name of the pipeline that owns the buffer.
	Pipeline string
	// Events are in id order. Their bytes live as long as the batch.
	Events []outbox.Event
	// DeadLetters are why the events were buried, by index, in a batch for a dead-letter
	// hook; otherwise nil. See [Batch.DeadLetter].
	DeadLetters []*DeadLetter
	// PayloadIsJSON reports whether the payload's column guarantees that every payload is
	// JSON, so that a sink need not check.
	PayloadIsJSON bool
	// Origins are the group_ids these events were sent under before, oldest
	// first. A sink that remembers group_ids must honour them too.
	Origins []uuid.UUID
	// FirstSend reports whether no event of the batch was sent before, as far as the
	// ledger knows. The delivery worker sets it before each Send.
	FirstSend bool
	// MaybeSent reports whether an earlier send under this GroupID met an outage, or was not finished: the sink may have
	// accepted it, or still be at it. The delivery worker sets it before each Send.
	MaybeSent bool
	// AskedAlone reports whether the sink has asked this batch alone to come back later, again and again, while it accepted others. A pause
	// that it asks for is that of the batch, not of the sink. The delivery worker sets it before each Send.
	AskedAlone bool
	// Projected reports whether payloads and addresses come from a projection; they may
	// differ between attempts.
	Projected bool
}

// MaxBytes is how many bytes of topics, keys, payloads and headers the events of a batch have together. A batch is
// made smaller, or divided, where it would have more; a single event may be larger. A pipeline holds
// workers + max(2, workers/2) batches in memory.
const MaxBytes = 4 << 20

// Lease is a batch that belongs to one owner until Ends. It belongs to the worker that
// claimed it or took it over, and is not safe for concurrent writes.
type Lease struct {
	Batch
	// ClaimID is the same in all batches that may share an event, one for each sink; zero: no other batch has
	// any of these events.
	ClaimID uuid.UUID
	// LeaseNo rises with every lease of this batch; it is the fence.
	LeaseNo int64
	// Ends is when the lease is over by the local monotonic clock, counted from before the claim was sent, so
	// it never lies later than the database's own end of the lease.
	Ends time.Time
	// FirstID and LastID bound the ids of the events, including the Rejected ones.
	FirstID, LastID int64
	// Rejected are the events of a custom table that cannot be sent, in id order: the projection returned
	// nothing for them, or failed. They belong to the batch, and must be settled with it.
	Rejected []Rejection
	// UnfinishedLeases counts the leases in a row that no owner finished, this one
	// included: 1 for a fresh claim or a retry that is due.
	UnfinishedLeases int
	// Cut reports that the claim could have taken more events, but for [MaxBytes], or that there are others that are not in this batch because
	// their ids are far away: delayed events that are due.
	Cut bool
	// More: a claim of fresh events that was full, so that others may have been committed behind them. The pipeline sets it.
	More bool
	// Searched: the search for bad events took the batch. The pipeline sets it.
	Searched bool
	// TraceID is that of the batch's span, 32 hex digits, if the span is sampled; otherwise "". The pipeline sets it.
	TraceID string
	// NotRead is why the events have nothing but their ids and times, and hashes for keys if order is kept: [ErrTooLarge],
	// [ErrUnreadable], [ErrKillsReader], or why reading them failed. nil: they were read. Such a batch is divided by ids, into batches of PartSize, and a single
	// event is read by itself; see [Claimer.Read].
	NotRead  error
	PartSize int
	// Attempts counts refusals, Outages counts sends in a row that failed
	// because the sink was unavailable. Only Attempts makes a dead letter.
	Attempts, Outages int
	// History is what was tried before this lease.
	History History
	// Counted is how many events the ledger counts in the batch; 0 for a fresh claim. The application may have deleted some since.
	Counted int
	// Delivered names the ids that reached the sink although they could not be deleted yet. It is not empty
	// only for a batch that was marked delivered and taken over: the batch is settled, not sent.
	Delivered []int64
	// ProjectErr is why the projection failed for the whole batch: then all events are
	// Rejected. errors.Is finds ErrEventData if the data of some event is the cause, and
	// ErrDatabaseUnavailable if the database is.
	ProjectErr error
	// ClaimedAt is the database's clock when this lease was taken, and ClaimedLocal the local one just after;
	// together they give the age of an event without trusting two clocks to agree.
	ClaimedAt, ClaimedLocal time.Time
}

// DeliveryRecorded reports whether the batch, or a part of it, was delivered before and
// only waits for its delete.
func (l *Lease) DeliveryRecorded() bool { return len(l.Delivered) > 0 }

// Age is how long ago, by the database's clock, the event was inserted.
func (l *Lease) Age(e *outbox.Event) time.Duration {
	since := time.Since(l.ClaimedLocal)
	return min(l.ClaimedAt.Sub(e.Waiting()), math.MaxInt64-since) + since // a time may lie further back than a duration reaches
}

// Due is a kind of batch whose time has come; see [Claimer].TakeOver.
type Due uint8

const (
	// DueRetry is a batch whose retry is due, or whose events were delivered and must still be deleted.
	DueRetry Due = iota
	// DueSuspect is a batch that SuspectAfter owners in a row did not finish, so that its events may have killed
	// them: its lease is over, or it is a retry with Outcome.UnfinishedLeases. It must be sent alone.
	DueSuspect
	// DueNewest is a batch like DueRetry: of those that were refused least often, the one with the newest events. Where order is kept it may be any.
	DueNewest
	// DueSmallest is a batch like DueRetry: the one with the fewest events, and of several such the one with the earliest. Where order is kept, or more than a
	// thousand are due, it may be another.
	DueSmallest
	// DueSingle is a batch like DueNewest, but one of a single event comes before the others that were refused as often.
	DueSingle
	// DueUnsent is a batch like DueRetry that no worker has leased since a router put it into the queue of its sink; [Backlog].Unsent counts these.
	DueUnsent
)

// SuspectAfter is how many unfinished leases in a row make a batch a suspect. The first says nothing: whatever ends a
// process leaves all that it had in flight unfinished, and to send all of that alone would take long.
const SuspectAfter = 2

// What a suspect leaves unfinished is a death alone.
const (
	// AloneBeforeHalving is how often a batch of several events dies alone before it is halved, which costs it
	// its group_id.
	AloneBeforeHalving = 2
	// AloneBeforeBurial is how often an event dies alone before it is buried. Somebody may have killed the process.
	AloneBeforeBurial = 5
)

// DiedAlone returns how many owners of the batch died while it was alone in flight: the unfinished leases less the
// first ones, which may have ended because of another batch, and the present one.
func (l *Lease) DiedAlone() int { return l.UnfinishedLeases - SuspectAfter - 1 }

// KillsReader reports whether the events of the batch must not be read, because what becomes of them is decided by their
// ids. An event whose time to be buried has come is read once more, because the address that a projection gives it is needed to ask
// the sink whether it has the event. An owner that dies of that was killed by the reading.
func (l *Lease) KillsReader() bool {
	switch l.Len() {
	case 0:
		return false
	case 1:
		return l.DiedAlone() > AloneBeforeBurial
	}
	return l.DiedAlone() >= AloneBeforeHalving
}

// MayKillReader reports whether KillsReader depends on the number of events: they are listed first.
func (l *Lease) MayKillReader() bool { return l.DiedAlone() >= AloneBeforeHalving }

// Rejection is an event that cannot be sent.
type Rejection struct {
	// Event has the table's name as its topic. Its payload is the row as JSON if Err is
	// ErrNotProjected and the row still exists, otherwise nil.
	Event outbox.Event
	// Err is ErrNotProjected if the projection returned no row for the event, otherwise why
	// the projection failed.
	Err error
}

// FailProjection sets ProjectErr and moves all events to Rejected.
func (l *Lease) FailProjection(err error) {
	l.ProjectErr = err
	for i := range l.Events {
		l.Rejected = append(l.Rejected, Rejection{l.Events[i], err})
	}
	l.Events = nil
}

// FailRead sets NotRead and PartSize, after so many events of the batch were read. The events of the batch are
// those that could not be read.
func (l *Lease) FailRead(err error, read int) {
	l.NotRead = err
	if !errors.Is(err, ErrTooLarge) { // half as many may be read in time
		read = min(read, (len(l.Events)+1)/2)
	}
	l.PartSize = max(1, read)
}

// Unread returns the lease without its contents, for [Claimer.Read].
func (l *Lease) Unread() Lease {
	return Lease{
		Batch: Batch{GroupID: l.GroupID, Pipeline: l.Pipeline, Origins: l.Origins}, ClaimID: l.ClaimID, LeaseNo: l.LeaseNo, FirstID: l.FirstID, LastID: l.LastID,
		UnfinishedLeases: l.UnfinishedLeases, Attempts: l.Attempts, Outages: l.Outages, History: l.History, ClaimedAt: l.ClaimedAt, ClaimedLocal: l.ClaimedLocal,
	}
}

// SetContents takes the contents of a lease of the same batch, and nothing that a renewal changes.
func (l *Lease) SetContents(from *Lease) {
	l.Events, l.DeadLetters, l.PayloadIsJSON, l.Projected = from.Events, from.DeadLetters, from.PayloadIsJSON, from.Projected
	l.Rejected, l.ProjectErr, l.NotRead = from.Rejected, from.ProjectErr, from.NotRead
}

// LogID is the id of an event of the lease for logs: its uuid as text if it has one, otherwise id itself. 0 is the first event's.
func (l *Lease) LogID(id int64) any {
	if id == 0 {
		id = l.FirstID
	}
	for i := range l.Events {
		if e := &l.Events[i]; e.ID == id && e.UUID != ([16]byte{}) {
			return e.Identity()
		}
	}
	for i := range l.Rejected {
		if e := &l.Rejected[i].Event; e.ID == id && e.UUID != ([16]byte{}) {
			return e.Identity()
		}
	}
	return id
}

// Len returns how many events the batch has, including the Rejected ones.
func (l *Lease) Len() int { return len(l.Events) + len(l.Rejected) }

// AllEvents returns Events and the Rejected ones, in id order.
func (l *Lease) AllEvents() []outbox.Event {
	if len(l.Rejected) == 0 {
		return l.Events
	}
	all := make([]outbox.Event, 0, l.Len())
	all = append(all, l.Events...)
	for i := range l.Rejected {
		all = append(all, l.Rejected[i].Event)
	}
	slices.SortFunc(all, func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// IDs returns the ids of AllEvents, in order; a new slice.
func (l *Lease) IDs() []int64 {
	ids := l.Batch.IDs()
	for i := range l.Rejected {
		ids = append(ids, l.Rejected[i].Event.ID)
	}
	slices.Sort(ids)
	return ids
}

// IDs returns the ids of Events, in order; a new slice.
func (b *Batch) IDs() []int64 {
	ids := make([]int64, len(b.Events))
	for i := range b.Events {
		ids[i] = b.Events[i].ID
	}
	return ids
}

// Bytes returns how many bytes count against [MaxBytes].
func (b *Batch) Bytes() (n int) {
	for i := range b.Events {
		n += EventBytes(&b.Events[i])
	}
	return n
}

// EventBytes returns how many bytes of an event count against [MaxBytes].
func EventBytes(e *outbox.Event) int {
	n := len(e.Topic) + len(e.Payload) + len(e.Headers)
	if e.Key != nil {
		n += len(*e.Key)
	}
	return n
}

// DeadLetter returns why the event at index i was buried; nil outside of a batch for a dead-letter hook.
func (b *Batch) DeadLetter(i int) *DeadLetter {
	if b.DeadLetters == nil {
		return nil
	}
	return b.DeadLetters[i]
}

// Part returns a copy of the batch with the events at these indexes only.
func (b *Batch) Part(indexes []int) *Batch {
	part := *b
	part.Events, part.DeadLetters = make([]outbox.Event, len(indexes)), nil
	for i, at := range indexes {
		part.Events[i] = b.Events[at]
		if b.DeadLetters != nil {
			part.DeadLetters = append(part.DeadLetters, b.DeadLetters[at])
		}
	}
	return &part
}

// maxOrigins bounds the origins of a batch. The first is kept, because parts of one batch have it in common; of the
// others the oldest are dropped. A sink remembers group_ids for a time, and 64 refusals with backoff take longer.
const maxOrigins = 64

// PartOrigins returns the origins of a part of the batch, which gets a group_id of its own; a new slice.
func (b *Batch) PartOrigins() []uuid.UUID {
	all := append(slices.Clone(b.Origins), b.GroupID)
	if more := len(all) - maxOrigins; more > 0 {
		all = slices.Delete(all, 1, 1+more)
	}
	return all
}

// NewGroupID draws a new group_id: a version 7 UUID, which sorts by time.
func NewGroupID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// RetryRequestPrefix begins the name of each request to retry batches. It stands in the ledger as the owner of the
// batches that it made due, which have no other owner while they wait.
const RetryRequestPrefix = "relay retry "

// NewRetryRequest returns the name of a new request. Later names are greater.
func NewRetryRequest() string { return RetryRequestPrefix + NewGroupID().String() }

// Verdict is the kind of an [Outcome].
type Verdict uint8

// The verdicts.
const (
	Delivered Verdict = iota // durably accepted by the sink: delete
	Retry                    // to be sent again: put back with a time
	Dead                     // refused for good: bury
)

func (v Verdict) String() string {
	switch v {
	case Delivered:
		return "delivered"
	case Retry:
		return "retry"
	case Dead:
		return "dead"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Outcome is the result of one attempt for some events of a batch. The outcomes of a Settle name
// every event of the batch exactly once, the Rejected ones too.
type Outcome struct {
	Verdict Verdict
	// IDs are the events, in ascending order; nil means all of the batch.
	IDs []int64
	// GroupID, for Retry: the batch's own if IDs is nil, otherwise a new one (the events of a
	// group_id never change).
	GroupID uuid.UUID
	// After, for Retry: how long to wait, by the database's clock.
	After time.Duration
	// Attempts and Outages, for Retry and Dead, are the new counts.
	Attempts, Outages int
	// UnfinishedLeases, for Retry, is the count that a suspect keeps, because this lease says nothing about
	// it; below SuspectAfter: the events are no suspects (any more).
	UnfinishedLeases int
	// Address, for Retry: the address of the sink whose outage the events wait
	// for, "" for the sink as a whole. When it is there again they may be sent
	// before After is over (see RetryNow); Outages is not 0 then. With Outages 0 the sink refused everything, and
	// they may be decided on when it accepts something (RetryRefused). nil: they wait until After is over.
	Address *string
	// Error, for Retry and Dead, is why; no secret in it.
	Error string
	// Tried, for Retry and Dead, reports that the batch was sent, or could not be, and Error is what came of it: an [Attempt] of the events' [History].
	Tried bool
}
