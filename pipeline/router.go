package pipeline

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Router claims the events of one buffer for several sinks, each of which is served by a pipeline on its queue
// (buffer.Router). Make one with NewRouter.
//
//	distributor ──tickets──▶ Route ──▶ queue of each sink ──announce──▶ its pipeline
type Router struct {
	config Config
	buffer buffer.Router
	sinks  map[string]*Pipeline
	health health
}

// routers is how many claims are routed at once: one is claimed while another is routed.
const routers = 2

// NewRouter returns a router to the pipelines of a buffer's sinks, by the names of those sinks. c is the configuration of the
// claims: Name, Schedule, OnSchedule, Poll, Listener, IdlePoll, BatchSize, MaxBatches, Lease and Log.
func NewRouter(b buffer.Router, sinks map[string]*Pipeline, c Config) (*Router, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if l, ok := b.(logging); ok {
		l.SetLog(c.Log)
	}
	return &Router{
		config: c, buffer: b, sinks: sinks,
		health: health{stalledAfter: max(time.Minute, 2*c.Lease), bufferErr: errStarting},
	}, nil
}

// Ready returns nil while events are claimed and routed; otherwise why not, a *NotReady.
func (r *Router) Ready() error { return r.health.ready(time.Now()) }

// Run routes events until ctx is done; then nothing more is claimed, and what was claimed is routed. It waits for a database
// that is unavailable. A router runs once.
func (r *Router) Run(ctx context.Context) error {
	if !waitReady(ctx, r.config.Log, "database", r.buffer.Check, r.health.buffer) {
		return nil
	}
	d := distributor.New(r.buffer, distributor.Config{
		Schedule: r.config.Schedule, Eager: !r.config.OnSchedule, Poll: r.config.Poll, Listener: r.config.Listener, IdlePoll: r.config.IdlePoll,
		BatchSize: r.config.BatchSize, MaxBatches: r.config.MaxBatches, MaxWaiting: r.config.MaxWaiting, Workers: routers,
		Limits: func() (batchSize, tickets int) { return r.config.BatchSize, routers },
		Allow:  r.allow, Observer: r, Log: r.config.Log,
	})
	var group errgroup.Group
	group.Go(func() error { return d.Run(ctx) })
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

// allow lets events be claimed while a sink has room for them. What waits for the others costs a ledger row a batch.
func (r *Router) allow(context.Context) int {
	for _, p := range r.sinks {
		if !p.health.full(p.config.MaxWaiting) {
			return routers
		}
	}
	return 0
}

// route uses one ticket. ctx is not the router's: a claim that a signal cuts off would wait until its lease is over.
func (r *Router) route(ctx context.Context, ticket distributor.Ticket) distributor.Report {
	report := distributor.Report{Ticket: ticket}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	began := time.Now()
	var routed *buffer.Routed
	err := delivery.Guard(func() (err error) {
		if ticket.Due {
			routed, err = r.buffer.RouteDue(ctx, r.config.Lease)
			return err
		}
		routed, err = r.buffer.Route(ctx, ticket.BatchSize, r.config.Lease)
		return err
	})
	report.Took = time.Since(began)
	if ticket.Due {
		r.health.takeOver(err)
	} else {
		r.health.claim(err)
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
	r.health.routed()
	for _, sink := range routed.Sinks {
		if p := r.sinks[sink]; p != nil { // otherwise another process serves it
			p.announce()
		}
	}
	report.Events = max(1, routed.Events)
	report.Full = routed.Events >= ticket.BatchSize
	return report
}

// routeTimeout bounds a claim and its route.
const routeTimeout = 30 * time.Second

// Counted and Backpressure make it the distributor's Observer.

// Counted takes a count of the backlog.
func (r *Router) Counted(b buffer.Backlog, fresh bool, err error) { r.health.counted(b, fresh, err) }

// Backpressure takes why nothing is claimed.
func (r *Router) Backpressure(err error) { r.health.backpressure(err) }

var _ distributor.Observer = (*Router)(nil)

// never is the schedule of a pipeline that claims nothing itself.
type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

// announce notes that a router has put a batch into the queue. It never blocks.
func (p *Pipeline) announce() {
	p.health.addDue(1)
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
