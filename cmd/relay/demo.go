package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink/natssink"
)

const (
	// demoRate is the default of --rate without --events, in orders per second.
	demoRate = 500
	// demoTimeout is how long events may take to arrive after the last commit.
	demoTimeout = 30 * time.Second
)

const demoIntro = `A demo shop writes orders to a SQLite database. Each transaction inserts an order
and its event; one in ten is rolled back. Relay moves the committed events to a
NATS JetStream stream, all in this process. %s

`

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

func (a *app) demo(events, rate int) (err error) {
	dir, err := os.MkdirTemp("", "relay-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	ending := "Press Ctrl-C to stop."
	if events > 0 {
		ending = ""
	}
	if _, err := fmt.Fprintf(a.stderr, demoIntro, ending); err != nil {
		return err
	}
	d := demo{dir: dir, events: events, rate: rate, audit: newAudit()}
	d.screen = &screen{out: a.stderr, audit: d.audit, events: events}
	running, stopped, shutdown := newShutdown(demoTimeout, func() { os.RemoveAll(dir) })
	defer shutdown.release()
	result, err := d.run(running, stopped)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(a.stdout, result); err != nil {
		return err
	}
	return result.check()
}

// demo is a shop, a relay and a broker in one process.
type demo struct {
	dir          string
	events, rate int
	audit        *audit
	screen       *screen
}

// run places orders until there are enough or running ends, waits until their events
// have arrived, and checks all orders.
func (d *demo) run(running, stopped context.Context) (_ *demoResult, err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	broker, err := startBroker(stopped, filepath.Join(d.dir, "broker"))
	if err != nil {
		return nil, err
	}
	defer closing(broker.close)
	database := filepath.Join(d.dir, "shop.db")
	p, closePipeline, err := d.pipeline(stopped, database, broker.url)
	if err != nil {
		return nil, err
	}
	defer closing(closePipeline)
	shop, err := openShop(stopped, database)
	if err != nil {
		return nil, err
	}
	defer closing(shop.close)
	consumedAll, stopConsuming, err := broker.consume(stopped, d.audit)
	if err != nil {
		return nil, err
	}
	defer stopConsuming()

	relaying, stopRelaying := context.WithCancel(stopped)
	defer stopRelaying()
	var group errgroup.Group
	group.Go(func() error { return p.Run(relaying, stopped) })
	group.Go(func() error { return d.screen.run(relaying) })
	err = shop.run(running, d.audit, d.events, d.rate)
	if err == nil && running.Err() != nil {
		_, err = fmt.Fprintln(d.screen, "The shop is closed. Waiting for events in flight.")
	}
	if err == nil {
		err = d.audit.waitUntil(stopped, d.audit.allArrived)
	}
	stopRelaying()
	if err := errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	if err := consumedAll(stopped); err != nil { // finds events that arrived twice
		return nil, err
	}
	return shop.check(context.WithoutCancel(stopped), d.audit)
}

// pipeline connects the shop's database to the broker.
func (d *demo) pipeline(ctx context.Context, database, brokerURL string) (*pipeline.Pipeline, func() error, error) {
	url := "sqlite://" + filepath.ToSlash(database)
	if _, err := sqlite.Migrate(ctx, url, sqlite.SchemaConfig{}); err != nil {
		return nil, nil, err
	}
	buffer, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "demo", Owner: "demo"})
	if err != nil {
		return nil, nil, err
	}
	to, err := natssink.New(natssink.Config{URL: brokerURL, Subject: "{topic}"})
	if err != nil {
		return nil, nil, errors.Join(err, buffer.Close())
	}
	release := func() error { return errors.Join(to.Close(), buffer.Close()) }
	p, err := pipeline.New(buffer, to, pipeline.Config{
		Name: "demo", Poll: true,
		Log: slog.New(slog.NewTextHandler(d.screen, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	return p, release, nil
}
