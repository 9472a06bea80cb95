package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

func (a *app) checkCommand() *cobra.Command {
	return a.configured(&cobra.Command{
		Use:   "check",
		Short: "Validate the configuration, offline",
		Long: `Check reads the configuration and lists every mistake, one a line:
file:line:column: what is wrong, what was expected. It connects to nothing.`,
		Example: "  relay check -c relay.yaml",
	}, a.check)
}

func (a *app) check(_ *cobra.Command, cfg *config.Config) error {
	lines, err := cfg.Open(func(string) config.Process { return config.Process{Stdout: io.Discard} })
	if err != nil {
		return err
	}
	for i, line := range lines {
		if err := line.Close(); err != nil {
			return err
		}
		p := &cfg.Pipelines[i]
		if _, err := fmt.Fprintf(a.stdout, "ok  %s: %s (%s) -> %s (%s), %d workers, batches of %d, %s\n", p.Name,
			p.Source.URL, p.Source.Table, p.Sink.URL, address(&p.Sink), p.Workers, p.BatchSize, p.Schedule); err != nil {
			return err
		}
	}
	return nil
}

// address says where in its sink a pipeline writes.
func address(s *config.Sink) string {
	switch s.Driver {
	case "redis":
		return s.Redis.Mode + " " + cmp.Or(s.Redis.Stream, s.Redis.List, s.Redis.Channel)
	case "nats":
		if s.NATS.Core {
			return "core subject " + s.NATS.Subject
		}
		return "JetStream subject " + s.NATS.Subject
	case "http":
		return s.HTTP.Method + " " + s.HTTP.Format
	}
	return "NDJSON"
}
