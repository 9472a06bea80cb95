package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noArgs rejects arguments, and says how a file is named.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if info, err := os.Stat(args[0]); err == nil && !info.IsDir() && c.Flags().Lookup("config") != nil {
		return usage("unexpected argument %s; expected %s -c %s", args[0], c.CommandPath(), args[0])
	}
	return usage("unexpected argument %s; %s takes none, only flags: %s --help", args[0], c.CommandPath(), c.CommandPath())
}

// groupOf makes a command of its subcommands only. Without one it prints its help.
func groupOf(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	c.AddCommand(commands...)
	c.FParseErrWhitelist.UnknownFlags = true // the unknown subcommand is the mistake, not its flags
	c.SuggestionsMinimumDistance = 2
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		names := make([]string, len(commands))
		for i, one := range commands {
			names[i] = one.Name()
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "; did you mean " + c.CommandPath() + " " + near[0] + "?"
		}
		return usage("unknown command %q for %q; expected %s%s", args[0], c.CommandPath(), strings.Join(names, ", "), hint)
	}
	return c
}

// expectedOf describes the values of a flag by its type.
var expectedOf = map[string]string{
	"int": "a number", "int64": "a number", "float64": "a number", "bool": "true or false", "duration": "a duration like 30s, 5m or 2h",
	"age": "a duration like 24h, or a time like 2026-01-02T15:00:00Z",
}

// flagError says what a flag takes, or where the flags are listed.
func flagError(c *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return fmt.Errorf("%w; %s --help lists the flags", err, c.CommandPath())
	}
	expected, known := expectedOf[invalid.GetFlag().Value.Type()]
	if !known {
		return fmt.Errorf("--%s is %q: %w", invalid.GetFlag().Name, invalid.GetValue(), invalid.Unwrap())
	}
	return fmt.Errorf("--%s is %q; expected %s", invalid.GetFlag().Name, invalid.GetValue(), expected)
}
