package pipeline

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Config of a pipeline. Only Name is required. A field that is zero has the default that its comment names.
type Config struct {
	// Name is unique in a process, the Pipeline of its buffer's configuration, and stays the same, because batches and dead letters are
	// stored under it: [a-z0-9_-]+.
	Name string
	// Schedule says when to count and fan out; every second when nil.
	Schedule cron.Schedule
	// OnSchedule sends fresh events on the schedule only. Otherwise the relay continues at once
	// while batches come back full (`eager`).
	OnSchedule bool
	// Poll claims fresh events between two distributions of the Schedule, too: set it unless events may wait for the
	// Schedule. Listener, which needs Poll and may be nil, says when (`wake`); without one the relay polls every few
	// milliseconds under load, and at IdlePoll otherwise.
	Poll     bool
	Listener Listener
	// IdlePoll is the interval of polls while nothing happens and there is no Listener; by default and at most a second.
	IdlePoll time.Duration
	// BatchSize is the events of a batch at the most; 1000. With AutoBatchSize their number is
	// found, by how long sends take, and BatchSize bounds it; 10,000.
	BatchSize     int
	AutoBatchSize bool
	// MaxBatches is the tickets one distribution may issue; 50.
	MaxBatches int
	// MaxWaiting is the batches that may wait for a retry, or for a delete after they were
	// delivered, before claiming stops; 1000.
	MaxWaiting int
	// Workers is the batches sent at once; 4. Half as many more, at least two, are claimed ahead or being
	// settled meanwhile. With AutoWorkers their number is found, and Workers bounds it; 32.
	Workers     int
	AutoWorkers bool
	// Lease is how long a silent worker keeps a batch; 30 s. Workers renew it, so it bounds only how late another process takes over.
	Lease time.Duration
	// MaxAttempts is how often an event may be refused; 10.
	MaxAttempts int
	// NeverBury: a refused event is retried for ever; for a dead-letter hook.
	NeverBury bool
	// Ordered keeps order by key; the buffer and the sink have to keep it too.
	Ordered bool
	// Backoff before a retry; 1 s, doubling, up to 5 min.
	Backoff delivery.Backoff
	// SendTimeout bounds one Send; 30 s.
	SendTimeout time.Duration
	// SendGrace is how long a Send may take to return after that, before its batch is given up; 10 s.
	SendGrace time.Duration
	// Gate is shared by all pipelines of the process, so that a batch that may kill it is alone; nil: the
	// pipeline is the only one.
	Gate *Gate
	// Routed: a Router claims for this pipeline, which takes over what is put into its queue; Schedule, Poll and Listener are
	// the router's.
	Routed bool
	// Version is the relay's, for operators who look at which relays run; may be "".
	Version string
	// Observer may be nil.
	Observer Observer
	// Redact removes secrets from the reasons that are stored with batches and dead letters; nil changes nothing.
	Redact func(text string) string
	// Outdated returns what of the configuration of the database, or of the sink, has changed since the process read it, "" for nothing. It gets
	// the class of why the pipeline is not ready, and is asked while it is not, every second; nil: nothing changes.
	Outdated func(class string) string
	// Unaccepted gets, every second, what the sink said last and since when it has accepted nothing; an empty text while it accepts events. For a
	// dead-letter hook, whose pipeline reports to no database; nil: nobody is told.
	Unaccepted func(text string, since time.Time)
	// Log may be nil: slog.Default.
	Log *slog.Logger
	// Tracing says how the work is traced; zero: not at all.
	Tracing Tracing
}

// Tracing is how a pipeline's work is traced: one OpenTelemetry trace a batch, with spans for its claim, each send and its settle, and
// links to the traces that its events bring in their header traceparent. The zero Tracing makes no spans, and costs nothing.
type Tracing struct {
	// Provider makes the spans, for example otel.GetTracerProvider(); nil: none. It belongs to the caller.
	Provider trace.TracerProvider
	// Sink is the name of one of several sinks; may be "".
	Sink string
	// System is the messaging.system of the semantic conventions, such as "nats"; "" for a sink that is no messaging system.
	System string
	// Destination is where the sink of a messaging system writes; it may contain {topic} and {key}.
	Destination string
	// Attributes are added to the span of each send.
	Attributes []attribute.KeyValue
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
	if c.Routed {
		c.Schedule, c.OnSchedule, c.Poll, c.Listener = never{}, true, false, nil
	}
	if c.Schedule == nil {
		c.Schedule = cron.Every(time.Second)
	}
	if c.Lease == 0 {
		c.Lease = 30 * time.Second
	}
	if c.Backoff == (delivery.Backoff{}) {
		c.Backoff = delivery.Backoff{Initial: time.Second, Max: 5 * time.Minute, Multiplier: 2}
	}
	if c.Gate == nil {
		c.Gate = NewGate()
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Redact == nil {
		c.Redact = func(text string) string { return text }
	}
	if c.Outdated == nil {
		c.Outdated = func(string) string { return "" }
	}
	if c.Unaccepted == nil {
		c.Unaccepted = func(string, time.Time) {}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Log = c.Log.With("pipeline", c.Name)
	return c
}

func (c Config) validate() error {
	if c.Name == "" {
		return errors.New("pipeline: the name is empty; expected one")
	}
	for _, n := range []int{c.BatchSize, c.MaxBatches, c.MaxWaiting, c.Workers, c.MaxAttempts, int(c.Lease), int(c.SendTimeout), int(c.SendGrace)} {
		if n < 0 {
			return fmt.Errorf("pipeline %s: a number or time is negative; expected 1 or more", c.Name)
		}
	}
	if c.Backoff.Initial <= 0 || c.Backoff.Max < c.Backoff.Initial || !(c.Backoff.Multiplier >= 1) { // also NaN
		return fmt.Errorf("pipeline %s: the backoff is %+v; expected 0 < initial <= max and multiplier >= 1", c.Name, c.Backoff)
	}
	return nil
}

// Observer receives what a pipeline does. Its methods are called by many goroutines and must be quick.
type Observer interface {
	// Claimed: a claim or take over that returned a batch took so long.
	Claimed(l *buffer.Lease, took time.Duration)
	// Sent and Settled are delivery.Observer's.
	Sent(l *buffer.Lease, took time.Duration)
	Settled(l *buffer.Lease, outcomes []buffer.Outcome, sent bool, took time.Duration)
}

type noObserver struct{}

func (noObserver) Claimed(*buffer.Lease, time.Duration)                         {}
func (noObserver) Sent(*buffer.Lease, time.Duration)                            {}
func (noObserver) Settled(*buffer.Lease, []buffer.Outcome, bool, time.Duration) {}

// observer is the Observer of distributor, claimer and worker.
type observer struct {
	Observer
	p *Pipeline
}

func (o observer) Backpressure(err error)   { o.p.health.backpressure(err) }
func (o observer) Recovered(address string) { o.p.recovered.add(address) }
func (o observer) Accepts()                 { o.p.recovered.accepts() }
func (o observer) Hanging(calls int)        { o.p.limiter.hang(calls) }

func (o observer) Counted(b buffer.Backlog, fresh bool, err error) {
	o.p.health.counted(b, fresh, err)
	if err == nil {
		o.p.worker.Counted(b)
		if o.p.health.mayBeOver() && o.p.worker.Outage() != nil {
			o.p.checkSoon()
		}
	}
	if b.Waiting > 0 {
		o.p.recovered.signal()
	}
	if err == nil && o.p.pause.set(b.Paused) {
		o.p.health.resumed()
	}
}

func (o observer) Sent(l *buffer.Lease, took time.Duration) {
	o.p.notices.sent(took)
	o.p.noticeAnswers()
	o.Observer.Sent(l, took)
}

func (o observer) Settled(l *buffer.Lease, outcomes []buffer.Outcome, sent bool, took time.Duration) {
	o.p.health.settled(l, outcomes, sent)
	if sent && o.p.health.sinkFailed() && slices.ContainsFunc(outcomes, func(one buffer.Outcome) bool { return one.Verdict == buffer.Delivered }) {
		o.p.checkSoon()
	}
	o.p.progress.settled(l, outcomes, time.Now().Add(-took)) // settling starts when the send is over
	if sent && isOutage(outcomes) {
		o.p.notices.sent(0) // it did not answer slowly, but not at all
	}
	if sent {
		o.p.unaccepted.settled(outcomes)
	}
	o.Observer.Settled(l, outcomes, sent, took)
}
