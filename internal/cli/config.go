package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

const (
	configEnv     = "RELAY_CONFIG"
	defaultConfig = "relay.yaml"
)

// withConfig makes a command that reads the configuration before it runs. Its argument, if it takes one, is the file.
func (a *app) withConfig(c *cobra.Command, run func(*cobra.Command, *config.Config) error) *cobra.Command {
	return a.withConfigOf(c, func() bool { return true }, run)
}

// withoutSinks is withConfig for a command that talks to no sink, and so needs no secret of one.
func (a *app) withoutSinks(c *cobra.Command, run func(*cobra.Command, *config.Config) error) *cobra.Command {
	return a.withConfigOf(c, func() bool { return false }, run)
}

// withConfigOf is withConfig; sinks reports, when the flags are known, whether the command talks to sinks.
func (a *app) withConfigOf(c *cobra.Command, sinks func() bool, run func(*cobra.Command, *config.Config) error) *cobra.Command {
	var path string
	if c.Args == nil {
		c.Args = noArgs
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration file (default $"+configEnv+", or "+defaultConfig+")")
	c.RunE = func(c *cobra.Command, args []string) error {
		logging.Disable() // go-redis logs errors that it also returns
		if len(args) == 1 {
			if path != "" {
				return usage("the configuration is %s and %s; expected one file", path, args[0])
			}
			path = args[0]
		}
		cfg, err := a.load(path, sinks())
		if err != nil {
			return err
		}
		return run(c, cfg)
	}
	return c
}

// load reads the configuration at path; if path is "" the one at $RELAY_CONFIG, or relay.yaml in the working directory.
func (a *app) load(path string, sinks bool) (*config.Config, error) {
	path = cmp.Or(path, os.Getenv(configEnv))
	if path == "" {
		if _, err := os.Stat(defaultConfig); errors.Is(err, fs.ErrNotExist) {
			return nil, usage("there is no %s here; expected -c FILE or %s=FILE, or a new one: relay init", defaultConfig, configEnv)
		}
		path = defaultConfig
	}
	load := config.Load
	if !sinks {
		load = config.LoadWithoutSinks
	}
	cfg, err := load(path)
	switch {
	case err == nil:
		a.config, a.redact = path, cfg.Redactor()
		return cfg, nil
	case errors.As(err, new(config.Errors)):
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, usage("file %s does not exist; expected a configuration", path)
	}
	return nil, usageError{fmt.Errorf("%w; expected a configuration", err)}
}

// forFile makes the commands in a text name the configuration that was read. Buffers and sinks do not know its path.
func (a *app) forFile(text string) string {
	if a.config == "" {
		return text
	}
	return strings.ReplaceAll(text, "-c relay.yaml", "-c "+a.config)
}

// selectPipelines returns the pipeline with a name, or all pipelines if name is "".
func selectPipelines(cfg *config.Config, name string) ([]*config.Pipeline, error) {
	var selected []*config.Pipeline
	var names []string
	for i := range cfg.Pipelines {
		p := &cfg.Pipelines[i]
		names = append(names, p.Name)
		if name == "" || p.Name == name {
			selected = append(selected, p)
		}
	}
	if len(selected) == 0 {
		return nil, usage("--pipeline is %q; expected %s", name, strings.Join(names, " or "))
	}
	return selected, nil
}
