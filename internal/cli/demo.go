package cli

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/config"
)

// demoRate is the default of --rate without --events, in orders per second.
const demoRate = 500

func (a *app) demoCommand() *cobra.Command {
	var (
		events, rate int
		noConsole    bool
	)
	c := &cobra.Command{
		Use:   "demo",
		Short: "Try it: nothing to install, no network",
		Long: `Demo runs a shop whose transactions insert orders and events into SQLite (one in
ten is rolled back), a NATS JetStream stream, and the relay as a child process. It
shows a row and its message. Then it kills the relay, stops the broker for some
seconds, and commits an event that the broker rejects. All this takes about 30
seconds. Finally it checks every order: the event of a committed order must have
arrived exactly once or be a dead letter, that of a rolled back order must not
arrive. Otherwise, the exit status is 1.

The relay's console is at the address that is printed; watch the faults there.`,
		Example: "  relay demo\n  relay demo --events 100000",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if events < 0 || rate < 0 {
				return usage("--events is %d and --rate is %d; expected 0 or more", events, rate)
			}
			return a.demo(events, rate, c.Flags().Changed("rate"), !noConsole)
		},
	}
	c.Flags().IntVar(&events, "events", 0, "stop after this many committed events and a rejected one; 0 to run until Ctrl-C")
	c.Flags().IntVar(&rate, "rate", 0, fmt.Sprintf("orders per second; 0 for no limit (default %d; with --events, as many as last until the end of the faults)", demoRate))
	c.Flags().BoolVar(&noConsole, "no-console", false, "do not serve the relay's console")
	c.AddCommand(a.demoRelayCommand())
	return c
}

// demoRelayCommand is `relay run` until the standard input ends, which also happens when the demo is killed.
func (a *app) demoRelayCommand() *cobra.Command {
	return a.withConfig(&cobra.Command{Use: "relay", Short: "The demo's relay", Hidden: true}, func(_ *cobra.Command, cfg *config.Config) error {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			self, err := os.FindProcess(os.Getpid())
			if err != nil || self.Signal(syscall.SIGTERM) != nil {
				os.Exit(statusFailed)
			}
		}()
		return a.run(cfg)
	})
}
