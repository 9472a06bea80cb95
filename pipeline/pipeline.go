// Package pipeline joins one buffer to one sink: the only room where distributor, claimer and delivery meet.
//
//	distributor ──tickets──▶ goroutines: claimer ─▶ delivery.Worker ──reports──▶ distributor
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/claimer"
	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Listener notifies of commits, while Run runs.
type Listener interface {
	distributor.Listener
	// Run listens until ctx is done.
	Run(ctx context.Context)
}

// logging is a buffer that notices what an operator should know.
type logging interface{ SetLog(log *slog.Logger) }

// Pipeline moves events from one buffer to one sink. Make one with New.
type Pipeline struct {
	config   Config
	buffer   buffer.Queue
	sink     sink.Sink
	worker   *delivery.Worker
	health   health
	pause    pause
	progress progress
	notices  notices
	answers  answers
	reports  chan chan struct{} // see reporter.requests
	probes   atomic.Bool        // see reporter.probes
	// unaccepted is shown with another pipeline, if this is a dead-letter hook's.
	unaccepted unaccepted
	recovered  recoveries
	checks     chan struct{} // holds one when the sink should be checked soon
	limiter    *limiter
	tracer     *tracing.Tracer // nil: no spans

	// With a router:
	announced chan struct{}     // it has put a batch into the queue
	handed    chan handed       // batches for workers that it has reserved
	idle      atomic.Int64      // workers that are free and not reserved
	pace      distributor.Probe // of the probes that a router claims; owned by its distributor
	probing   atomic.Bool       // the next batch that a router claims is one
	onIdle    func()            // is called when there is one more
	unrouted  func() bool       // events wait for it
}

// New joins buffer and sink, which stay the caller's to close, after Run.
func New(b buffer.Queue, s sink.Sink, c Config) (*Pipeline, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	p := &Pipeline{
		config: c, buffer: b, sink: s, pause: pause{log: c.Log},
		health:  health{stalledAfter: max(time.Minute, 2*c.Lease), bufferErr: errStarting, sinkErr: errStarting},
		limiter: newLimiter(c), announced: make(chan struct{}, 1), onIdle: func() {}, unrouted: func() bool { return false },
		handed: make(chan handed, maxInFlight(c.Workers)), recovered: recoveries{wake: make(chan struct{}, 1)}, checks: make(chan struct{}, 1), reports: make(chan chan struct{}),
	}
	if l, ok := b.(logging); ok {
		l.SetLog(c.Log)
	}
	p.tracer = tracing.New(tracing.Config{
		Provider: c.Tracing.Provider, Pipeline: c.Name, Sink: c.Tracing.Sink, System: c.Tracing.System, Destination: c.Tracing.Destination,
		Attributes: c.Tracing.Attributes, Redact: c.Redact,
	})
	p.worker = delivery.NewWorker(s, b, delivery.Config{
		MaxAttempts: c.MaxAttempts, NeverBury: c.NeverBury, Ordered: c.Ordered, Backoff: c.Backoff, SendTimeout: c.SendTimeout, SendGrace: c.SendGrace,
		Observer: observer{c.Observer, p}, Redact: c.Redact, Log: c.Log, Tracer: p.tracer,
	})
	return p, nil
}

// Name is the pipeline's name.
func (p *Pipeline) Name() string { return p.config.Name }

// Limits are the current limits: the events of a batch, and the batches sent at once.
func (p *Pipeline) Limits() (batchSize, workers int) { return p.limiter.current() }

// Status asks the buffer.
func (p *Pipeline) Status(ctx context.Context) (buffer.Status, error) { return p.buffer.Status(ctx) }

// Ready returns nil while the pipeline can reach its database and its sink and makes progress; otherwise why
// not, a *NotReady. It makes none while MaxWaiting keeps fresh events from being claimed, nor if events wait and for a
// minute (two leases, if that is longer) batches were at best put back. A call of the sink that does not return makes it not ready,
// because the process needs a restart. A pipeline that is paused is ready while it can reach its database.
func (p *Pipeline) Ready() error { return withOutdated(p.ready(), p.config.Outdated) }

func (p *Pipeline) ready() error {
	if err := p.worker.Hung(); err != nil {
		return &NotReady{class: stalled, err: err}
	}
	if p.pause.paused.Load() {
		return p.health.databaseReady()
	}
	if err := p.worker.Kept(); errors.Is(err, buffer.ErrNoWrites) {
		return &NotReady{class: database, err: err}
	} else if err != nil {
		return &NotReady{class: stalled, err: err}
	}
	if err := p.worker.Unsettled(); err != nil {
		return &NotReady{class: database, err: err}
	}
	if err := p.worker.Outage(); err != nil && !p.health.outageOver() {
		return classifyOutage(err)
	}
	// When nothing waits any more, nobody knows whether the sink still refuses.
	if err := p.worker.Refusal(); err != nil && p.health.waits() {
		kind := ""
		if p.worker.AcceptedLately() {
			kind = buffer.KindSome
		}
		return &NotReady{class: refusing, kind: kind, err: err}
	}
	return p.health.ready(time.Now(), p.worker.LastOutage())
}

// Run moves events until ctx is done; then nothing more is claimed, and what is in flight is finished and
// settled. stop ends that too: a Send under way is cut off, and its batch put back or left to its lease. Run
// waits for a database or a sink that is unavailable. It returns nil if all that was claimed was also
// finished, otherwise an error that says of one batch what became of it.
//
// ctx must end no later than stop. A pipeline runs once.
func (p *Pipeline) Run(ctx, stop context.Context) error {
	defer p.reporter().start(stop)()
	if !waitReady(ctx, p.config.Log, "database", traceConnect(p.tracer, p.pause.check(p.buffer.Check, p.buffer)), p.health.buffer) {
		return nil
	}
	foundSink := func(err error) { p.health.sink(err, time.Now()) }
	if !waitReady(ctx, p.config.Log, "sink", p.worker.Check, foundSink) {
		return nil
	}
	p.warn(ctx)
	p.config.Log.InfoContext(ctx, "pipeline runs", p.logAttrs()...)
	defer p.config.Log.InfoContext(stop, "pipeline stopped")
	defer context.AfterFunc(ctx, p.drain)()
	d := distributor.New(tracedCounts{p.buffer, p.tracer}, distributor.Config{
		Schedule: p.config.Schedule, Eager: !p.config.OnSchedule, Poll: p.config.Poll, Listener: p.config.Listener, IdlePoll: p.config.IdlePoll, Ordered: p.config.Ordered, BatchSize: p.config.BatchSize,
		MaxBatches: p.config.MaxBatches, MaxWaiting: p.config.MaxWaiting, Workers: maxInFlight(p.config.Workers),
		Limits: p.limiter.limits, FreshWaits: p.freshWaits, Allow: p.pause.allow(p.worker.Allow), ProbeFull: p.worker.HoldsBad, Observer: observer{p.config.Observer, p}, Log: p.config.Log,
	})
	c := claimer.New(p.buffer, claimer.Config{Lease: p.config.Lease, Log: p.config.Log})
	var group errgroup.Group
	group.Go(func() error { return d.Run(ctx) })
	if p.config.Listener != nil {
		group.Go(func() error { p.config.Listener.Run(ctx); return nil })
	}
	if p.config.Routed {
		group.Go(func() error { p.followRouter(ctx, d.RecountDue); return nil })
	}
	group.Go(func() error { p.probeSink(ctx); return nil })
	group.Go(func() error { p.retryDeferred(ctx, d.RecountDue); return nil })
	for range maxInFlight(p.config.Workers) {
		group.Go(func() error { return p.serve(ctx, stop, d, c) })
	}
	return group.Wait()
}

// reporter reports what the pipeline does; that of a dead-letter hook has nobody to report to.
func (p *Pipeline) reporter() *reporter {
	to, ok := p.buffer.(buffer.RelayReporter)
	r := &reporter{to: to, version: p.config.Version, notices: &p.notices, requests: p.reports, probes: p.probes.Load, ready: p.ready, outdated: p.config.Outdated, unaccepted: &p.unaccepted, onUnaccepted: p.config.Unaccepted, waiting: p.health.countWaiting, redact: p.config.Redact, log: p.config.Log, written: p.health.reported}
	r.archive, _ = p.buffer.(buffer.ArchiveMemory)
	if ok {
		r.progress = &p.progress
	}
	return r
}

// drain releases the batches that wait for a slot or a rate limit, after drainGrace, because most
// sends take milliseconds.
func (p *Pipeline) drain() {
	time.AfterFunc(drainGrace, func() {
		p.limiter.slots.close()
		p.worker.Drain()
	})
}

// serve uses the distributor's tickets, one after the other.
func (p *Pipeline) serve(ctx, stop context.Context, d *distributor.Distributor, c *claimer.Claimer) error {
	if p.config.Routed {
		return p.serveRouted(ctx, stop, d, c)
	}
	for ticket := range d.Tickets() {
		if ctx.Err() != nil { // issued before the stop
			return nil
		}
		if err := p.use(ctx, stop, d, c, ticket); err != nil {
			return err
		}
	}
	return nil
}

// use uses a ticket. The error is what a stop leaves behind, which it must not conceal.
func (p *Pipeline) use(ctx, stop context.Context, d *distributor.Distributor, c *claimer.Claimer, ticket distributor.Ticket) error {
	p.limiter.begin()
	report, err := p.work(ctx, stop, c, ticket)
	p.limiter.end()
	if err != nil && ctx.Err() != nil {
		return err
	}
	d.Done(report)
	if p.config.Ordered && report.Ticket.Due && report.Events > 0 {
		d.RecountDue() // another part of the same batch may have waited for this one
	}
	return nil
}

// claim claims, up to limit events, or takes over what the ticket is for.
func claim(ctx context.Context, c *claimer.Claimer, ticket distributor.Ticket, limit int) (l *buffer.Lease, err error) {
	err = delivery.Guard(func() error {
		switch {
		case ticket.Suspect:
			l, err = c.TakeOver(ctx, buffer.DueSuspect)
		case ticket.Newest:
			l, err = c.TakeOver(ctx, buffer.DueNewest)
		case ticket.Single:
			l, err = c.TakeOver(ctx, buffer.DueSingle)
		case ticket.Smallest:
			l, err = c.TakeOver(ctx, buffer.DueSmallest)
		case ticket.Unsent:
			l, err = c.TakeOver(ctx, buffer.DueUnsent)
		case ticket.Due:
			l, err = c.TakeOver(ctx, buffer.DueRetry)
		default:
			l, err = c.Claim(ctx, limit)
		}
		return err
	})
	return l, err
}

// read reads a single event that was not read in time.
func (p *Pipeline) read(ctx context.Context, c *claimer.Claimer, l *buffer.Lease) {
	err := delivery.Guard(func() error {
		c.Read(ctx, l)
		return nil
	})
	delivery.LogPanic(ctx, p.config.Log, "reading a batch", err, "group_id", l.GroupID)
	for _, ofEvents := range []error{nil, buffer.ErrTooLarge, buffer.ErrKillsReader, buffer.ErrUnreadable} {
		if errors.Is(l.NotRead, ofEvents) {
			return
		}
	}
	p.health.takeOver(l.NotRead) // it waits, and is read again when it is taken over
}

// work uses one ticket: claim, send, settle. If the sink refused the batch and it was halved, the search for its bad events goes on with its parts. The error
// is about a batch that was not settled and has no other owner yet, or that a stop cut off. ctx ends when the ticket must not be used any more.
func (p *Pipeline) work(ctx, stop context.Context, c *claimer.Claimer, ticket distributor.Ticket) (distributor.Report, error) {
	report, done, err := p.workOnce(ctx, stop, c, ticket)
	if err == nil {
		report.Searched, err = p.search(ctx, stop, c, done, ticket.BatchSize)
	}
	return report, err
}

// search goes on after a batch: with the event that was cut off it, and with the parts of one that was halved. It reports whether it searched. The error is that of work.
func (p *Pipeline) search(ctx, stop context.Context, c *claimer.Claimer, done delivery.Report, batchSize int) (searched bool, err error) {
	if done.TriesOne {
		if _, done, err = p.workOnce(ctx, stop, c, distributor.Ticket{Due: true, Single: true, BatchSize: batchSize}); err != nil {
			return false, err
		}
	}
	if done.Halved == nil {
		return false, nil
	}
	if _, workers := p.limiter.current(); !p.worker.BeginSearch(done.Halved, workers) {
		return false, nil
	}
	defer p.worker.EndSearch()
	for ctx.Err() == nil && !p.pause.paused.Load() {
		if goesOn, _ := p.worker.Searching(); !goesOn {
			break
		}
		next, part, err := p.workOnce(ctx, stop, c, distributor.Ticket{Due: true, Smallest: true, BatchSize: batchSize})
		if err != nil {
			return true, err
		}
		if next.Events == 0 || !part.WasRefused { // nothing is due that was refused
			break
		}
	}
	return true, nil
}

// workOnce claims, sends and settles one batch.
func (p *Pipeline) workOnce(ctx, stop context.Context, c *claimer.Claimer, ticket distributor.Ticket) (report distributor.Report, done delivery.Report, err error) {
	report.Ticket = ticket
	pass := p.config.Gate.enter
	if ticket.Suspect { // it is taken over when it is alone, because what it leaves unfinished then counts
		pass = p.config.Gate.alone
	}
	leave, ok := pass(ctx)
	if !ok {
		return report, done, nil
	}
	defer leave()
	acquireSlot := delivery.AcquireSlot(p.limiter.slots.acquire)
	if ticket.Due { // it is not taken over ahead of its slot, as if it were new
		release, ok := p.limiter.slots.acquire(stop)
		if !ok {
			return report, done, nil
		}
		defer release()
		acquireSlot = nil
	}
	// Not ctx: a claim that a signal cuts off in mid-commit would stay there until its lease is over.
	began := time.Now()
	limit := p.limiter.fit(ticket.BatchSize)
	l, err := claim(stop, c, p.inTurn(ticket), limit)
	report.Took = time.Since(began)
	if ticket.Due || ticket.Suspect { // it says nothing of claims, which may fail for a reason of their own
		p.health.takeOver(err)
	} else {
		p.health.claim(err)
	}
	if err != nil {
		delivery.LogPanic(stop, p.config.Log, "claiming a batch", err)
		p.tracer.DatabaseFailed(stop, "claim", began, err)
		p.config.Log.WarnContext(stop, "claiming a batch failed", "error", err)
		report.Err = err
		return report, done, nil
	}
	if !ticket.Due && !ticket.Suspect {
		p.health.claimed(l != nil)
	}
	if l == nil {
		return report, done, nil
	}
	defer p.health.begin()()
	if ticket.Due && l.LeaseNo == 1 && len(l.Origins) == 0 {
		p.health.queue(-1)
	}
	if ticket.Suspect {
		p.config.Log.WarnContext(stop, "sending a batch alone that its last owners did not finish", "group_id", l.GroupID,
			"events", l.Len(), "first_id", l.LogID(l.FirstID), "unfinished", l.UnfinishedLeases-1)
	}
	p.config.Observer.Claimed(l, report.Took)
	report.Events = max(1, l.Len())
	report.Full = l.Len() >= limit || l.Cut
	report.Cut = report.Full && l.Len() < ticket.BatchSize
	l.More, l.Searched = !ticket.Due && report.Full, ticket.Smallest
	p.limiter.weigh(l)

	fresh := claimed{limit: limit, began: began, ended: time.Now()}
	if ticket.Due {
		fresh = claimed{}
	}
	leaseCtx, end := c.KeepAlive(stop, l)
	defer end()
	leaseCtx, span := p.tracer.Batch(leaseCtx, l, began, began.Add(report.Took))
	defer span.End()
	l.TraceID = tracing.SampledID(leaseCtx)
	p.read(leaseCtx, c, l)
	done, err = p.deliver(leaseCtx, stop, l, fresh, acquireSlot, leave)
	report.PutBack, report.DueIn, report.PassedOver = done.PutBack, done.DueIn, done.PassedOver
	return report, done, err
}

// inTurn returns the ticket for what is to be taken over now. The search for a bad event goes on with its own parts: they come before all that waits.
func (p *Pipeline) inTurn(ticket distributor.Ticket) distributor.Ticket {
	_, searchFirst := p.worker.Searching()
	ticket.Newest = ticket.Newest && p.worker.Refusal() != nil
	ticket.Smallest = ticket.Smallest || searchFirst && ticket.Due && !ticket.Suspect && !ticket.Single
	return ticket
}

// claimed is how a batch of fresh events was claimed; zero for one that was taken over.
type claimed struct {
	limit        int
	began, ended time.Time
}

// deliver sends and settles a leased batch; the error is that of work.
func (p *Pipeline) deliver(
	leaseCtx, stop context.Context, l *buffer.Lease, fresh claimed, acquireSlot delivery.AcquireSlot, leave func(),
) (done delivery.Report, err error) {
	events := l.Len()
	p.tracer.Link(leaseCtx, l)
	done, err = p.worker.Work(leaseCtx, stop, l, acquireSlot, leave)
	if done.PutBack || p.worker.Paused() {
		p.recovered.signal()
	}
	if fresh != (claimed{}) {
		p.limiter.record(stop, sample{
			limit: fresh.limit, events: events, claimed: fresh.began, ended: time.Now(),
			sent: done.Sent, took: fresh.ended.Sub(fresh.began) + done.Sent + done.Settled, answer: done.Answer,
		})
	}
	if err == nil {
		if done.Answer == delivery.Accepted && done.PutBack { // otherwise it is settled
			p.health.accepted()
			if p.health.sinkFailed() {
				p.checkSoon()
			}
		}
		if done.PutBack && stop.Err() != nil {
			err = fmt.Errorf("batch %s was put back unfinished: %w", l.GroupID, context.Cause(stop))
		}
		return done, err
	}
	p.tracer.Fail(leaseCtx, "not_finished", err.Error())
	p.config.Log.WarnContext(leaseCtx, "finishing a batch failed", "group_id", l.GroupID, "error", err)
	if errors.Is(err, buffer.ErrLeaseLost) || errors.Is(err, sink.ErrFenced) {
		err = nil // its new owner settles it
	}
	return done, err
}
