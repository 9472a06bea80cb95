// Command relay moves events from a table in an application's database to Redis,
// NATS, HTTP or a file. "relay help" lists its commands.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

func main() {
	a := &app{stdout: os.Stdout, stderr: os.Stderr, redact: func(text string) string { return text }}
	os.Exit(a.exit(a.root().Execute()))
}

// app is what the commands share.
type app struct {
	stdout, stderr *os.File
	// redact takes the secrets of the configuration out of a text.
	redact func(text string) string
	// began: the command line was understood, and a command is at work.
	began bool
	// failed: something went wrong and was told, and the command went on.
	failed bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "relay",
		Short: "Moves events from a table in your database to Redis, NATS or HTTP",
		Long: `Relay is a transactional outbox relay. Your application inserts events into a
table, inside its own transactions; relay sends what was committed to Redis,
NATS, HTTP or a file, and deletes it when it has arrived.

To see it at work, with nothing to set up:  relay demo`,
		Version:          version(),
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { a.began = true },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			about, _, err := root.Find(args)
			if err != nil {
				return usageError{err}
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	})
	root.AddCommand(
		a.runCommand(), a.checkCommand(), a.schemaCommand(), a.migrateCommand(), a.statusCommand(),
		a.doctorCommand(), a.deadCommand(), a.verifyCommand(),
		a.initCommand(), a.previewCommand(), a.demoCommand(), a.completionCommand(), a.versionCommand(),
	)
	return root
}

// errUsage is found in errors about the command line or the configuration, not
// about what was done.
var errUsage = errors.New("wrong usage")

type usageError struct{ error }

func (u usageError) Unwrap() []error { return []error{u.error, errUsage} }

func usage(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// The exit statuses.
const (
	statusDone   = 0
	statusFailed = 1
	statusUsage  = 2
)

// exit tells what went wrong and returns the exit status.
func (a *app) exit(err error) int {
	var mistakes config.Errors
	switch {
	case err == nil && !a.failed:
		return statusDone
	case err == nil:
		return statusFailed
	case errors.As(err, &mistakes):
		a.say(mistakes.Error())
		return statusUsage
	case !a.began, errors.Is(err, errUsage):
		a.say("relay: " + strings.TrimSpace(err.Error()))
		return statusUsage
	}
	a.fail(err)
	return statusFailed
}

// fail tells of an error, on one line, and lets the command go on.
func (a *app) fail(err error) {
	a.failed = true
	a.say("relay: " + oneLine(err.Error()))
}

// oneLine takes the line breaks out of a text, and lines that say the same again: pgx
// tells of each try, with TLS and without.
func oneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

// say writes to standard error.
func (a *app) say(text string) {
	fmt.Fprintln(a.stderr, a.redact(text))
}
