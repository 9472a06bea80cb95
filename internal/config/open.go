package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/retention"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/filesink"
	"github.com/outboxrelay/relay/sink/httpsink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/pgsink"
	"github.com/outboxrelay/relay/sink/redissink"
	"github.com/outboxrelay/relay/supervisor"
)

// Process is what a process adds to a pipeline's configuration.
type Process struct {
	// Owner names the holder of a lease in the ledger, for people.
	Owner string
	// Version is the relay's.
	Version string
	// Stdout is the output of the sink "stdout:".
	Stdout io.Writer
	// Gate is the process's; nil: the pipeline is the only one that runs.
	Gate *pipeline.Gate
	// Observer returns the observer of a sink, by its name, "" for a single one. Observer and Log may be nil.
	Observer func(sink string) pipeline.Observer
	Log      *slog.Logger
	// TracerProvider makes spans; nil: none are made.
	TracerProvider trace.TracerProvider
	// pools are those of Config.Open, by URL.
	pools map[string]*postgres.Pool
	// pipelines is how many Config.Open opens; 0: one.
	pipelines int
}

// Runtime is a pipeline that is ready to run.
type Runtime struct {
	Buffer buffer.Buffer
	// Sinks are its sinks in the order of the file; there is at least one.
	Sinks []RuntimeSink
	// Hooks are the dead-letter hooks: the pipeline's, if there is one, then those of its sinks.
	Hooks []RuntimeHook

	name string
	// router claims for several sinks; nil for a single one.
	router *pipeline.Router
	// supervisor is the database's; nil before Supervise, and on SQLite.
	supervisor *supervisor.Supervisor
	// cleaner deletes what was kept long enough; nil if all is kept for ever.
	cleaner *retention.Cleaner
}

// RuntimeHook is a dead-letter hook.
type RuntimeHook struct {
	sink.Sink
	// Name is "dead_letter.hook", with the name of one of several sinks and a dot before it if the hook is that sink's.
	Name   string
	Config *Sink

	pipeline *pipeline.Pipeline
}

// RuntimeSink is a sink and the pipeline that sends to it.
type RuntimeSink struct {
	*pipeline.Pipeline
	sink.Sink
	// Config is the pipeline's configuration as this sink sees it; see [Pipeline.PerSink].
	Config *Pipeline
}

// Close closes the sink. The pipeline must not run.
func (s RuntimeSink) Close() error { return s.Sink.Close() }

// Name is the pipeline's name.
func (o *Runtime) Name() string { return o.name }

// Close closes the buffer and the sinks. The pipeline must not run.
func (o *Runtime) Close() error {
	var errs []error
	for _, s := range o.Sinks {
		errs = append(errs, s.Close())
	}
	for _, h := range o.Hooks {
		errs = append(errs, h.Close())
	}
	if o.Buffer != nil {
		errs = append(errs, o.Buffer.Close())
	}
	return errors.Join(errs...)
}

// Run runs the pipelines of all sinks and of the dead-letter hooks, and deletes what was kept long enough. See [pipeline.Pipeline.Run].
func (o *Runtime) Run(ctx, stop context.Context) error {
	if o.cleaner == nil {
		return o.run(ctx, stop)
	}
	cleaning, end := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return o.cleaner.Run(cleaning) })
	err := o.run(ctx, stop)
	end()
	return errors.Join(err, group.Wait())
}

func (o *Runtime) run(ctx, stop context.Context) error {
	if len(o.Hooks) == 0 && o.router == nil {
		return o.Sinks[0].Run(ctx, stop)
	}
	var group errgroup.Group
	for _, h := range o.Hooks {
		group.Go(func() error { return h.pipeline.Run(ctx, stop) })
	}
	sinksCtx := ctx
	if o.router != nil { // what it has claimed when ctx ends is sent
		routed, cancel := context.WithCancel(stop)
		sinksCtx = routed
		group.Go(func() error {
			defer cancel()
			return o.router.Run(ctx)
		})
	}
	for _, s := range o.Sinks {
		group.Go(func() error { return s.Run(sinksCtx, stop) })
	}
	return group.Wait()
}

// Router is ready while events are routed; nil for a single sink.
func (o *Runtime) Router() *pipeline.Router { return o.router }

// Ready returns nil, or why events are not claimed, or why one of the sinks is not ready.
func (o *Runtime) Ready() error {
	if o.router == nil {
		return o.Sinks[0].Ready()
	}
	if err := o.router.Ready(); err != nil {
		return err
	}
	for _, s := range o.Sinks {
		if err := s.Ready(); err != nil {
			return fmt.Errorf("sink %s: %w", s.Config.SinkName, err)
		}
	}
	return nil
}

// Status asks the buffer.
func (o *Runtime) Status(ctx context.Context) (buffer.Status, error) { return o.Buffer.Status(ctx) }

// Limits are the current limits: the events of the largest batch, and the batches sent at once to all sinks.
func (o *Runtime) Limits() (batchSize, workers int) {
	for _, s := range o.Sinks {
		size, n := s.Limits()
		batchSize, workers = max(batchSize, size), workers+n
	}
	return batchSize, workers
}

// Open connects to nothing. errors.As finds [Errors] in the error: the mistakes that only a driver finds.
func (p *Pipeline) Open(process Process) (*Runtime, error) {
	o := &Runtime{name: p.Name}
	if err := p.open(o, process); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

func (p *Pipeline) open(o *Runtime, process Process) (err error) {
	var wrong Errors
	if o.Buffer, err = p.openBuffer(process.Owner, process.pools); err != nil {
		o.Buffer, wrong = nil, validationErrors(withPlace(p.Source.Place, err))
	}
	for _, one := range p.PerSink() {
		s, err := one.openSink(&one.Sink, o.Buffer, process)
		if err != nil {
			wrong = append(wrong, validationErrors(withPlace(one.Sink.Place, err))...)
			continue
		}
		o.Sinks = append(o.Sinks, RuntimeSink{Sink: s, Config: one})
	}
	hooks := p.hooks()
	for _, h := range hooks {
		s, err := h.of.openSink(h.sink, o.Buffer, process)
		if err != nil {
			wrong = append(wrong, validationErrors(withPlace(h.sink.Place, err))...)
			continue
		}
		o.Hooks = append(o.Hooks, RuntimeHook{Sink: s, Name: h.name, Config: h.sink})
	}
	if wrong != nil {
		return wrong
	}
	process.Gate = cmp.Or(process.Gate, pipeline.NewGate()) // one for all sinks and the hooks
	if err = p.join(o, process); err == nil {
		err = joinHooks(o, hooks, process)
	}
	if err == nil {
		o.cleaner, err = p.cleaner(o.Buffer, process.Log)
	}
	if err != nil {
		return withPlace(p.Place, err)
	}
	return nil
}

// cleaner returns what deletes old events of the archive and old dead letters; nil if all is kept for ever.
func (p *Pipeline) cleaner(b buffer.Buffer, log *slog.Logger) (*retention.Cleaner, error) {
	if p.Archive.Keep == 0 && p.DeadLetter.Keep == 0 {
		return nil, nil
	}
	keeps, ok := b.(buffer.Retention)
	if !ok {
		return nil, fmt.Errorf("archive.keep or dead_letter.keep is used with %s, which deletes nothing that it keeps", p.Source.Driver)
	}
	return retention.New(retention.Config{
		Buffer: keeps, Archive: p.Archive.Keep, Dead: p.DeadLetter.Keep, Log: cmp.Or(log, slog.Default()).With("pipeline", p.Name),
		Filter: buffer.DeadFilter{Notified: p.DeadLetter.Hook != nil, SinkNotified: p.Sinks != nil},
	})
}

// joinHooks makes the pipelines of the hooks.
func joinHooks(o *Runtime, hooks []configuredHook, process Process) (err error) {
	for i, h := range hooks {
		queue := o.Buffer.DeadLetterQueue()
		if h.of.SinkName != "" {
			queues, ok := o.Buffer.(buffer.SinkHooks)
			if !ok {
				return fmt.Errorf("sinks.dead_letter is used with %s, where all sinks share the pipeline's", h.of.Source.Driver)
			}
			queue = queues.SinkDeadLetterQueue(h.of.SinkName)
		}
		c := h.of.hookConfig(h, process)
		c.Unaccepted = o.noteHook(h)
		if o.Hooks[i].pipeline, err = pipeline.New(queue, o.Hooks[i].Sink, c); err != nil {
			return err
		}
	}
	return nil
}

// noteHook returns a function that has the pipeline whose dead letters a hook is notified of, the first of several, say that the hook accepts none.
func (o *Runtime) noteHook(h configuredHook) func(text string, since time.Time) {
	of := o.Sinks[0].Pipeline
	for _, s := range o.Sinks {
		if s.Config.SinkName == h.of.SinkName {
			of = s.Pipeline
		}
	}
	return func(text string, since time.Time) {
		if text != "" {
			text = h.name + " has accepted nothing since " + since.UTC().Format(time.RFC3339) + ": " + text
		}
		of.SetNotice(h.name, text)
	}
}

// join makes the pipelines of the sinks and, for several, their router.
func (p *Pipeline) join(o *Runtime, process Process) (err error) {
	c := p.pipelineConfig(process)
	c.Poll, c.Listener = p.wakes(o.Buffer, process.Log)
	if p.Source.Driver != "sqlite" {
		c.IdlePoll = idlePoll * time.Duration(max(1, process.pipelines))
	}
	if p.Sinks == nil {
		o.Sinks[0].Pipeline, err = pipeline.New(o.Buffer, o.Sinks[0].Sink, c)
		return err
	}
	router, ok := o.Buffer.(buffer.Router)
	if !ok {
		return fmt.Errorf("sinks is used with %s, which has a single sink", p.Source.Driver)
	}
	pipelines := map[string]*pipeline.Pipeline{}
	for i := range o.Sinks {
		s := &o.Sinks[i]
		one := s.Config.pipelineConfig(process)
		one.Routed, one.Log = true, cmp.Or(one.Log, slog.Default()).With("sink", s.Config.SinkName)
		if s.Pipeline, err = pipeline.New(router.Sink(s.Config.SinkName), s.Sink, one); err != nil {
			return err
		}
		pipelines[s.Config.SinkName] = s.Pipeline
		c.BatchSize = max(c.BatchSize, one.BatchSize)
	}
	c.AutoBatchSize, c.AutoWorkers = false, false
	o.router, err = pipeline.NewRouter(router, pipelines, c)
	return err
}

// Open opens all pipelines, or none and lists the mistakes of all; see [Pipeline.Open]. each returns what the
// process adds to the pipeline with a name.
func (c *Config) Open(each func(name string) Process) ([]*Runtime, error) {
	var (
		all   []*Runtime
		wrong Errors
	)
	pools := c.pools()
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		process := each(p.Name)
		process.pools, process.pipelines = pools, len(c.Pipelines)
		o, err := p.Open(process)
		if err != nil {
			wrong = append(wrong, validationErrors(err)...)
			continue
		}
		all = append(all, o)
	}
	if wrong == nil {
		return all, nil
	}
	errs := []error{wrong}
	for _, o := range all {
		errs = append(errs, o.Close())
	}
	return nil, errors.Join(errs...)
}

// CheckSources returns the mistakes that only the buffers' drivers find, for commands that open no sink. It connects
// to nothing. errors.As finds [Errors] in the error.
func (c *Config) CheckSources() error {
	var wrong Errors
	for i := range c.Pipelines {
		b, err := c.Pipelines[i].OpenBuffer("")
		if err != nil {
			wrong = append(wrong, validationErrors(err)...)
			continue
		}
		if err := b.Close(); err != nil {
			return err
		}
	}
	if wrong == nil {
		return nil
	}
	return wrong
}

// OpenBuffer opens the buffer alone, and connects to nothing. The caller closes it. errors.As finds [Errors] in the
// error: the mistakes that only the driver finds.
func (p *Pipeline) OpenBuffer(owner string) (buffer.Buffer, error) {
	b, err := p.openBuffer(owner, nil)
	return b, withPlace(p.Source.Place, err)
}

// openBuffer opens the buffer with a shared pool, if there is one for its URL.
func (p *Pipeline) openBuffer(owner string, pools map[string]*postgres.Pool) (buffer.Buffer, error) {
	s := &p.Source
	switch s.Driver {
	case "postgres":
		return postgres.Open(postgres.Config{
			URL: s.URL.Reveal(), Table: s.Table, Schema: s.Schema, Pipeline: p.Name, Owner: owner, Archive: p.Archive.Table, ArchiveOff: p.Archive.Off,
			Ordered: p.ordered(), Claim: buffer.ClaimMode(p.Claim), Wake: p.wake(), Custom: s.Custom,
			Sinks: p.routes(), Unmatched: buffer.Unmatched(p.Unmatched), SharedRate: p.sharesRate(), Supervisor: s.Supervisor.Policy(),
			Connections: p.connections(), Pool: pools[s.URL.Reveal()],
		})
	case "sqlite":
		return p.openSQLite(owner)
	}
	return nil, fmt.Errorf("source.url has the unknown driver %q", s.Driver)
}

// Migrate creates or upgrades the pipeline's tables and returns the names of the applied migrations. errors.As finds
// [Errors] in the error if the configuration is wrong.
func (p *Pipeline) Migrate(ctx context.Context) (applied []string, err error) {
	b, err := p.OpenBuffer("") // finds mistakes before it connects
	if err != nil {
		return nil, err
	}
	if err := b.Close(); err != nil {
		return nil, err
	}
	s := &p.Source
	switch s.Driver {
	case "postgres":
		return postgres.Migrate(ctx, s.URL.Reveal(), postgres.SchemaConfig{
			Table: s.Table, Schema: s.Schema, Archive: p.Archive.Table, ArchiveByDay: p.Archive.Partition != "", Notify: p.wake() != buffer.WakePoll,
			Stamped: p.stamped(), Custom: s.Custom.Is(),
		})
	case "sqlite":
		return p.migrateSQLite(ctx)
	}
	return nil, fmt.Errorf("source.url has the unknown driver %q", s.Driver)
}

// Rename gives the pipeline the buffer and the dead letters of one that had another name.
func (p *Pipeline) Rename(ctx context.Context, from string) (buffer.Renamed, error) {
	b, err := p.OpenBuffer("migrate")
	if err != nil {
		return buffer.Renamed{}, err
	}
	renamed, err := b.Rename(ctx, from)
	return renamed, errors.Join(err, b.Close())
}

// openSink opens the pipeline's sink or its hook.
func (p *Pipeline) openSink(s *Sink, b buffer.Buffer, process Process) (sink.Sink, error) {
	if d := s.registeredDriver(); d != nil {
		return p.openRegistered(d, s)
	}
	url := s.URL.Reveal()
	switch s.Driver {
	case "redis":
		return redissink.New(redissink.Config{
			URL: url, Mode: redissink.Mode(s.Redis.Mode),
			Stream: s.Redis.Stream, List: s.Redis.List, Channel: s.Redis.Channel, Queue: s.Redis.Queue, Class: s.Redis.Class, Retry: s.Redis.Retry,
			MaxLen: s.Redis.MaxLen, DedupeWindow: s.Redis.DedupeWindow,
			WaitReplicas: s.Redis.WaitReplicas, WaitTimeout: s.Redis.WaitTimeout,
			TLS: sink.TLS(s.TLS), SentinelPassword: s.Redis.SentinelPassword.Reveal(),
			ResendWithin: p.resendWithin(s),
		})
	case "nats":
		return natssink.New(natssink.Config{
			URL: url, Subject: s.NATS.Subject, Core: s.NATS.Core, Format: s.NATS.Format,
			Credentials: s.NATS.Credentials.Reveal(), NKey: s.NATS.NKey.Reveal(),
			ResendWithin: p.resendWithin(s), Ordered: p.ordered(), TLS: sink.TLS(s.TLS),
		})
	case "http":
		headers, secrets := reveal(s.HTTP.Headers), reveal(s.HTTP.Secrets)
		return httpsink.New(httpsink.Config{
			URL: url, ShownURL: s.URL.String(), Method: s.HTTP.Method, Headers: headers, Format: s.HTTP.Format,
			Timeout: s.HTTP.Timeout, TLS: sink.TLS(s.TLS),
			MaxBytes: int(s.HTTP.MaxBytes), Refused: s.HTTP.Refused, Unavailable: s.HTTP.Unavailable,
			Request: s.HTTP.Request, Results: s.HTTP.Results, ProgramSecrets: secrets, Gzip: s.HTTP.Gzip, Single: p.BatchSize == 1, LeavesOut: p.leavesOut(s),
			Rate: s.HTTP.Rate, Shared: s.bucket(b), Pipeline: p.bucketName(s), MaxInFlight: s.HTTP.MaxInFlight,
			Bearer: s.HTTP.Bearer.Reveal(), Basic: httpsink.Basic{User: s.HTTP.Basic.User, Password: s.HTTP.Basic.Password.Reveal()},
			OAuth2: httpsink.OAuth2{
				TokenURL: s.HTTP.OAuth2.TokenURL.Reveal(), ClientID: s.HTTP.OAuth2.ClientID, ClientSecret: s.HTTP.OAuth2.ClientSecret.Reveal(),
				Scopes: s.HTTP.OAuth2.Scopes, Audience: s.HTTP.OAuth2.Audience,
			},
			Sign: revealAll(s.HTTP.Sign.Secrets), Proxy: s.HTTP.Proxy.Reveal(), Secrets: slices.Concat(p.redaction.values(), s.URL.pathSecrets()),
		})
	case "postgres":
		return pgsink.New(pgsink.Config{URL: url, TLS: sink.TLS(s.TLS), Connections: p.Workers})
	case "file":
		return filesink.New(filesink.Config{URL: url}, process.Stdout)
	}
	return nil, fmt.Errorf("sink.url has the unknown driver %q", s.Driver)
}

func revealAll(secrets []Secret) (all []string) {
	for _, s := range secrets {
		all = append(all, s.Reveal())
	}
	return all
}

func reveal(secrets map[string]Secret) map[string]string {
	all := make(map[string]string, len(secrets))
	for name, s := range secrets {
		all[name] = s.Reveal()
	}
	return all
}

// bucket counts a shared rate in the buffer's database; nil if the rate is not shared.
func (s *Sink) bucket(b buffer.Buffer) buffer.TokenBucket {
	if !s.HTTP.RateShared {
		return nil
	}
	return b
}

// sharesRate reports whether a sink or a hook has a shared rate.
func (p *Pipeline) sharesRate() bool {
	return slices.ContainsFunc(p.PerSink(), func(one *Pipeline) bool { return one.Sink.HTTP.RateShared }) ||
		slices.ContainsFunc(p.hooks(), func(h configuredHook) bool { return h.sink.HTTP.RateShared })
}

// bucketName is the name of the sink's bucket. A colon cannot be part of a pipeline's name.
func (p *Pipeline) bucketName(s *Sink) string {
	name := p.Name
	if p.SinkName != "" {
		name += "/" + p.SinkName
	}
	if s == p.DeadLetter.Hook {
		name += ":hook"
	}
	return name
}

// pipelineConfig is the configuration of the pipeline itself.
func (p *Pipeline) pipelineConfig(process Process) pipeline.Config {
	var observer pipeline.Observer
	if process.Observer != nil && p.Sinks == nil { // a router has none
		observer = process.Observer(p.SinkName)
	}
	return pipeline.Config{
		Name: p.Name, Schedule: p.Schedule, OnSchedule: !p.Eager,
		BatchSize: p.BatchSize, AutoBatchSize: p.AutoBatchSize, MaxBatches: p.MaxBatches, MaxWaiting: p.MaxWaiting,
		Workers: p.Workers, AutoWorkers: p.AutoWorkers, Lease: p.Lease,
		MaxAttempts: p.Retry.MaxAttempts,
		Backoff:     p.backoff(),
		SendTimeout: p.Sink.sendTimeout(p.Workers), Ordered: p.ordered(),
		Gate: process.Gate, Version: process.Version, Observer: observer, Redact: p.redaction.text, Outdated: p.outdatedFor(&p.Sink), Log: process.Log,
		Tracing: p.Sink.tracing(process.TracerProvider, p.SinkName),
	}
}

// hookConfig is the configuration of a dead-letter hook's pipeline. It never buries a dead letter, and rejected
// ones do not stop it.
func (p *Pipeline) hookConfig(h configuredHook, process Process) pipeline.Config {
	c := pipeline.Config{
		Name: p.Name, BatchSize: p.BatchSize, MaxWaiting: math.MaxInt, Workers: 1, Lease: p.Lease, NeverBury: true,
		Backoff: p.backoff(), SendTimeout: h.sink.sendTimeout(1), Gate: process.Gate,
		Redact: p.redaction.text, Outdated: p.outdatedFor(h.sink), Log: process.Log,
		Tracing: h.sink.tracing(process.TracerProvider, h.name),
	}
	switch {
	case h.sink.HTTP.Format == binary:
		c.BatchSize = 1
	case p.AutoBatchSize:
		c.BatchSize = 0 // the default
	}
	c.Log = cmp.Or(c.Log, slog.Default()).With("to", "dead_letter.hook")
	if p.SinkName != "" {
		c.Log = c.Log.With("sink", p.SinkName)
	}
	return c
}

func (p *Pipeline) backoff() delivery.Backoff {
	return delivery.Backoff{Initial: p.Retry.Initial, Max: p.Retry.Max, Multiplier: p.Retry.Multiplier}
}

func (p *Pipeline) ordered() bool { return p.Order == "key" }

// stamped reports whether the configuration has no claims by range.
func (p *Pipeline) stamped() bool {
	return p.ordered() || p.Claim == string(buffer.ClaimStamp) || slices.ContainsFunc(p.Sinks, func(s RoutedSink) bool { return s.Order == "key" })
}

// resendWithin is the time after an unfinished send within which the same events may be sent again: after the lease
// and the longest delay of a retry, or after the longest lease of a suspect.
func (p *Pipeline) resendWithin(s *Sink) time.Duration {
	return max(p.Lease+p.Retry.Max, 5*p.Lease) + s.sendTimeout(p.Workers)
}

// sendTimeout includes the sink's own timeouts, whose errors say more, and the wait for the rate limit behind the
// other workers.
func (s *Sink) sendTimeout(workers int) time.Duration {
	const (
		base    = 30 * time.Second
		maxTurn = 10 * time.Minute
	)
	var turn time.Duration
	n := time.Duration(workers)
	if s.HTTP.Rate.Requests > 0 {
		turn = n * (s.HTTP.Rate.Per / time.Duration(s.HTTP.Rate.Requests))
	}
	if s.HTTP.MaxInFlight > 0 {
		turn += n / time.Duration(s.HTTP.MaxInFlight) * s.HTTP.Timeout
	}
	return base + s.HTTP.Timeout + s.Redis.WaitTimeout + min(turn, maxTurn)
}

// withPlace returns a driver's error as Errors with a place.
func withPlace(place Place, err error) error {
	if err == nil {
		return nil
	}
	return Errors{{Place: place, Text: oneLine(err.Error())}}
}

// validationErrors returns all Errors in errs, nil if there are none.
func validationErrors(errs ...error) Errors {
	var all Errors
	for _, err := range errs {
		var wrong Errors
		if errors.As(err, &wrong) {
			all = append(all, wrong...)
		}
	}
	return all
}
