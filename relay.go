// Package relay runs the pipelines of a relay.yaml inside a Go program, as the command relay runs them in a process of
// its own.
//
//	r, err := relay.Open("relay.yaml", relay.Options{})
//	if err != nil {
//		return err // every mistake of the file, one a line: file:line:column: what is wrong; expected what
//	}
//	defer r.Close()
//	mux.Handle("/relay/", http.StripPrefix("/relay", r.Handler())) // probes, metrics, status
//	err = r.Run(ctx)                                               // until ctx ends
//
// docs/embedding.md of this module explains when a relay of its own is the better choice, and what differs. An application
// that only inserts events needs none of this: see outbox/pgoutbox. A pipeline of Go values instead of a file is
// package pipeline; a sink of one's own is sink.Register.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/engine"
)

// Options are what a program adds to a relay.yaml. The zero Options are valid.
type Options struct {
	// Text is the configuration itself, for a program that embeds it; the path is then only its name in messages. Nil
	// reads the file at the path. Open does not keep it.
	Text []byte
	// Log receives what the relay logs, with the secrets of the configuration replaced by ***. Nil means slog.Default().
	// The section log of the file has no effect.
	Log *slog.Logger
	// Stdout is where the sink "stdout:" writes; nil means os.Stdout.
	Stdout io.Writer
	// TracerProvider makes the OpenTelemetry spans of batches, for example otel.GetTracerProvider(). Nil makes none: the OTEL_ variables of
	// the environment, which relay run obeys, are the program's. It stays the caller's to shut down, after Close.
	TracerProvider trace.TracerProvider
}

// Relay is a relay.yaml that is open. Its methods are safe for concurrent use.
type Relay struct {
	config *config.Config
	engine *engine.Engine
	log    *slog.Logger

	mu      sync.Mutex
	state   state
	running sync.WaitGroup
}

type state int

const (
	opened state = iota
	ran
	closed
)

var (
	// ErrClosed is the error of Run after Close.
	ErrClosed = errors.New("the relay is closed")
	// ErrStarted is the error of a second Run.
	ErrStarted = errors.New("the relay has run already")
	// ErrShutdownTimeout is found in the error of a Run that could not finish its batches within shutdown_timeout. Other
	// relays, or the next run, take them over when their leases end.
	ErrShutdownTimeout = errors.New("shutdown did not finish within shutdown_timeout")
)

// Open reads the configuration at path, with the environment of the process for ${NAME}, and opens its pipelines. It
// connects to nothing, so it does not fail because a database or a sink is unavailable. Schemes of sink.Register are known if
// they were registered before.
//
// The error lists every mistake, one a line: file:line:column: what is wrong; expected what. It contains no secrets.
// errors.Is finds fs.ErrNotExist if there is no file. The caller closes the Relay.
func Open(path string, o Options) (*Relay, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	var (
		cfg *config.Config
		err error
	)
	if o.Text == nil {
		cfg, err = config.Load(path)
	} else {
		cfg, err = config.Parse(path, o.Text, os.LookupEnv)
	}
	if err != nil {
		return nil, err
	}
	redact := cfg.Redactor()
	r := &Relay{config: cfg, log: slog.New(redacting{o.Log.Handler(), redact})}
	r.engine, err = engine.Open(cfg, engine.Config{
		Stdout: o.Stdout, Log: r.log, Redact: redact, TracerProvider: o.TracerProvider,
		OnShutdown: func(cause error) { r.log.Info("finishing batches in flight", "cause", cause) },
	})
	if err != nil {
		return nil, redacted{err, redact}
	}
	return r, nil
}

// Migrate creates or upgrades the tables of all pipelines, as `relay migrate` does, and returns what was applied, like
// "orders: 0001_outbox"; nothing if all is up to date. It drops no data, and may run in several processes at the same time. The
// roles of the source URLs need the privileges for it; where they should not have them, run `relay migrate` with another role.
func (r *Relay) Migrate(ctx context.Context) (applied []string, err error) {
	for i := range r.config.Pipelines {
		p := &r.config.Pipelines[i]
		names, err := p.Migrate(ctx)
		for _, name := range names {
			applied = append(applied, p.Name+": "+name)
		}
		if err != nil {
			return applied, redacted{fmt.Errorf("migrating %s: %w", p.Name, err), r.config.Redactor()}
		}
	}
	return applied, nil
}

// Run moves events until ctx ends. Then it claims nothing more and finishes the batches in flight, for at most the file's
// shutdown_timeout (default 30s); what is not finished by then is cut off and left to its lease. Run waits for a database or
// a sink that is unavailable, and outages do not end it. It ends early only if a pipeline fails for good; the other
// pipelines are finished first.
//
// It returns nil if all that was claimed was also finished. Otherwise the error says what was not; errors.Is finds
// [ErrShutdownTimeout] if the time was over. A Relay runs once: a second Run returns [ErrStarted], and Run after Close [ErrClosed].
//
// Run opens no port and handles no signals: see Handler, and pass a context of signal.NotifyContext.
func (r *Relay) Run(ctx context.Context) error {
	r.mu.Lock()
	was := r.state
	if was == opened {
		r.state = ran
		r.running.Add(1)
	}
	r.mu.Unlock()
	switch was {
	case ran:
		return ErrStarted
	case closed:
		return ErrClosed
	}
	defer r.running.Done()

	running, shutdown := context.WithCancelCause(ctx)
	defer shutdown(nil)
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var watcher sync.WaitGroup
	ended, timedOut := make(chan struct{}), false
	watcher.Go(func() {
		<-running.Done()
		timer := time.NewTimer(r.config.ShutdownTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			timedOut = true
			stop()
		case <-ended:
		}
	})
	errs := r.engine.Run(running, stopped, shutdown, nil)
	close(ended)
	watcher.Wait()
	if timedOut {
		errs = append([]error{fmt.Errorf("%w (%v)", ErrShutdownTimeout, r.config.ShutdownTimeout)}, errs...)
	}
	if err := errors.Join(errs...); err != nil {
		return redacted{err, r.config.Redactor()}
	}
	return nil
}

// Ready returns nil while every pipeline can reach its database and its sinks and makes progress. Otherwise the error has
// a line for each pipeline that does not, with its name and the reason, which may quote an answer of a sink and so an event.
// Before Run it is not nil.
func (r *Relay) Ready() error {
	if err := r.engine.Ready(); err != nil {
		return redacted{err, r.config.Redactor()}
	}
	return nil
}

// Handler serves what `relay run` serves at admin.listen: /livez, /readyz, /metrics (Prometheus, the relay's own
// registry), the status page at / and the API below /api. Mount it below a path with http.StripPrefix. The file's admin.token is required
// for / and /api; without one these accept requests to localhost and IP addresses only, so set one, or mount only the probes and
// the metrics. The file's admin.listen has no effect. The handler works before, during and after Run, until Close.
func (r *Relay) Handler() http.Handler { return r.engine.Handler() }

// Close closes all connections. It waits for a Run that has not returned yet, so end its context first. Close can be
// called again.
func (r *Relay) Close() error {
	r.mu.Lock()
	was := r.state
	r.state = closed
	r.mu.Unlock()
	if was == closed {
		return nil
	}
	r.running.Wait()
	if err := errors.Join(r.engine.Close()...); err != nil {
		return redacted{err, r.config.Redactor()}
	}
	return nil
}

// redacted is an error whose text has no secrets.
type redacted struct {
	error
	redact func(string) string
}

func (r redacted) Error() string { return r.redact(r.error.Error()) }
func (r redacted) Unwrap() error { return r.error }

// redacting removes secrets from all values that are logged, which may quote servers.
type redacting struct {
	slog.Handler
	redact func(string) string
}

func (h redacting) Handle(ctx context.Context, record slog.Record) error {
	masked := slog.NewRecord(record.Time, record.Level, h.redact(record.Message), record.PC)
	record.Attrs(func(a slog.Attr) bool {
		masked.AddAttrs(h.mask(a))
		return true
	})
	return h.Handler.Handle(ctx, masked)
}

func (h redacting) WithAttrs(attrs []slog.Attr) slog.Handler {
	masked := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		masked[i] = h.mask(a)
	}
	return redacting{h.Handler.WithAttrs(masked), h.redact}
}

func (h redacting) WithGroup(name string) slog.Handler {
	return redacting{h.Handler.WithGroup(name), h.redact}
}

func (h redacting) mask(a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindString:
		return slog.String(a.Key, h.redact(v.String()))
	case slog.KindGroup:
		var members []any
		for _, m := range v.Group() {
			members = append(members, h.mask(m))
		}
		return slog.Group(a.Key, members...)
	case slog.KindAny:
		if _, isError := v.Any().(error); isError {
			return slog.String(a.Key, h.redact(v.String()))
		}
		if s, isText := v.Any().(fmt.Stringer); isText {
			return slog.String(a.Key, h.redact(s.String()))
		}
		return slog.Attr{Key: a.Key, Value: v}
	default:
		return slog.Attr{Key: a.Key, Value: v}
	}
}
