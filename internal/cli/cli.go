// Package cli is the command relay: it parses flags, wires and prints. Its public entry is package cli at the top of the
// module.
package cli

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"
)

// Main runs the command line of the process, and exits. version is "" for that of the build.
func Main(version string) {
	release = version
	a := &app{stdout: os.Stdout, stderr: os.Stderr, redact: func(text string) string { return text }}
	os.Exit(a.exit(a.root().Execute()))
}

// discardLog is for commands that print errors themselves.
var discardLog = slog.New(slog.DiscardHandler)

// app is the state that the commands share.
type app struct {
	stdout, stderr *os.File
	// redact removes the secrets of the configuration from a text.
	redact func(text string) string
	// config is the path of the configuration, once it is read.
	config string
	// started reports whether the command line was valid and a command runs.
	started bool
	// failed reports whether an error was printed and the command continued.
	failed bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "relay",
		Short: "Moves events from a table in your database to Redis, NATS or HTTP",
		Long: `Relay is a transactional outbox relay. Your application inserts events into a
table, in the same transaction as its other changes. Relay sends committed events
to Redis, NATS, HTTP or a file and deletes them once they are delivered.

To try it without any setup:  relay demo`,
		Version:          version(),
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			command, _, err := root.Find(args)
			if err != nil {
				return usageError{err}
			}
			command.InitDefaultHelpFlag()
			return command.Help()
		},
	})
	root.AddCommand(
		a.runCommand(), a.checkCommand(), a.schemaCommand(), a.migrateCommand(), a.statusCommand(), a.retryCommand(), a.pauseCommand(), a.resumeCommand(),
		a.doctorCommand(), a.healthCommand(), a.deadCommand(), a.replayCommand(), a.sinksCommand(), a.verifyCommand(),
		a.initCommand(), a.previewCommand(), a.demoCommand(), a.completionCommand(), a.versionCommand(),
	)
	return root
}
