package distributor

import (
	"context"
	"time"
)

// Ticket is leave to claim one batch.
type Ticket struct {
	// Due: take over a batch that is due; else claim fresh events.
	Due bool
	// BatchSize is the events the batch may hold.
	BatchSize int

	distribution int  // the one it belongs to, unless Due; noDistribution: none
	asked        bool // it answers a ring or a poll
}

// noDistribution is that of a ticket which nothing was counted for.
const noDistribution = -1

// Report is what a worker says when it is done with its ticket.
type Report struct {
	Ticket Ticket
	// Events in the batch; 0 when there was nothing to claim. A batch that was
	// due and whose events are gone counts as 1.
	Events int
	// Full: as many as a batch may hold, so there may be more.
	Full bool
	// PutBack: a batch was put back, due after DueIn.
	PutBack bool
	DueIn   time.Duration
	// Took is how long the claim took.
	Took time.Duration
	// Err: claiming failed; nothing is known of the backlog.
	Err error
}

// wanted tells whether tickets could be handed out, and a worker is free.
func (d *Distributor) wanted() bool { return d.free > 0 && (d.fresh() || d.due > 0) }

// fresh tells whether a ticket for fresh events may be handed out.
func (d *Distributor) fresh() bool { return (d.counted() || d.asked) && !d.full() }

// counted tells whether the distribution has a ticket left, if it may be handed
// out or not.
func (d *Distributor) counted() bool { return d.left > 0 && d.tickets > 0 }

// full tells whether too many batches wait to claim more.
func (d *Distributor) full() bool { return d.waiting >= d.config.MaxWaiting }

// handOut gives tickets to free workers.
func (d *Distributor) handOut(ctx context.Context) {
	if !d.wanted() || time.Now().Before(d.hold) {
		return
	}
	size, tickets := d.config.Limits()
	room := min(d.free, tickets-(d.config.Workers-d.free))
	if room <= 0 {
		return
	}
	allowed := d.config.Allow(ctx)
	if allowed <= 0 {
		d.hold = time.Now().Add(holdSink)
		return
	}
	for range min(room, allowed) {
		share := d.dueOut < tickets/2
		if allowed == 1 || tickets == 1 { // a claim that may find nothing is no trial
			share = !d.dueLast || !d.counted()
		}
		switch fresh := d.fresh(); {
		case d.due > 0 && (share || !fresh):
			d.due--
			d.dueOut++
			d.give(Ticket{Due: true, BatchSize: size})
		case fresh:
			t := Ticket{BatchSize: size, distribution: noDistribution, asked: d.answer(time.Now())}
			if d.counted() {
				d.tickets--
				d.left -= size
				t.distribution = d.distribution
			}
			d.give(t)
		default:
			return
		}
	}
}

func (d *Distributor) give(t Ticket) {
	d.free--
	d.dueLast = t.Due
	d.handed <- t
}

func (d *Distributor) report(r Report) {
	d.free++
	if r.PutBack {
		d.waiting++
		d.dueBy(time.Now().Add(r.DueIn))
	}
	if r.Err == nil {
		d.holdNext = holdFirst
	} else { // a database that is away is not asked by every worker at once
		d.hold = time.Now().Add(d.holdNext)
		d.holdNext = min(2*d.holdNext, holdFor)
	}
	if !r.Ticket.Due {
		d.claimed(r, time.Now())
	}
	switch {
	case r.Ticket.Due:
		d.dueOut--
		if r.Events == 0 {
			d.due = 0 // somebody else was quicker
		}
	case r.Ticket.distribution == noDistribution:
		d.goOn(r)
	case r.Ticket.distribution != d.distribution: // counted anew since
	case r.Err != nil: // the ticket was not used
		d.tickets++
		d.left += r.Ticket.BatchSize
	case r.Events == 0:
		d.left = 0
	default:
		// A batch of late commits is a small one; what was counted is still there.
		d.left += r.Ticket.BatchSize - r.Events
		d.goOn(r)
	}
}

// goOn, after a full batch: there may be one for each that is free.
func (d *Distributor) goOn(r Report) {
	if r.Full && d.config.Eager {
		d.tickets = max(d.tickets, d.free)
		d.left = max(d.left, 1+(d.free-1)*r.Ticket.BatchSize)
	}
}
