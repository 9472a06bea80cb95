package distributor

import (
	"context"
	"time"
)

// Ticket is permission to claim one batch.
type Ticket struct {
	// Due: take over a batch that is due. Otherwise claim fresh events.
	Due bool
	// Newest, with Due: take over the newest (buffer.DueNewest).
	Newest bool
	// Smallest, with Due: take over the smallest (buffer.DueSmallest). The distributor issues none; a worker goes on with such after a batch was halved.
	Smallest bool
	// Single, with Due: take over the newest single event (buffer.DueSingle). The distributor issues none, either: a worker goes on with it after one was cut off.
	Single bool
	// Unsent, with Due: take over one that no worker has leased yet (buffer.DueUnsent).
	Unsent bool
	// Suspect, with Due: take over a suspect (buffer.DueSuspect), and send nothing else meanwhile.
	Suspect bool
	// BatchSize is the events the batch may hold.
	BatchSize int

	distribution int  // the one it belongs to, unless Due; noDistribution: none
	probe        bool // Allow lets no other out
	requested    bool // it answers a notification or a poll
	notified     bool // of a commit
}

// noDistribution is that of a ticket which nothing was counted for.
const noDistribution = -1

// Report is what a worker says when it is done with its ticket.
type Report struct {
	Ticket Ticket
	// Events in the batch; 0 if there was nothing to claim. A due batch whose events are gone counts as 1.
	Events int
	// Full: as many as a batch may hold, so there may be more.
	Full bool
	// Cut: the batch would have had more events, up to its ticket's BatchSize, but for their bytes. MaxBatches is
	// about batches of BatchSize, so it does not count.
	Cut bool
	// PutBack: a batch was put back, due after DueIn.
	PutBack bool
	DueIn   time.Duration
	// PassedOver: it was put back unsent, so that the next fresh batch can be tried.
	PassedOver bool
	// Searched: the worker went on with the parts of a batch that was halved, and Allow may have let nothing out meanwhile.
	Searched bool
	// Took is how long the claim took.
	Took time.Duration
	// Err: claiming failed; nothing is known of the backlog.
	Err error
}

// So many batches may wait as are passed over: maxPassed times MaxWaiting, and beyondSmall more where that is little.
const maxPassed, beyondSmall = 8, 128

// maxProbeOut is how long the only ticket that Allow lets out keeps others from being issued.
const maxProbeOut = time.Second

// canIssue reports whether tickets could be issued and a worker is free.
func (d *Distributor) canIssue() bool {
	return d.free > 0 && (d.canClaim() || d.due > 0 || d.canSuspect())
}

// canSuspect reports whether a ticket for a suspect may be issued: one at a time.
func (d *Distributor) canSuspect() bool { return d.suspects > 0 && !d.suspectOut }

// canClaim reports whether a ticket for fresh events may be issued.
func (d *Distributor) canClaim() bool {
	return (d.hasTickets() || d.requested) && (!d.full() || d.canProbe())
}

// canProbe reports whether a batch may be claimed although too many wait.
func (d *Distributor) canProbe() bool {
	return d.config.ProbeFull != nil && d.probe.Due(time.Now()) && d.config.ProbeFull()
}

// hasTickets reports whether the distribution has a ticket left, issued or not.
func (d *Distributor) hasTickets() bool { return d.uncovered > 0 && d.left > 0 }

// full reports whether too many batches wait to claim more.
func (d *Distributor) full() bool { return d.waiting >= d.config.MaxWaiting }

// issueTickets gives tickets to free workers.
func (d *Distributor) issueTickets(ctx context.Context) {
	if !d.canIssue() || time.Now().Before(d.backoffUntil) || time.Since(d.probeOut) < maxProbeOut {
		return
	}
	size, tickets := d.config.Limits()
	room := min(d.free, tickets-(d.config.Workers-d.free))
	if room <= 0 {
		return
	}
	allowed := d.config.Allow(ctx)
	if allowed <= 0 {
		d.backoffUntil = time.Now().Add(sinkBackoff)
		return
	}
	elsewhere := allowed > 1 && tickets > 1 && d.config.FreshWaits != nil && d.config.FreshWaits()
	for range min(room, allowed) {
		dueTurn := d.dueOut < tickets/2
		if allowed == 1 || tickets == 1 { // a claim that may find nothing is no probe
			dueTurn = !d.dueLast || !d.hasTickets()
		}
		switch fresh := d.canClaim(); {
		// A suspect is no probe, and takes turns with others, if there are any.
		case d.canSuspect() && (d.due == 0 && !fresh || allowed > 1 && (tickets > 1 || !d.suspectLast)):
			d.suspects--
			d.suspectOut = true
			d.issue(Ticket{Due: true, Suspect: true, BatchSize: size})
		case d.due > 0 && (dueTurn || !fresh && (!elsewhere || d.unsent > 0)):
			unsent := allowed > 1 && d.unsentTurn(tickets)
			d.due--
			d.dueOut++
			if unsent {
				d.unsent--
				d.unsentOut++
			}
			d.newest = allowed == 1 && !d.newest
			d.issue(Ticket{Due: true, Newest: d.newest, Unsent: unsent, BatchSize: size, probe: allowed == 1})
		case fresh:
			if d.full() {
				d.probe.Use(time.Now())
			}
			t := Ticket{BatchSize: size, distribution: noDistribution, probe: allowed == 1}
			t.requested, t.notified = d.takeRequest(time.Now())
			if d.hasTickets() {
				d.left--
				d.uncovered -= size
				t.distribution = d.distribution
			}
			d.issue(t)
		default:
			return
		}
	}
}

// unsentTurn reports whether the next ticket for a due batch is for one that no worker has leased yet: retries get up to half of the tickets while such wait, as
// due batches do while fresh events wait. Without retries it does not matter which is taken.
func (d *Distributor) unsentTurn(tickets int) bool {
	if d.unsent <= 0 || d.unsent >= d.due {
		return false
	}
	if tickets == 1 {
		return !d.unsentLast
	}
	return d.dueOut-d.unsentOut >= tickets/2
}

func (d *Distributor) issue(t Ticket) {
	d.free--
	d.dueLast, d.suspectLast, d.unsentLast = t.Due, t.Suspect, t.Unsent
	if t.probe {
		d.probeOut = time.Now()
	}
	d.tickets <- t
}

func (d *Distributor) report(r Report) {
	d.free++
	if r.Ticket.probe {
		d.probeOut = time.Time{}
		d.dueLast = d.dueLast || r.PassedOver // the next is a fresh one again
	}
	if r.PutBack {
		d.waiting++
		d.dueBy(time.Now().Add(r.DueIn))
	}
	if r.Searched {
		d.backoffUntil = time.Time{}
	}
	if r.Err == nil {
		d.nextBackoff = firstBackoff
	} else { // not every worker asks a database that is unavailable
		d.backoffUntil = time.Now().Add(d.nextBackoff)
		d.nextBackoff = min(2*d.nextBackoff, maxBackoff)
	}
	if !r.Ticket.Due {
		// One that was delivered does not wait, so the next one need not either. One that was passed over is no probe yet.
		if r.Events > 0 && (!r.PutBack || r.PassedOver && d.waiting < maxPassed*d.config.MaxWaiting+beyondSmall) {
			d.probe.Reset()
		}
		d.onClaim(r, time.Now())
	}
	switch {
	case r.Events > 0 || r.Err != nil:
		d.endQuiet()
	case r.Ticket.notified: // what was committed may be delayed, and only a count says until when
		d.countSoon(time.Now())
	}
	switch {
	case r.Ticket.Suspect:
		d.suspectOut = false
		if r.Events == 0 {
			d.suspects = 0 // another process was quicker
		}
	case r.Ticket.Unsent:
		d.dueOut--
		d.unsentOut--
		if r.Events == 0 {
			d.unsent = 0 // another ticket, or another process, was quicker
		}
	case r.Ticket.Due:
		d.dueOut--
		if r.Events == 0 {
			d.due = 0 // another process was quicker
		}
	case r.Ticket.distribution == noDistribution:
		d.continueEager(r)
	case r.Ticket.distribution != d.distribution: // counted anew since
	case r.Err != nil: // the ticket was not used
		d.left++
		d.uncovered += r.Ticket.BatchSize
	case r.Events == 0:
		d.uncovered = 0
	default:
		// A batch of late commits is a small one; what was counted is still there.
		d.uncovered += r.Ticket.BatchSize - r.Events
		if r.Cut {
			d.left++
		}
		d.continueEager(r)
	}
}

// continueEager issues tickets after a full batch: there may be a batch for each worker that is free.
func (d *Distributor) continueEager(r Report) {
	if r.Full && d.config.Eager {
		d.left = max(d.left, d.free)
		d.uncovered = max(d.uncovered, 1+(d.free-1)*r.Ticket.BatchSize)
	}
}
