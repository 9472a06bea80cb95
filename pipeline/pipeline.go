// Package pipeline joins one buffer to one sink: the only room where
// distributor, claimer and sink worker meet.
//
//	distributor ──tickets──▶ workers: claimer ─▶ delivery.Worker ──reports──▶ distributor
package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/robfig/cron/v3"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/claimer"
	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Buffer is all that a pipeline asks of a buffer.
type Buffer interface {
	distributor.Buffer
	claimer.Buffer
	delivery.Settler
	Check(ctx context.Context) error
	DeferredAddresses(ctx context.Context) ([]string, error)
	RetryNow(ctx context.Context, address string, limit int) (int, error)
	Status(ctx context.Context) (buffer.Status, error)
}

// Hook tells a sink of every dead letter: a pipeline of its own, whose buffer is
// the dead letters. What the sink refuses is tried again, for ever.
type Hook struct {
	Buffer Buffer
	Sink   sink.Sink
	// SendTimeout bounds one Send; the pipeline's when 0.
	SendTimeout time.Duration
}

// Observer hears what a pipeline does; see delivery.Observer.
type Observer interface {
	delivery.Observer
	// Claimed: a claim or take over that brought a batch took so long.
	Claimed(b *buffer.Lease, took time.Duration)
}

// Config of a pipeline. The zero value of every field but Name has the default
// that CONTRACT names.
type Config struct {
	// Name is unique in a process; [a-z0-9_-]+.
	Name string
	// Schedule says when to count and fan out; every second when nil.
	Schedule cron.Schedule
	// OnSchedule sends fresh events on the schedule only; else the relay goes
	// on at once while batches come back full (`eager`).
	OnSchedule bool
	// Poll claims fresh events between two distributions too, and Bell, which needs
	// Poll and may be nil, says when (`wake`).
	Poll bool
	Bell Bell
	// BatchSize is the events of a batch at the most; 1000. AutoBatchSize: how many
	// they are is found, by how long sends take, and BatchSize bounds it; 10,000.
	BatchSize     int
	AutoBatchSize bool
	// MaxBatches is the tickets one distribution may hand out; 50.
	MaxBatches int
	// MaxWaiting is the batches that may wait for a retry, or for a delete
	// after they were delivered, before claiming stops; 1000.
	MaxWaiting int
	// Workers is the batches sent at once; 4. Half as many more, at least two, are
	// claimed ahead or being settled meanwhile. AutoWorkers: how many are sent at once
	// is found, and Workers bounds it; 32.
	Workers     int
	AutoWorkers bool
	// Lease is how long a silent worker keeps a batch; 30 s.
	Lease time.Duration
	// MaxAttempts is how often an event may be refused; 10.
	MaxAttempts int
	// Ordered keeps order by key; the buffer and the sink have to keep it too.
	Ordered bool
	// Backoff before a retry; 1 s, doubling, up to 5 min.
	Backoff delivery.Backoff
	// SendTimeout bounds one Send; 30 s.
	SendTimeout time.Duration
	// Hook hears of every dead letter; nil: nobody does.
	Hook *Hook
	// Observer may be nil.
	Observer Observer
	// Log may be nil: slog.Default.
	Log *slog.Logger

	// told: this is the pipeline of a hook.
	told bool
}

func (c Config) withDefaults() Config {
	def := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	if c.AutoBatchSize {
		def(&c.BatchSize, 10_000)
	}
	if c.AutoWorkers {
		def(&c.Workers, 32)
	}
	def(&c.BatchSize, 1000)
	def(&c.MaxBatches, 50)
	def(&c.MaxWaiting, 1000)
	def(&c.Workers, 4)
	def(&c.MaxAttempts, 10)
	if c.Schedule == nil {
		c.Schedule = cron.Every(time.Second)
	}
	if c.Lease == 0 {
		c.Lease = 30 * time.Second
	}
	if c.Backoff == (delivery.Backoff{}) {
		c.Backoff = delivery.Backoff{Initial: time.Second, Max: 5 * time.Minute, Multiplier: 2}
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if !c.told {
		c.Log = c.Log.With("pipeline", c.Name)
	}
	return c
}

func (c Config) validate() error {
	if c.Name == "" {
		return errors.New("pipeline: a name is required")
	}
	if c.BatchSize < 0 || c.MaxBatches < 0 || c.MaxWaiting < 0 || c.Workers < 0 || c.MaxAttempts < 0 || c.Lease < 0 || c.SendTimeout < 0 {
		return fmt.Errorf("pipeline %s: a negative number, at least 1 was expected", c.Name)
	}
	if c.Backoff.Initial <= 0 || c.Backoff.Max < c.Backoff.Initial || !(c.Backoff.Multiplier >= 1) { // also NaN
		return fmt.Errorf("pipeline %s: backoff %+v, 0 < initial <= max and multiplier >= 1 were expected", c.Name, c.Backoff)
	}
	return nil
}

type nobody struct{}

func (nobody) Claimed(*buffer.Lease, time.Duration)                   {}
func (nobody) Sent(*buffer.Lease, time.Duration)                      {}
func (nobody) Settled(*buffer.Lease, []buffer.Outcome, time.Duration) {}

// Pipeline moves events from one buffer to one sink. Make one with New.
type Pipeline struct {
	config Config
	buffer Buffer
	sink   sink.Sink
	worker *delivery.Worker
	health health
	back   addresses
	flow   *flow
	hook   *Pipeline // nil: there is none
}

// New joins buffer and sink, which stay the caller's to close, after Run.
func New(buffer Buffer, s sink.Sink, c Config) (*Pipeline, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	p := &Pipeline{
		config: c, buffer: buffer, sink: s,
		health: health{stalledAfter: max(time.Minute, 2*c.Lease), bufferErr: errStarting},
		back:   addresses{news: make(chan struct{}, 1)},
		flow:   newFlow(c),
	}
	p.worker = delivery.NewWorker(s, buffer, delivery.Config{
		MaxAttempts: c.MaxAttempts, NeverBury: c.told, Ordered: c.Ordered, Backoff: c.Backoff, SendTimeout: c.SendTimeout,
		Turn: p.flow.turn, Back: p.back.add, Observer: observer{c.Observer, &p.health}, Log: c.Log,
	})
	if c.Hook == nil {
		return p, nil
	}
	var err error
	p.hook, err = New(c.Hook.Buffer, c.Hook.Sink, c.ofHook())
	return p, err
}

// ofHook is the configuration of the hook's pipeline. However many letters the hook
// refuses, the others are told.
func (c Config) ofHook() Config {
	size := c.BatchSize
	if c.AutoBatchSize {
		size = 0 // the usual
	}
	return Config{
		Name: c.Name, BatchSize: size, MaxWaiting: math.MaxInt, Workers: 1, Lease: c.Lease,
		Backoff: c.Backoff, SendTimeout: cmp.Or(c.Hook.SendTimeout, c.SendTimeout), Log: c.Log.With("to", "dead_letter.hook"), told: true,
	}
}

// Name is the pipeline's name.
func (p *Pipeline) Name() string { return p.config.Name }

// Limits are the limits in force: the events of a batch, and the batches sent at once.
func (p *Pipeline) Limits() (batchSize, workers int) { return p.flow.inForce() }

// Status asks the buffer.
func (p *Pipeline) Status(ctx context.Context) (buffer.Status, error) { return p.buffer.Status(ctx) }

// Ready returns nil while the pipeline can reach its database and its sink and
// gets on; else why not. It does not get on while MaxWaiting keeps fresh events
// from being claimed, nor when events wait and for a minute (two leases, if that
// is longer) batches were at best put back.
func (p *Pipeline) Ready() error {
	if err := p.worker.Outage(); err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	return p.health.ready(time.Now())
}

// Run moves events until ctx is done; then nothing more is claimed, and what is
// in flight is finished and settled. stop ends that too: a Send under way is cut
// off, and its batch put back or left to its lease. A database or a sink that is
// away is waited for. Run returns nil when all that was claimed was also finished,
// else an error that says of one batch what became of it.
//
// ctx must end no later than stop.
func (p *Pipeline) Run(ctx, stop context.Context) error {
	if p.hook == nil {
		return p.run(ctx, stop)
	}
	// Side by side from the start: neither waits for the other's sink.
	var both errgroup.Group
	both.Go(func() error { return p.run(ctx, stop) })
	both.Go(func() error { return p.hook.run(ctx, stop) })
	return both.Wait()
}

func (p *Pipeline) run(ctx, stop context.Context) error {
	if !p.await(ctx, "database", p.buffer.Check, p.health.buffer) || !p.await(ctx, "sink", p.sink.Check, p.health.sink) {
		return nil
	}
	p.warn(ctx)
	p.config.Log.InfoContext(ctx, "pipeline runs", p.ways()...)
	defer p.config.Log.InfoContext(stop, "pipeline stopped")

	draining, drain := context.WithCancel(context.WithoutCancel(ctx))
	defer drain()
	stop = sink.WithDrain(stop, draining)
	defer context.AfterFunc(ctx, func() { p.flow.stop(drain) })()
	d := distributor.New(p.buffer, distributor.Config{
		Schedule: p.config.Schedule, Eager: !p.config.OnSchedule, Poll: p.config.Poll, Bell: p.config.Bell, BatchSize: p.config.BatchSize,
		MaxBatches: p.config.MaxBatches, MaxWaiting: p.config.MaxWaiting, Workers: inHand(p.config.Workers),
		Limits: p.flow.limits, Allow: p.worker.Allow, Looked: p.health.looked, Held: p.health.held, Log: p.config.Log,
	})
	c := claimer.New(p.buffer, claimer.Config{
		Lease: p.config.Lease, Claimed: p.config.Observer.Claimed, Log: p.config.Log,
	})
	var group errgroup.Group
	group.Go(func() error { return d.Run(ctx) })
	if p.config.Bell != nil {
		group.Go(func() error { p.config.Bell.Run(ctx); return nil })
	}
	group.Go(func() error { p.watchSink(ctx); return nil })
	group.Go(func() error { p.wake(ctx, d.Wake); return nil })
	for range inHand(p.config.Workers) {
		group.Go(func() error {
			for ticket := range d.Tickets() {
				if ctx.Err() != nil { // handed out, and then told to stop
					return nil
				}
				p.flow.taken()
				report, err := p.work(stop, c, ticket)
				p.flow.left()
				if err != nil && ctx.Err() != nil {
					return err // a stop must not leave unsaid what it leaves behind
				}
				d.Done(report)
				if p.config.Ordered && report.Ticket.Due && report.Events > 0 {
					d.Wake() // another part of the same batch may have waited for this one
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// work uses one ticket: claim, send, settle. The error is about a batch that was
// not settled and has no other owner yet, or that a stop cut off.
func (p *Pipeline) work(stop context.Context, c *claimer.Claimer, ticket distributor.Ticket) (distributor.Report, error) {
	report, began := distributor.Report{Ticket: ticket}, time.Now()
	turn := stop
	if ticket.Due {
		// A take over counts as a start, and three that end without a word make a batch
		// one that kills its workers. So it is not taken over ahead: whoever does so sends.
		done, ok := p.flow.turn(stop)
		if !ok {
			return report, nil
		}
		defer done()
		turn = context.WithValue(stop, hasTurn{}, true)
	}
	// Not ctx: a claim that a signal cuts off in mid-commit would lie there
	// until its lease is over.
	b, err := c.Claim(stop, ticket.BatchSize, ticket.Due)
	report.Took = time.Since(began)
	p.health.claim(err)
	if err != nil {
		p.config.Log.WarnContext(stop, "cannot claim a batch", "error", err)
		report.Err = err
		return report, nil
	}
	if b == nil {
		return report, nil
	}
	claimed := time.Now()
	report.Events = max(1, len(b.Events))
	report.Full = len(b.Events) == ticket.BatchSize

	held, release := c.Hold(turn, b)
	defer release()
	done, err := p.worker.Work(held, stop, b)
	report.PutBack, report.DueIn = done.PutBack, done.DueIn
	if !ticket.Due {
		p.flow.hear(stop, heard{
			limit: ticket.BatchSize, events: len(b.Events), claimed: began, ended: time.Now(),
			sent: done.Sent, took: claimed.Sub(began) + done.Sent + done.Settled, news: newsOf(done.SendErr, done.Sent > 0),
		})
	}
	if err == nil {
		if report.PutBack && stop.Err() != nil {
			err = fmt.Errorf("batch %s was put back unfinished: %w", b.GroupID, context.Cause(stop))
		}
		return report, err
	}
	p.config.Log.WarnContext(stop, "a batch could not be finished", "group_id", b.GroupID, "error", err)
	if errors.Is(err, buffer.ErrLeaseLost) || errors.Is(err, sink.ErrFenced) {
		err = nil // its new owner settles it
	}
	return report, err
}
