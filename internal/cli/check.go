package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/sink"
)

func (a *app) checkCommand() *cobra.Command {
	return a.withConfig(&cobra.Command{
		Use:   "check [FILE]",
		Args:  cobra.MaximumNArgs(1),
		Short: "Validate the configuration, offline",
		Long: `Check validates the configuration and prints all errors, one a line:
file:line:column: <key> is <value>; expected <what>. It warns of a sink that
keeps no events, of secrets in clear text, of a URL that ends in /_bulk without
results, of a request that sends only some events of a batch, and of braces
that are no placeholder. It connects to nothing.`,
		Example: "  relay check relay.yaml\n  relay check -c relay.yaml",
	}, a.check)
}

func (a *app) check(_ *cobra.Command, cfg *config.Config) error {
	_, errCertificate := cfg.Admin.ServerTLS(slog.New(slog.DiscardHandler))
	pipelines, err := cfg.Open(func(string) config.Process { return config.Process{Stdout: io.Discard} })
	if err != nil || errCertificate != nil {
		return config.Join(append(closeAll(pipelines), errCertificate, err)...)
	}
	for i, opened := range pipelines {
		if err := opened.Close(); err != nil {
			return err
		}
		p := &cfg.Pipelines[i]
		for _, s := range opened.Sinks {
			a.warnOffline(s.Config.FullName(), s.Sink)
			line := fmt.Sprintf("ok  %s, %s, batches of %d, %s\n", s.Config.Route(), plural(int64(s.Config.Workers), "worker", "workers"), s.Config.BatchSize, p.Schedule)
			if _, err := io.WriteString(a.stdout, a.redact(line)); err != nil {
				return err
			}
		}
		for _, h := range opened.Hooks {
			a.warnOffline(p.Name+": "+h.Name, h.Sink)
		}
	}
	for _, w := range cfg.Warnings() {
		a.printErr("warning: " + w.String())
	}
	return nil
}

// warnOffline prints the warnings of a sink that need no connection.
func (a *app) warnOffline(name string, s sink.Sink) {
	if w, ok := s.(sink.OfflineWarner); ok {
		for _, text := range w.OfflineWarnings() {
			a.printErr("warning: " + name + ": " + text)
		}
	}
}
