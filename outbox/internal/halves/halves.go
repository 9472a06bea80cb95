// Package halves divides a waiting batch by request of an operator. The database leases the batch, lists its events and settles it, as a delivery worker
// would that takes it over and halves it: what was leased by somebody else is never touched, and nothing is lost or sent by it.
package halves

import (
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Lease is how long the batch is leased for it. If the process dies meanwhile, it is taken over after that.
const Lease = time.Minute

// PutBackTimeout bounds the putting back of a batch that could not be divided.
const PutBackTimeout = 5 * time.Second

// Check returns why the batch is not divided; nil: it is.
func Check(b *buffer.LiveBatch, doubled bool) error {
	if err := b.Indivisible(); err != nil {
		return err
	}
	if b.MaybeSent() && !doubled {
		return buffer.ErrMaybeSent
	}
	return nil
}

// reason begins the error of the halves.
const reason = "divided by an operator"

// Outcomes are two halves of the batch, which was leased as b says and whose events are listed. ordered: order is kept by key.
//
// An event that is now alone begins with no attempt, as after any rejection of a batch as a whole: they may have been about another event. So
// does the second half if order is kept, because its events may have waited behind others of their keys. What may have been sent
// is not fresh, and suspects stay suspects.
func Outcomes(b *buffer.LiveBatch, batch *buffer.Lease, ordered bool) []buffer.Outcome {
	ids := batch.IDs()
	if len(ids) < 2 { // the application deleted the others
		return PutBack(b, batch)
	}
	middle := (len(ids) + 1) / 2
	half := func(ids []int64, attempts int) buffer.Outcome {
		if len(ids) == 1 {
			attempts = 0
		}
		o := buffer.Outcome{
			Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID(), Attempts: attempts, Outages: b.Outages,
			UnfinishedLeases: min(b.UnfinishedLeases, buffer.SuspectAfter), Error: reason,
		}
		if b.Error != "" {
			o.Error += "; " + b.Error
		}
		if b.MaybeSent() {
			o.Outages = max(1, o.Outages)
		}
		return o
	}
	second := b.Attempts
	if ordered {
		second = 0
	}
	return []buffer.Outcome{half(ids[:middle], b.Attempts), half(ids[middle:], second)}
}

// PutBack lets the batch wait as before.
func PutBack(b *buffer.LiveBatch, batch *buffer.Lease) []buffer.Outcome {
	return []buffer.Outcome{{
		Verdict: buffer.Retry, GroupID: batch.GroupID, After: max(0, b.Due), Attempts: b.Attempts, Outages: b.Outages,
		UnfinishedLeases: b.UnfinishedLeases, Address: b.Address, Error: b.Error,
	}}
}
