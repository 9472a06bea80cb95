package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

func (a *app) migrateCommand() *cobra.Command {
	var rename, pipeline string
	c := a.withoutSinks(&cobra.Command{
		Use:   "migrate",
		Short: "Create or upgrade the relay's tables",
		Long: `Migrate creates or upgrades the relay's tables in the database of every pipeline.
It is idempotent and never drops anything.

A buffer belongs to the pipeline that claimed from it first. After a pipeline was
renamed, --rename-pipeline OLD gives its buffer and its dead letters to the new name.
Stop the relays that use the old name first.`,
		Example: "  relay migrate -c relay.yaml\n  relay migrate --rename-pipeline old-name --pipeline new-name -c relay.yaml",
	}, func(c *cobra.Command, cfg *config.Config) error {
		renamed, err := renamedPipeline(cfg, rename, pipeline)
		if err != nil {
			return err
		}
		if err := a.migrate(c, cfg); err != nil || renamed == nil || a.failed {
			return err
		}
		return a.rename(c.Context(), renamed, rename)
	})
	c.Flags().StringVar(&rename, "rename-pipeline", "", "former name of a pipeline")
	c.Flags().StringVar(&pipeline, "pipeline", "", "its name now; required with --rename-pipeline if there are several pipelines")
	return c
}

// renamedPipeline returns the pipeline that had another name; nil if none is named.
func renamedPipeline(cfg *config.Config, from, to string) (*config.Pipeline, error) {
	var names []string
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		names = append(names, p.Name)
		if p.Name == from {
			return nil, usage("--rename-pipeline is %q, which is a pipeline of the configuration; expected the former name of one", from)
		}
	}
	what := fmt.Sprintf("--pipeline is %q", to)
	if to == "" {
		what = "--pipeline is missing"
	}
	switch i := slices.Index(names, to); {
	case from == "" && to == "":
		return nil, nil
	case from == "":
		return nil, usage("--pipeline is %q, but --rename-pipeline is not set; expected the former name of the pipeline", to)
	case i >= 0:
		return &cfg.Pipelines[i], nil
	case to == "" && len(names) == 1:
		return &cfg.Pipelines[0], nil
	}
	return nil, usage("%s; expected the new name of %s: %s", what, from, strings.Join(names, " or "))
}

// rename gives a pipeline what belongs to its former name.
func (a *app) rename(ctx context.Context, p *config.Pipeline, from string) error {
	renamed, err := p.Rename(ctx, from)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", p.Name, err)
	case !renamed.Owner && renamed.Letters == 0 && renamed.Owns: // by a first run, perhaps
		_, err = fmt.Fprintf(a.stdout, "%s: already renamed: it owns its buffer, and nothing belongs to %s\n", p.Name, from)
		return err
	case !renamed.Owner && renamed.Letters == 0:
		return fmt.Errorf("%s: pipeline %s neither owns its buffer nor has dead letters there; relay doctor says who does", p.Name, from)
	}
	_, err = fmt.Fprintf(a.stdout, "%s: has taken over %s from %s\n", p.Name, plural(renamed.Letters, "dead letter", "dead letters"), from)
	return err
}

// describeMigrated describes what was applied. The events' own table stands apart: one that is made by mistake stays empty for ever.
func describeMigrated(applied []string) string {
	made := slices.DeleteFunc(slices.Clone(applied), func(name string) bool { return !strings.HasPrefix(name, "table ") })
	applied = slices.DeleteFunc(applied, func(name string) bool { return strings.HasPrefix(name, "table ") })
	var did []string
	if len(applied) > 0 {
		did = append(did, "applied "+strings.Join(applied, ", "))
	}
	for _, table := range made {
		did = append(did, "created "+table)
	}
	if did == nil {
		return "up to date"
	}
	return strings.Join(did, "; ")
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
		result := describeMigrated(applied)
		if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", p.Name, result); err != nil {
			return err
		}
	}
	return nil
}
