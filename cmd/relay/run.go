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

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/supervisor"
)

func (a *app) runCommand() *cobra.Command {
	return a.configured(&cobra.Command{
		Use:   "run",
		Short: "Run every pipeline until a signal",
		Long: `Run moves events from their tables to their sinks, until SIGTERM or SIGINT. Then
nothing new is claimed, and what is in flight is finished within
shutdown_timeout; a second signal ends at once. A database or a sink that is
away is waited for.`,
		Example: "  relay check -c relay.yaml && relay migrate -c relay.yaml && relay run -c relay.yaml",
	}, func(_ *cobra.Command, cfg *config.Config) error { return a.run(cfg) })
}

// letGo is how long whatever was cut off may take to return.
const letGo = 5 * time.Second

func (a *app) run(cfg *config.Config) error {
	// A pipe that nobody reads is the sink's outage, not the end of the process.
	signal.Ignore(syscall.SIGPIPE)
	logging.Disable() // go-redis has a log of its own; its errors come to us anyhow
	log := logger(a.stderr, cfg.Log, a.redact)
	slog.SetDefault(log)

	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("finding this machine's name: %w", err)
	}
	metrics := admin.NewMetrics()
	lines, err := cfg.Open(func(name string) config.Process {
		return config.Process{
			Owner:  fmt.Sprintf("%s/%d/%s", host, os.Getpid(), name),
			Stdout: a.stdout, Observer: metrics.Observer(name), Log: log,
		}
	})
	if err != nil {
		return err
	}
	supervisors, err := cfg.Supervise(lines, func(names ...string) supervisor.Observer { return metrics.Horizon(names...) }, log)
	if err != nil {
		return errors.Join(append(closeAll(lines), err)...)
	}
	running, stopped, life := live(cfg.ShutdownTimeout, func() {})
	defer life.release()
	serve, err := a.endpoint(running, cfg.Admin, lines, metrics, log)
	if err != nil {
		return err
	}
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		log.Info("pipeline starts", "pipeline", p.Name,
			"source", p.Source.URL, "table", p.Source.Table, "sink", p.Sink.URL, "address", address(&p.Sink))
	}
	ended := make(chan []error, 1)
	go func() {
		ended <- append(together(running, stopped, life.end, lines, supervisors, serve, log), closeAll(lines)...)
	}()
	var errs []error
	select {
	case errs = <-ended:
	case <-stopped.Done():
		a.fail(fmt.Errorf("shutdown_timeout of %v ran out: what is not settled is taken over when its lease is over", cfg.ShutdownTimeout))
		select {
		case errs = <-ended:
		case <-time.After(letGo):
			errs = []error{errors.New("something in flight does not let go")}
		}
	}
	for _, err := range errs {
		a.fail(err)
	}
	return nil
}

// together runs the pipelines side by side, the supervisors until they are to end, and
// the endpoint for as long as any of the pipelines runs. The failure of one ends all.
func together(running, stopped context.Context, end context.CancelCauseFunc, lines []*config.Opened,
	supervisors []*supervisor.Supervisor, serve func(context.Context) error, log *slog.Logger,
) []error {
	var (
		mu   sync.Mutex
		errs []error
	)
	failed := func(err error) {
		end(err)
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var pipelines, others sync.WaitGroup
	for _, line := range lines {
		pipelines.Go(func() {
			if err := line.Run(running, stopped); err != nil {
				failed(fmt.Errorf("pipeline %s: %w", line.Name(), err))
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
	serving, leave := context.WithCancel(context.WithoutCancel(running))
	others.Go(func() {
		if err := serve(serving); err != nil {
			failed(err)
		}
	})
	others.Go(func() {
		<-running.Done()
		log.Info("finishing what is in flight; a signal ends at once", "cause", context.Cause(running))
	})
	pipelines.Wait()
	end(errors.New("all pipelines ended"))
	leave()
	others.Wait()
	return errs
}

func closeAll(lines []*config.Opened) []error {
	var errs []error
	for _, line := range lines {
		if err := line.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", line.Name(), err))
		}
	}
	return errs
}

// endpoint returns what serves the admin endpoint until its context is done.
func (a *app) endpoint(ctx context.Context, c config.Admin, lines []*config.Opened, m *admin.Metrics, log *slog.Logger) (func(context.Context) error, error) {
	if c.Listen == "" {
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	}
	l, err := admin.Listen(ctx, c.Listen)
	if err != nil {
		return nil, err
	}
	pipelines := make([]admin.Pipeline, len(lines))
	for i, line := range lines {
		pipelines[i] = line
	}
	server := admin.New(pipelines, m, admin.Config{Token: c.Token.Reveal(), Redact: a.redact, Log: log})
	log.InfoContext(ctx, "admin endpoint listens", "url", "http://"+l.Addr().String()+"/")
	return func(ctx context.Context) error { return server.Run(ctx, l) }, nil
}

// logger logs as the configuration wants it. Errors hold what servers said, so
// secrets are taken out of them.
func logger(w io.Writer, c config.Log, redact func(string) string) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.Level, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if err, ok := attr.Value.Any().(error); ok {
			return slog.String(attr.Key, oneLine(redact(err.Error())))
		}
		if attr.Key == "error" {
			return slog.String(attr.Key, oneLine(redact(attr.Value.String())))
		}
		return attr
	}}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
