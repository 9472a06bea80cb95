// Package distributor decides when batches are claimed, and how many: it counts
// the unclaimed events on a schedule, bounded, and hands out tickets to the
// workers that are free.
//
//	tickets = min(ceil(unclaimed / batch_size), max_batches), as workers come free
//
// Fresh events are counted on the schedule; with Eager a worker whose batch came
// back full gets the next ticket at once. With Poll a claim needs no count: a ring of
// the Bell is worth a ticket at once, and so is, where none is heard, a few
// milliseconds after a claim that brought events, then twice that, up to a second.
// While so many commits ring that it holds up the application, the bell is muted and
// the relay polls (see waking). Batches that are due (a retry, a lost
// owner, a delete to be done again) have a clock of their own, so that a nightly
// schedule does not put off a retry until tomorrow; while fresh events wait they
// get up to half of the workers.
package distributor

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Buffer is what a distributor needs of a buffer.
type Buffer interface {
	// CountBacklog counts, unclaimed events no further than limit.
	CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error)
}

// Config of a distributor. Schedule and the four numbers are required.
type Config struct {
	// Schedule says when to count and fan out.
	Schedule cron.Schedule
	// Eager goes on at once while batches come back full; else fresh events are
	// claimed on schedule only, up to what was counted then.
	Eager bool
	// Poll claims fresh events between two distributions too.
	Poll bool
	// Bell tells of commits, which are then claimed at once; only with Poll. nil: what
	// was committed is found by polling alone.
	Bell Bell
	// BatchSize is the events a batch may hold, MaxBatches the tickets one
	// distribution may hand out, MaxWaiting the batches that may wait for a
	// retry or a delete before claiming stops, Workers the workers there are.
	BatchSize, MaxBatches, MaxWaiting, Workers int
	// Limits says how many events a batch may hold now, and how many tickets may be
	// out: BatchSize and Workers at the most, which it stands for; nil: these. It must
	// be quick. More is heard of with the next report.
	Limits func() (batchSize, tickets int)
	// Allow says how many batches the sink takes just now. 0: no ticket is handed
	// out. 1 is for a trial: due batches and fresh events take turns then. nil: any
	// number. It may block until ctx is done.
	Allow func(ctx context.Context) int
	// Looked hears of every look, its error included; counted tells whether
	// fresh events were counted too, or due batches only. nil: nobody.
	Looked func(b buffer.Backlog, counted bool, err error)
	// Held hears after every look that worked whether MaxWaiting keeps events that
	// were counted from being claimed: the error says so; nil: it does not.
	// nil: nobody.
	Held func(err error)
	// Log takes warnings, and INFO when their reason is gone; nil: slog.Default.
	Log *slog.Logger
}

const (
	// dueEvery is the clock of batches that are due.
	dueEvery = time.Second
	// lookTimeout bounds a look.
	lookTimeout = 30 * time.Second
	// holdFor is how long tickets wait when the database is away; holdFirst, after a
	// first claim that failed, for many a failure is a single one; holdSink, when the
	// sink is, which costs no more than to ask Allow again.
	holdFor   = time.Second
	holdFirst = 50 * time.Millisecond
	holdSink  = 250 * time.Millisecond
	// heldAtLeast is how long claiming has to go on before it is said to: beside a
	// ledger that is nearly full a batch comes and goes every second.
	heldAtLeast = 10 * time.Second
)

// Distributor hands out tickets. Make one with New.
type Distributor struct {
	config  Config
	buffer  Buffer
	handed  chan Ticket
	reports chan Report
	looks   chan look
	wakes   chan struct{}

	// Owned by Run.
	free      int           // workers without a ticket
	due       int           // batches known to be due
	dueOut    int           // due tickets handed out
	dueLast   bool          // the last ticket was for a due batch
	waiting   int           // batches waiting or marked, as last seen
	schedNext time.Time     // the next distribution; zero: never
	dueNext   time.Time     // the next look for due batches
	hold      time.Time     // no ticket before this
	holdNext  time.Duration // how long after the next claim that fails
	looking   bool          // a look is under way
	woken     bool          // by RetryNow, since it began
	failing   bool          // the last look failed
	heldAt    time.Time     // when MaxWaiting was last seen to stop the claiming; zero: it goes on, or that was said

	waking

	distribution int // counts them
	tickets      int // it may still hand out
	left         int // events it counted, less those that tickets were handed out for
}

// look is a look at the buffer and what it brought.
type look struct {
	distribute bool
	backlog    buffer.Backlog
	err        error
}

// New makes a distributor on a buffer. It does nothing before Run.
func New(b Buffer, c Config) *Distributor {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Limits == nil {
		c.Limits = func() (int, int) { return c.BatchSize, c.Workers }
	}
	if c.Allow == nil {
		c.Allow = func(context.Context) int { return math.MaxInt }
	}
	if c.Looked == nil {
		c.Looked = func(buffer.Backlog, bool, error) {}
	}
	if c.Held == nil {
		c.Held = func(error) {}
	}
	if !c.Poll {
		c.Bell = nil
	}
	return &Distributor{
		config:  c,
		buffer:  b,
		handed:  make(chan Ticket, c.Workers), // never more out than workers free
		reports: make(chan Report, c.Workers),
		looks:   make(chan look, 1), // never more than one under way
		wakes:   make(chan struct{}, 1),
		free:    c.Workers, holdNext: holdFirst,
		waking: waking{bell: c.Bell, on: c.Poll},
	}
}

// Tickets is where workers take their tickets from; closed when Run returns.
func (d *Distributor) Tickets() <-chan Ticket { return d.handed }

// Done is a worker's report on its ticket; there is exactly one a ticket. It
// never blocks.
func (d *Distributor) Done(r Report) { d.reports <- r }

// RetryNow asks for a look at the batches that are due, at once: some were made due
// now. It never blocks.
func (d *Distributor) Wake() {
	select {
	case d.wakes <- struct{}{}:
	default: // one is asked for already
	}
}

// Run hands out tickets until ctx is done, and returns nil.
func (d *Distributor) Run(ctx context.Context) error {
	var looking sync.WaitGroup
	defer looking.Wait()
	defer close(d.handed)
	now := time.Now()
	d.schedNext, d.dueNext = d.config.Schedule.Next(now), now
	d.start(now)
	for {
		d.handOut(ctx)
		wait := time.NewTimer(time.Until(d.next()))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case r := <-d.reports:
			d.report(r)
		case l := <-d.looks:
			d.saw(ctx, l)
		case <-d.wakes:
			d.woken = true
			d.dueBy(time.Now())
		case <-d.rings():
			d.heard(time.Now())
		case <-wait.C:
			d.tick(time.Now())
			// A look that takes long must not keep workers waiting that could go on.
			if distribute, due := d.lookDue(); due {
				d.looking, d.woken, d.dueNext = true, false, time.Now().Add(lookTimeout+dueEvery)
				looking.Go(func() { d.looks <- d.look(ctx, distribute) })
			}
		}
		wait.Stop()
	}
}

// next is when something is to be done although nobody reports.
func (d *Distributor) next() time.Time {
	now := time.Now()
	next := now.Add(lookTimeout)
	if !d.looking {
		next = d.dueNext
		if !d.schedNext.IsZero() && d.schedNext.Before(next) { // 30 February never comes
			next = d.schedNext
		}
	}
	if d.wanted() && d.hold.After(now) && d.hold.Before(next) {
		next = d.hold
	}
	if !d.poll.IsZero() && d.poll.Before(next) {
		next = d.poll
	}
	return next
}

// dueBy puts the next look for due batches at t, unless it is sooner already.
func (d *Distributor) dueBy(t time.Time) {
	if t.Before(d.dueNext) {
		d.dueNext = t
	}
}

// lookDue tells whether it is time for a look, and whether fresh events are to
// be counted too.
func (d *Distributor) lookDue() (distribute, due bool) {
	now := time.Now()
	scheduled := !d.schedNext.IsZero() && !now.Before(d.schedNext)
	return scheduled || d.countsAt(now), !d.looking && (scheduled || !now.Before(d.dueNext))
}

// look counts: fresh events for a distribution, else due batches only.
func (d *Distributor) look(ctx context.Context, distribute bool) look {
	limit := 0
	if distribute {
		size, _ := d.config.Limits()
		limit = d.config.MaxBatches * size
		if d.config.Eager { // full batches call for more, whatever was counted
			limit = min(limit, 2*d.config.Workers*size)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	backlog, err := d.buffer.CountBacklog(ctx, limit)
	return look{distribute, backlog, err}
}

// saw takes what a look brought.
func (d *Distributor) saw(ctx context.Context, l look) {
	d.looking = false
	if ctx.Err() != nil {
		return
	}
	d.config.Looked(l.backlog, l.distribute, l.err)
	now := time.Now()
	d.dueBy(now.Add(dueEvery))
	if d.woken {
		d.dueBy(now)
	}
	if l.err != nil {
		if !d.failing {
			d.config.Log.WarnContext(ctx, "cannot look at the buffer; trying again every second", "error", l.err)
		}
		d.failing = true
		if l.distribute { // a nightly distribution is not put off until tomorrow
			d.schedNext = now.Add(holdFor)
		}
		return
	}
	if d.failing {
		d.failing = false
		d.config.Log.InfoContext(ctx, "the buffer can be looked at again")
	}
	d.due, d.waiting = l.backlog.Due, l.backlog.Waiting+l.backlog.Delivered
	if l.distribute {
		d.distribution++
		d.left, d.tickets = l.backlog.Unclaimed, d.config.MaxBatches
		d.schedNext = d.config.Schedule.Next(now)
		d.looked(now)
	}
	d.tellHeld(ctx, now)
}

// tellHeld says when MaxWaiting stops the claiming, and when it goes on.
func (d *Distributor) tellHeld(ctx context.Context, now time.Time) {
	if d.counted() && d.full() {
		d.config.Held(fmt.Errorf("claiming has stopped: %d batches wait or are marked, max_waiting is %d", d.waiting, d.config.MaxWaiting))
		if d.heldAt.IsZero() {
			d.config.Log.WarnContext(ctx, "claiming has stopped: max_waiting batches wait or are marked",
				"batches", d.waiting, "max_waiting", d.config.MaxWaiting)
		}
		d.heldAt = now
		return
	}
	d.config.Held(nil)
	if !d.heldAt.IsZero() && now.Sub(d.heldAt) >= heldAtLeast {
		d.heldAt = time.Time{}
		d.config.Log.InfoContext(ctx, "claiming goes on", "batches", d.waiting, "max_waiting", d.config.MaxWaiting)
	}
}
