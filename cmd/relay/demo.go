package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// demoRate is the default of --rate without --events, in orders per second.
const demoRate = 500

func (a *app) demoCommand() *cobra.Command {
	var events, rate int
	c := &cobra.Command{
		Use:   "demo",
		Short: "Try it: nothing to install, no network",
		Long: `Demo runs everything in one process: a shop whose transactions insert orders and
events into SQLite (one in ten is rolled back), the relay, and a NATS JetStream
stream. Finally it checks every order: the event of a committed order must have
arrived exactly once, that of a rolled back order must not. Otherwise, the exit
status is 1.`,
		Example: "  relay demo\n  relay demo --events 100000",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if events < 0 || rate < 0 {
				return usage("--events is %d and --rate is %d; expected 0 or more", events, rate)
			}
			if events == 0 && !c.Flags().Changed("rate") {
				rate = demoRate
			}
			return a.demo(events, rate)
		},
	}
	c.Flags().IntVar(&events, "events", 0, "stop after this many committed events; 0 to run until Ctrl-C")
	c.Flags().IntVar(&rate, "rate", 0, fmt.Sprintf("orders per second; 0 for no limit (default %d without --events)", demoRate))
	return c
}
