// Package distributor decides when batches are claimed, and how many: it counts
// the unclaimed events on a schedule, bounded, and hands out tickets to the
// workers that are free.
//
//	tickets = min(ceil(unclaimed / batch_size), max_batches), as workers come free
//
// Fresh events are counted on the schedule; with Eager a worker whose batch came
// back full gets the next ticket at once. Batches that are due (a retry, a lost
// owner, a delete to be done again) have a clock of their own, so that a nightly
// schedule does not put off a retry until tomorrow; while fresh events wait they
// get up to half of the workers.
package distributor

import (
	"context"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/outbox"
)

// Buffer is what a distributor needs of a buffer.
type Buffer interface {
	// Look counts, unclaimed events no further than limit.
	Look(ctx context.Context, limit int) (outbox.Backlog, error)
}

// Ticket is leave to claim one batch.
type Ticket struct {
	// Due: take over a batch that is due; else claim fresh events.
	Due bool
}

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
	// Err: claiming failed; nothing is known of the backlog.
	Err error
}

// Config of a distributor. All fields but Eager, Allow and Log are required.
type Config struct {
	// Schedule says when to count and fan out.
	Schedule cron.Schedule
	// Eager goes on at once while batches come back full; else fresh events are
	// claimed on schedule only, up to what was counted then.
	Eager bool
	// BatchSize is the events a batch may hold, MaxBatches the tickets one
	// distribution may hand out, MaxWaiting the batches that may wait for a
	// retry or a delete before claiming stops, Workers the workers there are.
	BatchSize, MaxBatches, MaxWaiting, Workers int
	// Allow says whether the sink takes batches just now; while it does not,
	// no ticket is handed out. nil: always. It may block until ctx is done.
	Allow func(ctx context.Context) bool
	// Looked hears of every look, its error included; counted tells whether
	// fresh events were counted too, or due batches only. nil: nobody.
	Looked func(b outbox.Backlog, counted bool, err error)
	// Log takes warnings; nil: slog.Default.
	Log *slog.Logger
}

// dueEvery is the clock of batches that are due.
const dueEvery = time.Second

// lookTimeout bounds a count; holdFor is how long tickets wait when the sink or
// the database is away.
const (
	lookTimeout = 30 * time.Second
	holdFor     = time.Second
)

// Distributor hands out tickets. Make one with New.
type Distributor struct {
	config  Config
	buffer  Buffer
	tickets chan Ticket
	reports chan Report

	// Owned by Run.
	free      int       // workers without a ticket
	dueOut    int       // due tickets handed out
	fresh     int       // fresh tickets left in this distribution
	due       int       // batches known to be due
	waiting   int       // batches waiting or marked, as last seen
	schedNext time.Time // the next distribution; zero: never
	dueNext   time.Time // the next look for due batches
	hold      time.Time // no ticket before this
	failing   bool      // the last look failed
}

// New makes a distributor on a buffer. It does nothing before Run.
func New(buffer Buffer, c Config) *Distributor {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Allow == nil {
		c.Allow = func(context.Context) bool { return true }
	}
	if c.Looked == nil {
		c.Looked = func(outbox.Backlog, bool, error) {}
	}
	return &Distributor{
		config:  c,
		buffer:  buffer,
		tickets: make(chan Ticket, c.Workers), // never more out than workers free
		reports: make(chan Report, c.Workers),
		free:    c.Workers,
	}
}

// Tickets is where workers take their tickets from; closed when Run returns.
func (d *Distributor) Tickets() <-chan Ticket { return d.tickets }

// Done is a worker's report on its ticket; there is exactly one a ticket. It
// never blocks.
func (d *Distributor) Done(r Report) { d.reports <- r }

// Run hands out tickets until ctx is done, and returns nil.
func (d *Distributor) Run(ctx context.Context) error {
	defer close(d.tickets)
	now := time.Now()
	d.schedNext, d.dueNext = d.config.Schedule.Next(now), now
	for {
		d.handOut(ctx)
		wait := time.NewTimer(time.Until(d.next()))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case r := <-d.reports:
			wait.Stop()
			d.report(r)
		case <-wait.C:
			d.look(ctx)
		}
	}
}

// next is when something is to be done although nobody reports.
func (d *Distributor) next() time.Time {
	next := d.dueNext
	if !d.schedNext.IsZero() && d.schedNext.Before(next) { // 30 February never comes
		next = d.schedNext
	}
	if now := time.Now(); d.wanted() && d.hold.After(now) && d.hold.Before(next) {
		next = d.hold
	}
	return next
}

// wanted tells whether tickets could be handed out, and a worker is free.
func (d *Distributor) wanted() bool { return d.free > 0 && (d.fresh > 0 || d.due > 0) }

// look counts whatever it is time for: fresh events for a distribution, else
// due batches only.
func (d *Distributor) look(ctx context.Context) {
	now := time.Now()
	distribute := !d.schedNext.IsZero() && !now.Before(d.schedNext)
	if !distribute && now.Before(d.dueNext) {
		return // only a hold is over
	}
	limit := 0
	if distribute {
		limit = d.config.MaxBatches * d.config.BatchSize
	}
	lookCtx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	backlog, err := d.buffer.Look(lookCtx, limit)
	if ctx.Err() != nil {
		return
	}
	d.config.Looked(backlog, distribute, err)
	now = time.Now()
	d.dueNext = now.Add(dueEvery)
	if err != nil {
		if !d.failing {
			d.config.Log.WarnContext(ctx, "cannot look at the buffer; trying again every second", "error", err)
		}
		d.failing = true
		if distribute { // a nightly distribution is not put off until tomorrow
			d.schedNext = now.Add(holdFor)
		}
		return
	}
	if d.failing {
		d.failing = false
		d.config.Log.InfoContext(ctx, "the buffer can be looked at again")
	}
	d.due, d.waiting = backlog.Due, backlog.Waiting+backlog.Delivered
	if distribute {
		d.fresh = min((backlog.Unclaimed+d.config.BatchSize-1)/d.config.BatchSize, d.config.MaxBatches)
		d.schedNext = d.config.Schedule.Next(now)
	}
}

// handOut gives tickets to free workers.
func (d *Distributor) handOut(ctx context.Context) {
	if !d.wanted() || time.Now().Before(d.hold) {
		return
	}
	if !d.config.Allow(ctx) {
		d.hold = time.Now().Add(holdFor)
		return
	}
	for d.free > 0 {
		fresh := d.fresh > 0 && d.waiting < d.config.MaxWaiting
		switch {
		case d.due > 0 && (!fresh || d.dueOut < max(1, d.config.Workers/2)):
			d.due--
			d.dueOut++
			d.give(Ticket{Due: true})
		case fresh:
			d.fresh--
			d.give(Ticket{})
		default:
			return
		}
	}
}

func (d *Distributor) give(t Ticket) {
	d.free--
	d.tickets <- t
}

func (d *Distributor) report(r Report) {
	d.free++
	if r.Ticket.Due {
		d.dueOut--
	}
	if r.PutBack {
		d.waiting++
		if at := time.Now().Add(r.DueIn); at.Before(d.dueNext) {
			d.dueNext = at
		}
	}
	switch {
	case r.Err != nil:
		// The ticket was not used. A database that is away is not asked by every
		// worker at once.
		d.hold = time.Now().Add(holdFor)
		if !r.Ticket.Due {
			d.fresh++
		}
	case r.Ticket.Due && r.Events == 0:
		d.due = 0 // somebody else was quicker
	case r.Ticket.Due:
	case r.Events == 0:
		d.fresh = 0
	case r.Full && d.config.Eager:
		d.fresh = max(d.fresh, 1)
	}
}
