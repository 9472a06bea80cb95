// Package distributor decides when workers claim batches, and how many. It counts the unclaimed events on a
// schedule, up to a limit, and issues tickets to free workers. A ticket is the permission to claim one batch.
//
//	tickets = min(ceil(unclaimed / batch_size), max_batches), as workers come free
//
// Fresh events are counted on the schedule. With Eager, a worker whose batch came back full
// gets the next ticket at once. With Poll, claims need no count: a commit notification
// issues a ticket immediately; without notifications the distributor polls 5 ms after a
// claim that returned events and lengthens the interval by half up to Config.IdlePoll. While notifications come
// faster than claims, the listener is paused and the distributor polls (see wakeState).
//
// Due batches (a retry is due, an owner is gone, a delete must be repeated) are looked for independently
// of the schedule, so that a nightly schedule does not put off a retry until tomorrow. While fresh
// events wait, due batches get up to half of the workers; in the queue of a sink, so do retries while batches wait that no worker has leased yet. Suspects (their last owner did not finish them) get one
// ticket at a time.
package distributor

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// Observer receives what a distributor counted. Its methods must be quick.
type Observer interface {
	// Counted is called after every count, with its error; fresh reports whether
	// unclaimed events were counted too, or due batches only.
	Counted(b buffer.Backlog, fresh bool, err error)
	// Backpressure is called after every count that succeeded: err says that MaxWaiting keeps
	// the counted events from being claimed; nil: it does not.
	Backpressure(err error)
}

// Config of a distributor. Every field is required but Listener.
type Config struct {
	// Schedule says when to count and fan out.
	Schedule cron.Schedule
	// Eager continues at once while batches come back full. Otherwise fresh events are
	// claimed on schedule only, up to what was counted then.
	Eager bool
	// Poll claims fresh events between two distributions too.
	Poll bool
	// Listener notifies of commits, whose events are then claimed at once; only with Poll. nil:
	// by polling alone.
	Listener Listener
	// IdlePoll is the interval of polls while nothing happens, without a Listener; by default and at most a second.
	IdlePoll time.Duration
	// Ordered: an event may wait for the batch that holds its key, and no commit notifies when that is gone.
	Ordered bool
	// BatchSize is the events a batch may hold. MaxBatches is the tickets one distribution may
	// issue. MaxWaiting is the batches that may wait for a retry or a delete before
	// claiming stops. Workers is the workers there are.
	BatchSize, MaxBatches, MaxWaiting, Workers int
	// ProbeFull reports whether a batch is claimed from time to time although MaxWaiting batches wait (see Probe). What waits fails for its own
	// data, it seems, and only another batch can show that. nil: never.
	ProbeFull func() bool
	// FreshWaits reports whether fresh events wait that are not counted: a router gives them to workers that are free, or has put them into the queue since. Retries then
	// get up to half of the tickets. It must be quick. nil: never.
	FreshWaits func() bool
	// Limits returns how many events a batch may hold now, and how many tickets may be out: at most BatchSize
	// and Workers. It must be quick. A higher limit takes effect with the next report.
	Limits func() (batchSize, tickets int)
	// Allow returns how many batches the sink takes now. 0: no ticket is issued. 1 is for a half-open probe:
	// due batches, the newest and the oldest, and fresh events take turns then, one ticket at a time. It may block until ctx is done.
	Allow    func(ctx context.Context) int
	Observer Observer
	// Log takes warnings, and INFO when their reason is gone.
	Log *slog.Logger
}

const (
	// dueInterval is how often due batches are counted.
	dueInterval = time.Second
	// quietInterval is how often everything is counted while commits notify and the last count found nothing at all. A
	// batch of an owner that is gone is found by so much later.
	quietInterval = 5 * time.Second
	// minDelayed is how soon a count is repeated because a delayed event is available then.
	minDelayed = 100 * time.Millisecond
	// countTimeout bounds a count.
	countTimeout = 30 * time.Second
	// firstBackoff is how long no ticket is issued after a claim that failed; it doubles up to maxBackoff.
	// sinkBackoff is how long when the sink takes nothing, which costs no more than to ask Allow again.
	firstBackoff = 50 * time.Millisecond
	maxBackoff   = time.Second
	sinkBackoff  = 250 * time.Millisecond
	// resumedAfter is how long claiming has to continue before that is logged: near
	// MaxWaiting it stops and resumes every second.
	resumedAfter = 10 * time.Second
)

// Distributor issues tickets. Make one with New.
type Distributor struct {
	config   Config
	buffer   Buffer
	tickets  chan Ticket
	reports  chan Report
	counts   chan countResult
	recounts chan struct{}

	// Owned by Run.
	free          int           // workers without a ticket
	due           int           // batches known to be due
	dueOut        int           // due tickets issued
	unsent        int           // of the due batches, those that no worker has leased yet
	unsentOut     int           // tickets for such issued
	unsentLast    bool          // the last ticket was for one
	dueLast       bool          // the last ticket was for a due batch, a suspect too
	suspects      int           // known to be due
	suspectOut    bool          // a ticket for one was issued
	suspectLast   bool          // the last ticket was for one
	newest        bool          // the last ticket for a due batch, as a probe, was for the newest
	probeOut      time.Time     // when the only ticket that Allow lets out was issued; zero: it came back
	waiting       int           // batches that wait, or wait for their delete, as last counted
	schedNext     time.Time     // the next distribution; zero: never
	dueNext       time.Time     // the next count of due batches
	delayedNext   time.Time     // when the next delayed event is available; zero: none is known
	backoffUntil  time.Time     // no ticket before this
	nextBackoff   time.Duration // after the next claim that fails
	counting      bool          // a count is under way
	recount       bool          // was asked for since it began
	failing       bool          // the last count failed
	probe         Probe         // the claims although MaxWaiting batches wait
	backpressured time.Time     // when MaxWaiting last stopped the claiming; zero: claiming resumed, and that was logged

	wakeState

	distribution int // counts them
	left         int // tickets that it may still issue
	uncovered    int // events it counted, less those that tickets were issued for
}

// countResult is a count of the backlog.
type countResult struct {
	fresh   bool
	backlog buffer.Backlog
	err     error
}

// New makes a distributor on a buffer. It does nothing before Run.
func New(b Buffer, c Config) *Distributor {
	if !c.Poll {
		c.Listener = nil
	}
	return &Distributor{
		config:   c,
		buffer:   b,
		tickets:  make(chan Ticket, c.Workers), // never more out than workers free
		reports:  make(chan Report, c.Workers),
		counts:   make(chan countResult, 1), // never more than one under way
		recounts: make(chan struct{}, 1),
		free:     c.Workers, nextBackoff: firstBackoff,
		wakeState: wakeState{listener: c.Listener, polls: c.Poll, ordered: c.Ordered, idlePoll: c.idlePoll()},
	}
}

func (c *Config) idlePoll() time.Duration {
	if c.IdlePoll == 0 || c.Listener != nil {
		return maxPoll
	}
	return min(c.IdlePoll, maxPoll)
}

// Tickets is where workers take their tickets from; closed when Run returns.
func (d *Distributor) Tickets() <-chan Ticket { return d.tickets }

// Done takes a worker's report on its ticket; there is exactly one a ticket. It never blocks.
func (d *Distributor) Done(r Report) { d.reports <- r }

// RecountDue counts the due batches at once, because some were made due now. It never blocks.
func (d *Distributor) RecountDue() {
	select {
	case d.recounts <- struct{}{}:
	default: // one is asked for already
	}
}

// Run issues tickets until ctx is done, and returns nil.
func (d *Distributor) Run(ctx context.Context) error {
	var counting sync.WaitGroup
	defer counting.Wait()
	defer close(d.tickets)
	now := time.Now()
	d.schedNext, d.dueNext = d.config.Schedule.Next(now), now
	d.start(now)
	for {
		d.issueTickets(ctx)
		wait := time.NewTimer(time.Until(d.next()))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case r := <-d.reports:
			d.report(r)
		case c := <-d.counts:
			d.onCount(ctx, c)
		case <-d.recounts:
			d.recount = true
			d.dueBy(time.Now())
		case <-d.notifications():
			if d.onNotification(time.Now()); !d.listening {
				d.endQuiet()
			}
		case <-wait.C:
			d.tick(time.Now())
			// A count that takes long must not hold up workers that could continue.
			if fresh, due := d.countDue(); due {
				d.counting, d.recount, d.dueNext = true, false, time.Now().Add(countTimeout+dueInterval)
				counting.Go(func() { d.counts <- d.count(ctx, fresh) })
			}
		}
		wait.Stop()
	}
}

// next is when to do something although no worker reports.
func (d *Distributor) next() time.Time {
	now := time.Now()
	next := now.Add(countTimeout)
	if !d.counting {
		next = d.dueNext
		if !d.schedNext.IsZero() && d.schedNext.Before(next) { // 30 February never comes
			next = d.schedNext
		}
	}
	if !d.counting && !d.delayedNext.IsZero() && d.delayedNext.Before(next) {
		next = d.delayedNext
	}
	if d.canIssue() && d.backoffUntil.After(now) && d.backoffUntil.Before(next) {
		next = d.backoffUntil
	}
	if !d.pollAt.IsZero() && d.pollAt.Before(next) {
		next = d.pollAt
	}
	return next
}

// dueBy puts the next count of due batches at t, unless it is sooner already.
func (d *Distributor) dueBy(t time.Time) {
	if t.Before(d.dueNext) {
		d.dueNext = t
	}
}

// countSoon makes the next count soon, with fresh events.
func (d *Distributor) countSoon(now time.Time) {
	d.freshAt = now
	d.dueBy(now.Add(followUp))
}

// endQuiet counts as often again as while something is done.
func (d *Distributor) endQuiet() {
	now := time.Now()
	d.dueBy(now.Add(dueInterval))
	if next := d.config.Schedule.Next(now); !next.IsZero() && next.Before(d.schedNext) {
		d.schedNext = next
	}
}

// countDue reports whether it is time for a count, and whether fresh events are counted too.
func (d *Distributor) countDue() (fresh, due bool) {
	now := time.Now()
	scheduled := !d.schedNext.IsZero() && !now.Before(d.schedNext)
	available := !d.delayedNext.IsZero() && !now.Before(d.delayedNext)
	return scheduled || available || d.countsFresh(now), !d.counting && (scheduled || available || !now.Before(d.dueNext))
}

// count counts fresh events for a distribution, otherwise due batches only.
func (d *Distributor) count(ctx context.Context, fresh bool) countResult {
	limit := 0
	if fresh {
		size, _ := d.config.Limits()
		limit = d.config.MaxBatches * size
		if d.config.Eager { // full batches issue tickets without a count
			limit = min(limit, 2*d.config.Workers*size)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	backlog, err := d.buffer.CountBacklog(ctx, limit)
	return countResult{fresh, backlog, err}
}

// onCount takes the result of a count.
func (d *Distributor) onCount(ctx context.Context, c countResult) {
	d.counting = false
	if ctx.Err() != nil {
		return
	}
	d.config.Observer.Counted(c.backlog, c.fresh, c.err)
	now := time.Now()
	d.dueBy(now.Add(dueInterval))
	if d.recount {
		d.dueBy(now)
	}
	if c.err != nil {
		if !d.failing {
			d.config.Log.WarnContext(ctx, "counting backlog failed, will retry every second", "error", c.err)
		}
		d.failing = true
		d.delayedNext = time.Time{}
		if c.fresh { // a nightly distribution is not put off until tomorrow
			d.schedNext = now.Add(maxBackoff)
		}
		return
	}
	if d.failing {
		d.failing = false
		d.config.Log.InfoContext(ctx, "counting backlog works again")
	}
	d.due, d.unsent, d.suspects, d.waiting = c.backlog.Due, c.backlog.Unsent, c.backlog.Suspects, c.backlog.Waiting+c.backlog.Delivered
	if !d.full() {
		d.probe.Reset()
	}
	if c.fresh {
		d.distribution++
		d.uncovered, d.left = c.backlog.Unclaimed, d.config.MaxBatches
		d.schedNext = d.config.Schedule.Next(now)
		d.countedFresh(now)
		if d.delayedNext = (time.Time{}); d.polls && c.backlog.NextDelayed > 0 {
			d.delayedNext = now.Add(max(c.backlog.NextDelayed, minDelayed))
		}
	}
	if !d.recount && d.isQuiet(c.backlog) {
		// Not all at once, or the pipelines of a process would need a connection each.
		d.dueNext = now.Add(quietInterval - rand.N(dueInterval))
		if !d.schedNext.IsZero() && d.schedNext.Before(d.dueNext) { // put off, and not left out
			d.schedNext = d.dueNext
		}
	}
	d.reportBackpressure(ctx, now)
}

// isQuiet reports whether nothing is there to be done before a commit notifies.
func (d *Distributor) isQuiet(b buffer.Backlog) bool {
	return d.listening && !b.Paused && !d.requested && d.free == d.config.Workers && b.Unclaimed+b.Due+b.Suspects+b.Waiting+b.Delivered == 0
}

// reportBackpressure says when MaxWaiting stops the claiming, and when claiming resumes.
func (d *Distributor) reportBackpressure(ctx context.Context, now time.Time) {
	if d.hasTickets() && d.full() {
		d.config.Observer.Backpressure(fmt.Errorf("claiming stopped: %d batches wait for a retry or a delete, max_waiting is %d", d.waiting, d.config.MaxWaiting))
		if d.backpressured.IsZero() {
			d.config.Log.WarnContext(ctx, "claiming stopped: too many batches wait for a retry or a delete",
				"batches", d.waiting, "max_waiting", d.config.MaxWaiting)
		}
		d.backpressured = now
		return
	}
	d.config.Observer.Backpressure(nil)
	if !d.backpressured.IsZero() && now.Sub(d.backpressured) >= resumedAfter {
		d.backpressured = time.Time{}
		d.config.Log.InfoContext(ctx, "claiming resumed", "batches", d.waiting, "max_waiting", d.config.MaxWaiting)
	}
}
