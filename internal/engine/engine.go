// Package engine runs all pipelines of a configuration, with their supervisors and the admin endpoint: what `relay run`
// and package relay have in common. Signals, listeners and output are its callers'.
package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/console"
	"github.com/outboxrelay/relay/internal/diagnosis"
	"github.com/outboxrelay/relay/internal/preview"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/supervisor"
)

// Config is what a process adds to its configuration.
type Config struct {
	// Version is the relay's, which operators see in the list of relays that run; may be "".
	Version string
	// Stdout is the output of the sink "stdout:".
	Stdout io.Writer
	// Log gets texts that may quote servers, and removes secrets from them. Redact removes them elsewhere.
	Log    *slog.Logger
	Redact func(text string) string
	// TLS has the admin endpoint's certificate; nil serves plain HTTP.
	TLS *tls.Config
	// Level is that of Log, which the console can change for a while; nil: it cannot.
	Level *slog.LevelVar
	// ForFile names the configuration file in commands that users can paste; nil changes nothing.
	ForFile func(text string) string
	// TracerProvider makes the spans of batches; nil: none are made.
	TracerProvider trace.TracerProvider
	// OnShutdown is called once, when nothing more is claimed, with the cause.
	OnShutdown func(cause error)
}

// Engine is a configuration that is open and ready to run. Its methods are safe for concurrent use, but for Close.
type Engine struct {
	pipelines   []*config.Runtime
	supervisors []*supervisor.Supervisor
	admin       *admin.Server
	console     *console.Console
	onShutdown  func(cause error)
}

// databasesAtOnce is how many pipelines' databases the console has checked at once: most share a server.
const databasesAtOnce = 4

// Open connects to nothing. errors.As finds config.Errors in the error: the mistakes that only a driver finds.
func Open(cfg *config.Config, c Config) (*Engine, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the host name: %w", err)
	}
	e := &Engine{onShutdown: c.OnShutdown}
	metrics := admin.NewMetrics(c.Version)
	gate := pipeline.NewGate()
	e.pipelines, err = cfg.Open(func(name string) config.Process {
		return config.Process{
			Owner: fmt.Sprintf("%s/%d/%s", host, os.Getpid(), name), Version: c.Version,
			Stdout: c.Stdout, Gate: gate, Log: c.Log, TracerProvider: c.TracerProvider,
			Observer: func(sink string) pipeline.Observer { return metrics.Observer(name, sink) },
		}
	})
	if err != nil {
		return nil, err
	}
	e.supervisors, err = cfg.Supervise(e.pipelines, func(names ...string) supervisor.Observer { return metrics.VacuumObserver(names...) }, c.Log)
	if err != nil {
		return nil, errors.Join(append(e.Close(), err)...)
	}
	observed := make([]admin.Pipeline, len(e.pipelines))
	for i, o := range e.pipelines {
		p := &cfg.Pipelines[i]
		dead := DeadLetters(p, o.Buffer)
		observed[i] = admin.Pipeline{Name: p.Name, Database: serverOf(p.Source.URL.String()), Server: serverOf(p.Sink.URL.String()), Health: o, Inspector: o.Buffer, MaxWaiting: p.MaxWaiting, Scheduled: p.Scheduled(), DeadLetters: dead, Batches: o.Buffer, RetryNow: func(ctx context.Context) (admin.Retried, error) {
			return admin.RetryAll(ctx, o.Buffer, dead.Sinks, dead.SinkHooks)
		}}
		if p.Archive.Table != "" {
			observed[i].Archive, _ = o.Buffer.(buffer.Retention)
		}
		observed[i].Pauser, _ = o.Buffer.(buffer.Pauser)
		if router := o.Router(); router != nil {
			observed[i].Router = router
			for _, s := range o.Sinks {
				observed[i].Sinks = append(observed[i].Sinks, admin.Sink{Name: s.Config.SinkName, Health: s, Server: serverOf(s.Config.Sink.URL.String())})
			}
		}
	}
	previews := make([]preview.Pipeline, len(e.pipelines))
	for i, o := range e.pipelines {
		previews[i] = preview.Of(o)
	}
	var tokens []access.Token
	for _, t := range cfg.Admin.AllTokens() {
		tokens = append(tokens, access.Token{Name: t.Name, Secret: t.Token.Reveal(), ReadOnly: t.ReadOnly})
	}
	guard := access.New(tokens...)
	guard.SetProxy(access.Proxy(cfg.Admin.Proxy))
	actions := audit.New(c.Log)
	e.admin = admin.New(observed, metrics, admin.Config{Guard: guard, HidePayloads: !cfg.Admin.Payloads, TLS: c.TLS, Exemplars: c.TracerProvider != nil, Audit: actions, Redact: c.Redact, Log: c.Log})
	e.console = console.New(console.Config{
		Source: e.admin, Guard: guard, Process: fmt.Sprintf("%s/%d", host, os.Getpid()), Version: c.Version, HidePayloads: !cfg.Admin.Payloads,
		Audit: actions, Level: c.Level, Previews: previews, Redact: c.Redact, ForFile: c.ForFile, Log: c.Log,
		Diagnose: func(ctx context.Context, clean func(string) string) diagnosis.Report {
			return diagnosis.Run(ctx, cfg, e.pipelines, diagnosis.Options{Text: clean, Fix: clean, Databases: databasesAtOnce, Blockers: true})
		},
	})
	e.admin.SetConsole(e.console)
	return e, nil
}

// serverOf is the server of a URL without secrets, with its scheme; the whole URL if it names none, as that of a file.
func serverOf(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok || rest == "" || rest[0] == '/' {
		return url
	}
	host, _, _ := strings.Cut(rest, "/")
	return scheme + "://" + host
}

// DeadLetters are the dead letters of a pipeline in its buffer.
func DeadLetters(p *config.Pipeline, b buffer.Buffer) admin.DeadLetters {
	d := admin.DeadLetters{Store: b, Table: p.Source.Table, HasHook: p.DeadLetter.Hook != nil, SinkHooks: p.SinkHooks(), BatchSize: p.BatchSize}
	for i := range p.Sinks {
		d.Sinks = append(d.Sinks, p.Sinks[i].Name)
	}
	return d
}

// Admin is the admin endpoint, for the serve of [Engine.Run].
func (e *Engine) Admin() *admin.Server { return e.admin }

// Handler is the admin endpoint as a handler of an application.
func (e *Engine) Handler() http.Handler {
	e.console.Use()
	return e.admin.Handler()
}

// Ready returns nil, or the reasons of all pipelines that are not ready, each with the pipeline's name. See
// config.Runtime.Ready.
func (e *Engine) Ready() error {
	var errs []error
	for _, p := range e.pipelines {
		if err := p.Ready(); err != nil {
			errs = append(errs, fmt.Errorf("pipeline %s: %w", p.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// Run runs the pipelines and supervisors, and serve until the last pipeline ends; nil serves nothing. It claims nothing
// more once running ends, and cuts off what is in flight when stopped ends. An error in one of them calls shutdown,
// which ends running. It returns all errors.
func (e *Engine) Run(running, stopped context.Context, shutdown context.CancelCauseFunc, serve func(context.Context) error) []error {
	var (
		mu   sync.Mutex
		errs []error
	)
	failed := func(err error) {
		shutdown(err)
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var active, others sync.WaitGroup
	for _, p := range e.pipelines {
		active.Go(func() {
			if err := p.Run(running, stopped); err != nil {
				failed(fmt.Errorf("pipeline %s: %w", p.Name(), err))
			}
		})
	}
	for _, s := range e.supervisors {
		others.Go(func() {
			if err := s.Run(running); err != nil {
				failed(err)
			}
		})
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(running))
	if serve != nil {
		e.console.Use()
		others.Go(func() {
			if err := serve(serving); err != nil {
				failed(err)
			}
		})
	}
	others.Go(func() {
		if err := e.console.Run(serving); err != nil {
			failed(err)
		}
	})
	others.Go(func() {
		<-running.Done()
		e.onShutdown(context.Cause(running))
	})
	active.Wait()
	shutdown(errors.New("all pipelines ended"))
	stopServing()
	others.Wait()
	return errs
}

// Close closes all buffers and sinks. Run must have returned.
func (e *Engine) Close() []error {
	var errs []error
	for _, p := range e.pipelines {
		if err := p.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", p.Name(), err))
		}
	}
	return errs
}
