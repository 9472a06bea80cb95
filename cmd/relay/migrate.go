package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

func (a *app) migrateCommand() *cobra.Command {
	return a.withConfig(&cobra.Command{
		Use:   "migrate",
		Short: "Create or upgrade the relay's tables",
		Long: `Migrate creates or upgrades the relay's tables in the database of every pipeline.
It is idempotent and never drops anything.`,
		Example: "  relay migrate -c relay.yaml",
	}, a.migrate)
}

func (a *app) migrate(c *cobra.Command, cfg *config.Config) error {
	if err := cfg.CheckSources(); err != nil {
		return err
	}
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		applied, err := p.Migrate(c.Context())
		if err != nil {
			a.fail(fmt.Errorf("%s: %w", p.Name, err))
			continue
		}
		result := "up to date"
		if len(applied) > 0 {
			result = "applied " + strings.Join(applied, ", ")
		}
		if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", p.Name, result); err != nil {
			return err
		}
	}
	return nil
}
