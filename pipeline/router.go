package pipeline

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/claimer"
	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Router claims the events of one buffer for several sinks, each of which is served by a pipeline on its queue
// (buffer.Router). Make one with NewRouter.
//
//	distributor ──tickets──▶ Route ──▶ a free worker of each sink
//	                           └─────▶ the queue of a sink without one ──announce──▶ its pipeline
type Router struct {
	config Config
	buffer buffer.Router
	sinks  map[string]*Pipeline
	health health
	pause  pause
	tracer *tracing.Tracer // nil: no spans
	// wanted receives when a sink has a worker free.
	wanted chan struct{}
	// putBack: since the last batch that was routed, one was put back because it fails for its own data.
	putBack atomic.Bool

	mu     sync.Mutex
	weight weight
}

// routers is how many claims are routed at once: one is claimed while another is routed.
const routers = 2

// NewRouter returns a router to the pipelines of a buffer's sinks, by the names of those sinks. c is the configuration of the
// claims: Name, Schedule, OnSchedule, Poll, Listener, IdlePoll, BatchSize, MaxBatches, Lease, Version, Redact, Log and the provider of Tracing.
func NewRouter(b buffer.Router, sinks map[string]*Pipeline, c Config) (*Router, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if l, ok := b.(logging); ok {
		l.SetLog(c.Log)
	}
	r := &Router{
		config: c, buffer: b, sinks: sinks, wanted: make(chan struct{}, 1), pause: pause{log: c.Log},
		health: health{stalledAfter: max(time.Minute, 2*c.Lease), bufferErr: errStarting},
		tracer: tracing.New(tracing.Config{Provider: c.Tracing.Provider, Pipeline: c.Name, Redact: c.Redact}),
	}
	for _, p := range sinks {
		p.onIdle = r.onIdle
		if !c.OnSchedule { // otherwise they wait for the schedule
			p.unrouted = r.health.claimable
		}
	}
	return r, nil
}

// Ready returns nil while events are claimed and routed, or paused; otherwise why not, a *NotReady.
func (r *Router) Ready() error { return withOutdated(r.notReady(), r.config.Outdated) }

func (r *Router) notReady() error {
	if r.pause.paused.Load() {
		return r.health.databaseReady()
	}
	return r.health.ready(time.Now(), nil)
}

// Run routes events until ctx is done; then nothing more is claimed, and what was claimed is routed. It waits for a database
// that is unavailable. A router runs once.
func (r *Router) Run(ctx context.Context) error {
	to, _ := r.buffer.(buffer.RelayReporter)
	archive, _ := r.buffer.(buffer.ArchiveMemory)
	notices := &notices{}
	defer (&reporter{to: to, archive: archive, version: r.config.Version, notices: notices, ready: r.notReady, outdated: r.config.Outdated, onUnaccepted: r.config.Unaccepted, redact: r.config.Redact, log: r.config.Log, written: r.health.reported}).start(ctx)()
	if !waitReady(ctx, r.config.Log, "database", traceConnect(r.tracer, r.pause.check(r.ready, r.buffer)), r.health.buffer) {
		return nil
	}
	d := distributor.New(tracedCounts{r.buffer, r.tracer}, distributor.Config{
		Schedule: r.config.Schedule, Eager: !r.config.OnSchedule, Poll: r.config.Poll, Listener: r.config.Listener, IdlePoll: r.config.IdlePoll,
		BatchSize: r.config.BatchSize, MaxBatches: r.config.MaxBatches, MaxWaiting: r.config.MaxWaiting, Workers: routers,
		Limits: func() (batchSize, tickets int) { return r.config.BatchSize, routers },
		Allow:  r.pause.allow(r.allow), ProbeFull: r.putBack.Load, Observer: r, Log: r.config.Log,
	})
	var group errgroup.Group
	group.Go(func() error { return d.Run(ctx) })
	group.Go(func() error { return r.tend(ctx, notices) })
	if r.config.Listener != nil {
		group.Go(func() error { r.config.Listener.Run(ctx); return nil })
	}
	for range routers {
		group.Go(func() error {
			for ticket := range d.Tickets() {
				d.Done(r.route(context.WithoutCancel(ctx), ticket))
			}
			return nil
		})
	}
	return group.Wait()
}

// maxWait is how long allow waits for a free worker.
const maxWait = 250 * time.Millisecond

// allow lets events be claimed while a sink wants a batch, and waits for that a moment; or one batch, if it is time for a probe. What the
// others get then waits in their queues, and costs a ledger row a batch.
func (r *Router) allow(ctx context.Context) int {
	wait := time.NewTimer(maxWait)
	defer wait.Stop()
	for {
		if r.anyWants() {
			return routers
		}
		if r.probe(time.Now()) {
			return 1
		}
		select {
		case <-ctx.Done():
			return 0
		case <-wait.C:
			return 0
		case <-r.wanted:
		}
	}
}

// anyWants reports whether a sink wants a batch.
func (r *Router) anyWants() bool {
	for _, p := range r.sinks {
		if p.wants() {
			p.pace.Reset()
			return true
		}
	}
	return false
}

// probe reports whether a batch is claimed as a probe. It is one for every sink that is due for one.
func (r *Router) probe(now time.Time) (due bool) {
	for _, p := range r.sinks {
		due = p.takeProbe(now) || due
	}
	return due
}

func (r *Router) onIdle() {
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

// fit returns how many events a claim may take of limit, as limiter.fit does.
func (r *Router) fit(limit int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.weight.fit(limit)
}

func (r *Router) weigh(routed *buffer.Routed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.weight.record(routed.Events, routed.Bytes)
}

// route uses one ticket. ctx is not the router's: a claim that a signal cuts off would wait until its lease is over.
func (r *Router) route(ctx context.Context, ticket distributor.Ticket) distributor.Report {
	report := distributor.Report{Ticket: ticket}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	var (
		routed   *buffer.Routed
		began    = time.Now()
		limit    = r.fit(ticket.BatchSize)
		reserved = map[string]int{}
	)
	err := delivery.Guard(func() (err error) {
		if ticket.Due {
			routed, err = r.buffer.RouteDue(ctx, r.config.Lease)
			return err
		}
		routed, err = r.buffer.Route(ctx, limit, r.config.Lease, func(sink string) bool {
			p := r.sinks[sink]
			if p == nil || !p.reserve() {
				return false
			}
			reserved[sink]++
			return true
		})
		return err
	})
	report.Took = time.Since(began)
	r.tracer.DatabaseFailed(ctx, "claim", began, err)
	if !ticket.Due {
		for _, p := range r.sinks { // a probe that had nothing for its sink is over
			p.probing.Store(false)
		}
	}
	if err == nil && routed != nil {
		for _, l := range routed.Leases {
			reserved[l.Sink]--
			r.sinks[l.Sink].handOver(l.Lease, began)
		}
	}
	for sink, n := range reserved { // for batches that became none
		r.sinks[sink].release(n)
	}
	if ticket.Due {
		r.health.takeOver(err)
	} else {
		r.health.claim(err)
		if err == nil {
			r.health.claimed(routed != nil)
		}
	}
	if err != nil {
		delivery.LogPanic(ctx, r.config.Log, "routing a batch", err)
		r.config.Log.WarnContext(ctx, "routing a batch failed", "error", err)
		report.Err = err
		return report
	}
	if routed == nil {
		return report
	}
	if routed.PutBack != nil {
		r.putBack.Store(true)
		r.config.Log.WarnContext(ctx, "routing a batch failed, will retry", "events", routed.Events, "error", routed.PutBack)
		report.Events, report.PutBack, report.DueIn = max(1, routed.Events), true, time.Second
		return report
	}
	if len(routed.Sinks) > 0 {
		r.putBack.Store(false)
	}
	r.health.routed()
	for _, sink := range routed.Sinks {
		if p := r.sinks[sink]; p != nil { // otherwise another process serves it
			p.announce()
		}
	}
	r.weigh(routed)
	report.Events = max(1, routed.Events)
	report.Full = routed.Events >= limit
	report.Cut = report.Full && routed.Events < ticket.BatchSize
	return report
}

// routeTimeout bounds a claim and its route.
const routeTimeout = 30 * time.Second

// Counted and Backpressure make it the distributor's Observer.

// Counted takes a count of the backlog.
func (r *Router) Counted(b buffer.Backlog, fresh bool, err error) {
	r.health.counted(b, fresh, err)
	if err == nil && r.pause.set(b.Paused) {
		r.health.resumed()
	}
}

// Backpressure takes why nothing is claimed.
func (r *Router) Backpressure(err error) { r.health.backpressure(err) }

var _ distributor.Observer = (*Router)(nil)

// never is the schedule of a pipeline that claims nothing itself.
type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

// announce notes that a router has put a batch into the queue. It never blocks.
func (p *Pipeline) announce() {
	p.health.queue(1)
	select {
	case p.announced <- struct{}{}:
	default:
	}
}

// followRouter counts the due batches after each announcement.
func (p *Pipeline) followRouter(ctx context.Context, recount func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.announced:
			recount()
		}
	}
}

// handed is a batch that a router has claimed for this pipeline.
type handed struct {
	*buffer.Lease
	began, ended time.Time // of the claim
}

// wants reports whether a router should claim for this pipeline: a worker is free, and it takes fresh events.
func (p *Pipeline) wants() bool { return p.idle.Load() > 0 && p.takesFresh() }

// takesFresh reports whether the next worker that is free should get fresh events: the pipeline is not paused, its queue is empty but for retries, and the sink
// takes any number of batches. A sink that is away and has an empty queue needs a batch too, as its half-open probe: the one that found it away may have
// been sent by another process, or deleted by the application. One that refuses everything needs a fresh batch whenever none is due: those that it
// refused may be bad, and only another one shows that it accepts events.
func (p *Pipeline) takesFresh() bool {
	takesAll, _ := p.worker.TakesAll()
	return !p.pause.paused.Load() && !p.health.full(p.config.MaxWaiting) && (takesAll || !p.health.waits() || p.worker.Refusal() != nil)
}

// freshWaits reports whether events wait that no worker has had yet: in the queue, or for a router.
func (p *Pipeline) freshWaits() bool {
	return p.health.isQueued() || p.unrouted() && p.takesFresh()
}

// takeProbe reports whether a batch should be claimed for this pipeline although it wants none, because those that wait for their own data may
// be all that keeps it from wanting one. Batches that are due do not matter: they may be the same bad ones. The next batch is then the probe.
func (p *Pipeline) takeProbe(now time.Time) bool {
	if p.pause.paused.Load() || p.idle.Load() <= 0 || !p.pace.Due(now) || !p.worker.HoldsBad() {
		return false
	}
	p.pace.Use(now)
	p.probing.Store(true)
	return true
}

// reserve reserves a free worker for a batch that a router is about to claim. A half-open probe comes from the queue, when it is time for it, and so does what is
// sent and searched one by one. A
// probe of takeProbe does not: it would wait there behind the bad ones.
func (p *Pipeline) reserve() bool {
	_, atOnce := p.worker.TakesAll()
	if probing := p.probing.Swap(false); p.pause.paused.Load() || !probing && (!p.wants() || !atOnce) {
		return false
	}
	if p.idle.Add(-1) >= 0 {
		return true
	}
	p.idle.Add(1)
	return false
}

// release gives back reserved workers.
func (p *Pipeline) release(n int) {
	if n > 0 {
		p.idle.Add(int64(n))
		p.onIdle()
	}
}

// handOver gives a batch to a reserved worker. It never blocks.
func (p *Pipeline) handOver(l *buffer.Lease, began time.Time) {
	p.config.Observer.Claimed(l, time.Since(began))
	p.limiter.weigh(l)
	p.handed <- handed{l, began, time.Now()}
}

// serveRouted is serve for a pipeline with a router.
func (p *Pipeline) serveRouted(ctx, stop context.Context, d *distributor.Distributor, c *claimer.Claimer) error {
	tickets := d.Tickets()
	for {
		p.idle.Add(1)
		p.onIdle()
		select {
		case h := <-p.handed: // the router has reserved this worker, or one like it
			if err := p.workHanded(ctx, stop, c, h); err != nil && ctx.Err() != nil {
				return err
			}
			continue
		case ticket, ok := <-tickets:
			p.idle.Add(-1)
			if !ok || ctx.Err() != nil {
				return p.workRest(ctx, stop, c)
			}
			if err := p.use(ctx, stop, d, c, ticket); err != nil {
				return err
			}
		}
	}
}

// workRest works on what was handed over until the router ended, which is before ctx is done.
func (p *Pipeline) workRest(ctx, stop context.Context, c *claimer.Claimer) error {
	for {
		select {
		case h := <-p.handed:
			if err := p.workHanded(ctx, stop, c, h); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// workHanded sends and settles a batch that a router has claimed.
func (p *Pipeline) workHanded(ctx, stop context.Context, c *claimer.Claimer, h handed) error {
	p.limiter.begin()
	defer p.limiter.end()
	done, err := p.workLease(stop, c, h)
	if err == nil {
		_, err = p.search(ctx, stop, c, done, p.config.BatchSize)
	}
	return err
}

// workLease is the part of workHanded that has the lease.
func (p *Pipeline) workLease(stop context.Context, c *claimer.Claimer, h handed) (done delivery.Report, err error) {
	defer p.health.begin()()
	leaseCtx, end := c.KeepAlive(stop, h.Lease)
	defer end()
	leave, ok := p.config.Gate.enter(stop)
	if !ok {
		return done, context.Cause(stop)
	}
	defer leave()
	leaseCtx, span := p.tracer.Batch(leaseCtx, h.Lease, h.began, h.ended)
	defer span.End()
	return p.deliver(leaseCtx, stop, h.Lease, claimed{limit: p.config.BatchSize, began: h.began, ended: time.Now()}, delivery.AcquireSlot(p.limiter.slots.acquire), leave)
}
