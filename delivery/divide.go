package delivery

import (
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// maxDivided is how many parts a batch is divided into at once; see maxRuns.
const maxDivided = maxRuns

// divide decides on a batch that was not read. If its events are too large together, or cannot be read in time, it is
// divided by ids into parts that are due at once, each smaller than the batch. Otherwise, and if its event is alone or its events are unknown, it
// waits as for an outage. Nothing was sent, and no attempt is counted.
func (p *policy) divide(l *buffer.Lease) []buffer.Outcome {
	ids, why := l.IDs(), ""
	if !errors.Is(l.NotRead, buffer.ErrTooLarge) {
		why = l.NotRead.Error()
	}
	// A connection that breaks once says nothing of the size.
	eventsAtFault := errors.Is(l.NotRead, buffer.ErrSlowRead) || errors.Is(l.NotRead, buffer.ErrUnreadable)
	if len(ids) <= 1 || why != "" && !eventsAtFault && l.Outages == 0 {
		err := l.NotRead
		if len(ids) == 1 && errors.Is(err, buffer.ErrUnreadable) {
			err = fmt.Errorf("event %s cannot be read: correct its row, or delete it: %w", l.AllEvents()[0].Identity(), err)
		}
		o := p.retry(l, part{verdict: verdict{kind: unavailable, err: err}, attempts: l.Attempts})
		o.Address = nil
		return []buffer.Outcome{o}
	}
	outages := l.Outages
	if l.UnfinishedLeases > 1 || l.Attempts > 0 { // its parts must not count as fresh
		outages = max(1, outages)
	}
	var outcomes []buffer.Outcome
	for size := min(l.PartSize, (len(ids)+1)/2); len(ids) > 0; ids = ids[size:] {
		if len(outcomes) == maxDivided-1 {
			size = len(ids)
		}
		size = min(size, len(ids))
		o := sendNow(l, ids[:size], why)
		o.Outages = outages
		outcomes = append(outcomes, o)
	}
	return p.carryAttempts(l, outcomes)
}
