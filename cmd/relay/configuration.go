package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

const configEnv = "RELAY_CONFIG"

// configured makes a command whose work is done with a configuration.
func (a *app) configured(c *cobra.Command, work func(*cobra.Command, *config.Config) error) *cobra.Command {
	var path string
	c.Args = cobra.NoArgs
	c.Flags().StringVarP(&path, "config", "c", "", "configuration file (default $"+configEnv+")")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := a.load(path)
		if err != nil {
			return err
		}
		return work(c, cfg)
	}
	return c
}

// load reads the configuration at path, else at RELAY_CONFIG.
func (a *app) load(path string) (*config.Config, error) {
	if path == "" {
		path = os.Getenv(configEnv)
	}
	if path == "" {
		return nil, usage("no configuration was named, -c relay.yaml or %s=relay.yaml was expected", configEnv)
	}
	cfg, err := config.Load(path)
	var mistakes config.Errors
	switch {
	case err == nil:
		a.redact = cfg.Redactor()
		return cfg, nil
	case errors.As(err, &mistakes):
		return nil, err
	case errors.Is(err, fs.ErrNotExist):
		return nil, usage("there is no file %s, a configuration was expected", path)
	}
	return nil, usageError{fmt.Errorf("%w, a configuration was expected", err)}
}
