package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/memory"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/supervisor"
)

func (a *app) runCommand() *cobra.Command {
	return a.withConfig(&cobra.Command{
		Use:   "run",
		Short: "Run every pipeline until a signal",
		Long: `Run moves events from their tables to their sinks until SIGTERM, SIGINT or SIGHUP. Then it
claims nothing more and finishes the batches in flight within shutdown_timeout; a
second signal exits immediately. If a database or a sink is unavailable, run waits
for it.`,
		Example: "  relay check -c relay.yaml && relay migrate -c relay.yaml && relay run -c relay.yaml",
	}, func(_ *cobra.Command, cfg *config.Config) error { return a.run(cfg) })
}

// forceExitAfter is how long cancelled work may take to return.
const forceExitAfter = 5 * time.Second

func (a *app) run(cfg *config.Config) error {
	// A closed pipe is an outage of the sink, not the end of the process.
	signal.Ignore(syscall.SIGPIPE)
	log := logger(a.stderr, cfg.Log, a.redact)
	slog.SetDefault(log)

	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	memory.Tune()
	metrics := admin.NewMetrics()
	gate := pipeline.NewGate()
	pipelines, err := cfg.Open(func(name string) config.Process {
		return config.Process{
			Owner: fmt.Sprintf("%s/%d/%s", host, os.Getpid(), name), Version: shortVersion(),
			Stdout: a.stdout, Gate: gate, Log: log,
			Observer: func(sink string) pipeline.Observer { return metrics.Observer(name, sink) },
		}
	})
	if err != nil {
		return err
	}
	supervisors, err := cfg.Supervise(pipelines, func(names ...string) supervisor.Observer { return metrics.VacuumObserver(names...) }, log)
	if err != nil {
		return errors.Join(append(closeAll(pipelines), err)...)
	}
	running, stopped, shutdown := newShutdown(cfg.ShutdownTimeout, func() {})
	defer shutdown.release()
	serve, err := a.adminServer(running, cfg, pipelines, metrics, log)
	if err != nil {
		return err
	}
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		if p.Sinks == nil {
			log.Info("pipeline started", "pipeline", p.Name, "source", p.Source.URL, "table", p.Source.Table, "sink", p.Sink.URL, "address", address(&p.Sink))
			continue
		}
		log.Info("pipeline started", "pipeline", p.Name, "source", p.Source.URL, "table", p.Source.Table, "sinks", len(p.Sinks))
		for _, one := range p.PerSink() {
			log.Info("sink started", "pipeline", p.Name, "sink", one.SinkName, "url", one.Sink.URL, "address", address(&one.Sink))
		}
	}
	ended := make(chan []error, 1)
	go func() {
		ended <- append(runAll(running, stopped, shutdown.begin, pipelines, supervisors, serve, log), closeAll(pipelines)...)
	}()
	var errs []error
	select {
	case errs = <-ended:
	case <-stopped.Done():
		a.fail(fmt.Errorf("shutdown did not finish within shutdown_timeout (%v); unsettled batches are taken over when their leases end", cfg.ShutdownTimeout))
		select {
		case errs = <-ended:
		case <-time.After(forceExitAfter):
			errs = []error{fmt.Errorf("cancelled work did not return within %v", forceExitAfter)}
		}
	}
	for _, err := range errs {
		a.fail(err)
	}
	return nil
}

// runAll runs the pipelines and supervisors, and the admin server until the last
// pipeline ends. An error in one of them begins the shutdown of all.
func runAll(running, stopped context.Context, shutdown context.CancelCauseFunc, pipelines []*config.Runtime,
	supervisors []*supervisor.Supervisor, serve func(context.Context) error, log *slog.Logger,
) []error {
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
	for _, p := range pipelines {
		active.Go(func() {
			if err := p.Run(running, stopped); err != nil {
				failed(fmt.Errorf("pipeline %s: %w", p.Name(), err))
			}
		})
	}
	for _, s := range supervisors {
		others.Go(func() {
			if err := s.Run(running); err != nil {
				failed(err)
			}
		})
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(running))
	others.Go(func() {
		if err := serve(serving); err != nil {
			failed(err)
		}
	})
	others.Go(func() {
		<-running.Done()
		log.Info("finishing batches in flight, another signal exits immediately", "cause", context.Cause(running))
	})
	active.Wait()
	shutdown(errors.New("all pipelines ended"))
	stopServing()
	others.Wait()
	return errs
}

func closeAll(pipelines []*config.Runtime) []error {
	var errs []error
	for _, p := range pipelines {
		if err := p.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", p.Name(), err))
		}
	}
	return errs
}

// adminServer returns a function that serves the admin endpoint until its context ends.
func (a *app) adminServer(ctx context.Context, cfg *config.Config, opened []*config.Runtime, m *admin.Metrics, log *slog.Logger) (func(context.Context) error, error) {
	if cfg.Admin.Listen == "" {
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	}
	l, err := admin.Listen(ctx, cfg.Admin.Listen)
	if err != nil {
		return nil, err
	}
	pipelines := make([]admin.Pipeline, len(opened))
	for i, o := range opened {
		p := &cfg.Pipelines[i]
		pipelines[i] = admin.Pipeline{Name: p.Name, Health: o, MaxWaiting: p.MaxWaiting, DeadLetters: deadLettersOf(p, o.Buffer)}
		if router := o.Router(); router != nil {
			pipelines[i].Router = router
			for _, s := range o.Sinks {
				pipelines[i].Sinks = append(pipelines[i].Sinks, admin.Sink{Name: s.Config.SinkName, Health: s})
			}
		}
	}
	server := admin.New(pipelines, m, admin.Config{Token: cfg.Admin.Token.Reveal(), Redact: a.redact, Log: log})
	log.InfoContext(ctx, "admin endpoint listening", "url", "http://"+l.Addr().String()+"/")
	return func(ctx context.Context) error { return server.Run(ctx, l) }, nil
}

// logger returns the configured logger. It removes secrets from all values, which may quote servers.
func logger(w io.Writer, c config.Log, redact func(string) string) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.Level, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if err, ok := attr.Value.Any().(error); ok {
			return slog.String(attr.Key, oneLine(redact(err.Error())))
		}
		if attr.Key == "error" {
			return slog.String(attr.Key, oneLine(redact(attr.Value.String())))
		}
		if attr.Value.Kind() == slog.KindString && attr.Key != slog.MessageKey {
			return slog.String(attr.Key, redact(attr.Value.String()))
		}
		return attr
	}}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
