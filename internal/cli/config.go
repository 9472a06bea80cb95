package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

const configEnv = "RELAY_CONFIG"

// withConfig makes a command that reads the configuration before it runs. Its argument, if it takes one, is the file.
func (a *app) withConfig(c *cobra.Command, run func(*cobra.Command, *config.Config) error) *cobra.Command {
	var path string
	if c.Args == nil {
		c.Args = cobra.NoArgs
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration file (default $"+configEnv+")")
	c.RunE = func(c *cobra.Command, args []string) error {
		logging.Disable() // go-redis logs errors that it also returns
		if len(args) == 1 {
			if path != "" {
				return usage("the configuration is %s and %s; expected one file", path, args[0])
			}
			path = args[0]
		}
		cfg, err := a.load(path)
		if err != nil {
			return err
		}
		return run(c, cfg)
	}
	return c
}

// load reads the configuration at path, or at $RELAY_CONFIG if path is "".
func (a *app) load(path string) (*config.Config, error) {
	if path == "" {
		path = os.Getenv(configEnv)
	}
	if path == "" {
		return nil, usage("the configuration file is not set; expected -c relay.yaml or %s=relay.yaml", configEnv)
	}
	cfg, err := config.Load(path)
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
