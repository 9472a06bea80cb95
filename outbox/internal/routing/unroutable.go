package routing

import (
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	minUnrouted = time.Second
	maxUnrouted = 5 * time.Minute
)

// Unroutable returns the outcomes of a batch that cannot be routed, and why if it waits; nil for one that can be. Several events that are at
// fault together are divided. An event alone waits, because the projection may be wrong itself, until another batch shows that it is not: then its
// route makes a dead letter of it.
func (f *Failing) Unroutable(batch *buffer.Lease) (outcomes []buffer.Outcome, why error) {
	switch size := batch.Len(); {
	case batch.NotRead != nil:
		why = fmt.Errorf("the batch cannot be read: %w", batch.NotRead)
		if errors.Is(batch.NotRead, buffer.ErrDatabaseUnavailable) { // a connection that breaks says nothing of the size at first
			if size > 1 && batch.Outages+1 >= unreadReads {
				return divided(batch, (size+1)/2, why), nil
			}
			break
		}
		if size > 1 {
			return divided(batch, min(max(1, batch.PartSize), (size+1)/2), why), nil
		}
		if errors.Is(batch.NotRead, buffer.ErrKillsReader) {
			return []buffer.Outcome{{Verdict: buffer.Dead, Attempts: batch.Attempts, Error: why.Error()}}, nil
		}
	case batch.ProjectErr != nil:
		why = fmt.Errorf("not routed, its projection failed: %w", batch.ProjectErr)
		if !errors.Is(batch.ProjectErr, buffer.ErrEventData) {
			break
		}
		if size > 1 {
			return divided(batch, (size+1)/2, why), nil
		}
		if f.blames(batch) {
			return nil, nil
		}
	case len(batch.Events) == 0:
		for _, r := range batch.Rejected {
			if !errors.Is(r.Err, buffer.ErrNotProjected) {
				why = fmt.Errorf("not routed, its projection failed: %w", r.Err)
			}
		}
		if why != nil && f.blames(batch) {
			return nil, nil
		}
	}
	if why == nil {
		return nil, nil
	}
	wait := waits(batch, why)
	if batch.NotRead != nil {
		wait.UnfinishedLeases = unfinished(batch)
	}
	return []buffer.Outcome{wait}, why
}

// PutBack is what a route of a batch with these outcomes of Unroutable comes to. A batch that fails for its own data says nothing of others, so that is no
// error.
func PutBack(batch *buffer.Lease, why error) (*buffer.Routed, error) {
	if why != nil && (batch.NotRead != nil || batch.ProjectErr != nil && !errors.Is(batch.ProjectErr, buffer.ErrEventData)) {
		return nil, why
	}
	return &buffer.Routed{Events: batch.Len(), PutBack: why}, nil
}

// Unwritten returns the outcomes of a batch whose route could not be written. Nothing of it was sent, and a lease that only ends would count
// as a death of its owner. forData reports whether a value of some event may be the cause: then the batch is divided, and an event that is to
// blame becomes a dead letter.
func (f *Failing) Unwritten(batch *buffer.Lease, why error, forData bool) []buffer.Outcome {
	why = fmt.Errorf("not routed: %w", why)
	switch size := batch.Len(); {
	case !forData:
	case size > 1:
		return divided(batch, (size+1)/2, why)
	case f.blames(batch):
		return []buffer.Outcome{{Verdict: buffer.Dead, Attempts: batch.Attempts, Error: why.Error()}}
	}
	wait := waits(batch, why)
	wait.UnfinishedLeases = unfinished(batch)
	return []buffer.Outcome{wait}
}

// PutBackTimeout bounds the settle that puts back a batch whose route could not be written, perhaps because the time for that was over.
const PutBackTimeout = 5 * time.Second

func waits(batch *buffer.Lease, why error) buffer.Outcome {
	return buffer.Outcome{
		Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: batch.Attempts, Outages: batch.Outages + 1,
		After: min(maxUnrouted, minUnrouted<<min(batch.Outages, 20)), Error: why.Error(),
	}
}

// unfinished is what the batch had before this lease.
func unfinished(batch *buffer.Lease) int { return max(0, batch.UnfinishedLeases-1) }

// unreadReads is how many reads of a batch in a row must break before it is divided.
const unreadReads = 3

// divided makes parts of a batch. What was counted of it says nothing of them.
func divided(batch *buffer.Lease, size int, why error) (parts []buffer.Outcome) {
	for ids := batch.IDs(); len(ids) > 0; ids = ids[size:] {
		size = min(size, len(ids))
		parts = append(parts, buffer.Outcome{
			Verdict: buffer.Retry, IDs: ids[:size], GroupID: buffer.NewGroupID(), Attempts: batch.Attempts, Error: why.Error(),
		})
	}
	return parts
}
