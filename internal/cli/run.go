package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/internal/engine"
	"github.com/outboxrelay/relay/internal/memory"
	"github.com/outboxrelay/relay/internal/repeats"
	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/internal/tracing/export"
)

func (a *app) runCommand() *cobra.Command {
	return a.withConfig(&cobra.Command{
		Use:   "run",
		Short: "Run every pipeline until a signal",
		Long: `Run moves events from their tables to their sinks until SIGTERM, SIGINT or SIGHUP. Then it
claims nothing more and finishes the batches in flight within shutdown_timeout; a
second signal exits immediately, unless it is the same one within a second. If a database or a sink is unavailable, run waits
for it.`,
		Example: "  relay check -c relay.yaml && relay migrate -c relay.yaml && relay run -c relay.yaml",
	}, func(_ *cobra.Command, cfg *config.Config) error { return a.run(cfg) })
}

// forceExitAfter is how long cancelled work may take to return.
const forceExitAfter = 5 * time.Second

func (a *app) run(cfg *config.Config) error {
	// A closed pipe is an outage of the sink, not the end of the process.
	signal.Ignore(syscall.SIGPIPE)
	level := new(slog.LevelVar)
	level.Set(cfg.Log.Level)
	limited := repeats.New(logHandler(a.stderr, cfg.Log.Format, level, func(text string) string { return a.forFile(a.redact(text)) }))
	defer limited.Flush()
	log := slog.New(tracing.LogHandler(limited))
	slog.SetDefault(log)

	memory.Tune()
	certificate, err := cfg.Admin.ServerTLS(log)
	if err != nil {
		return err
	}
	traces := export.Open(context.Background(), shortVersion(), log)
	defer traces.Close()
	e, err := engine.Open(cfg, engine.Config{
		Version: shortVersion(), Stdout: a.stdout, Log: log, Level: level, Redact: a.redact, ForFile: a.forFile, TLS: certificate,
		TracerProvider: traces.Provider(),
		OnShutdown: func(cause error) {
			log.Info("finishing batches in flight, another signal exits immediately", "cause", cause)
		},
	})
	if err != nil {
		return err
	}
	running, stopped, shutdown := newShutdown(cfg.ShutdownTimeout, logForcedExit(log, limited.Flush))
	defer shutdown.release()
	serve, err := adminServer(running, cfg, e.Admin(), log)
	if err != nil {
		return err
	}
	for _, w := range cfg.Warnings() {
		log.Warn("configuration: "+a.redact(w.Place.String()+": "+w.Text), "pipeline", w.Pipeline, "fix", w.Fix)
	}
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		if p.Sinks == nil {
			log.Info("pipeline started", "pipeline", p.Name, "source", p.Source.URL, "table", p.Source.Table, "sink", p.Sink.URL, "address", p.Sink.AddressText())
			continue
		}
		log.Info("pipeline started", "pipeline", p.Name, "source", p.Source.URL, "table", p.Source.Table, "sinks", len(p.Sinks))
		for _, one := range p.PerSink() {
			log.Info("sink started", "pipeline", p.Name, "sink", one.SinkName, "url", one.Sink.URL, "address", one.Sink.AddressText())
		}
	}
	ended := make(chan []error, 1)
	go func() {
		ended <- append(e.Run(running, stopped, shutdown.begin, serve), e.Close()...)
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

// adminServer returns a function that serves the admin endpoint until its context ends; nil if the endpoint is off.
func adminServer(ctx context.Context, cfg *config.Config, server *admin.Server, log *slog.Logger) (func(context.Context) error, error) {
	if cfg.Admin.Listen == "" {
		return nil, nil
	}
	l, err := admin.Listen(ctx, cfg.Admin.Listen)
	if err != nil {
		return nil, err
	}
	log.InfoContext(ctx, "admin endpoint listening", "url", scheme(cfg.Admin)+"://"+l.Addr().String()+"/")
	return func(ctx context.Context) error { return server.Run(ctx, l) }, nil
}

// scheme is that of the admin endpoint's URLs.
func scheme(c config.Admin) string {
	if c.TLS.Cert != "" {
		return "https"
	}
	return "http"
}

// logHandler writes lines as configured. It removes secrets from all values, which may quote servers.
func logHandler(w io.Writer, format string, level slog.Leveler, redact func(string) string) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if err, ok := attr.Value.Any().(error); ok {
			return slog.String(attr.Key, oneLine(redact(err.Error())))
		}
		if attr.Key == "error" {
			return slog.String(attr.Key, oneLine(redact(attr.Value.String())))
		}
		if attr.Value.Kind() == slog.KindString && attr.Key != slog.MessageKey {
			return slog.String(attr.Key, redact(attr.Value.String()))
		}
		if format == "json" && attr.Value.Kind() == slog.KindDuration { // slog would write nanoseconds
			return slog.Float64(attr.Key, attr.Value.Duration().Seconds())
		}
		return attr
	}}
	if format == "json" {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

// closeAll closes pipelines that did not run.
func closeAll(pipelines []*config.Runtime) []error {
	var errs []error
	for _, p := range pipelines {
		if err := p.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing %s: %w", p.Name(), err))
		}
	}
	return errs
}
