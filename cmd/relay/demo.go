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
	// demoRate is orders a second where nobody says how many or how fast: to look at.
	demoRate = 500
	// demoTimeout is how long events may take to arrive after the last commit.
	demoTimeout = 30 * time.Second
)

const demoIntro = `A shop writes orders into SQLite: each transaction inserts an order and an event
about it, and one in ten rolls back. Relay moves the committed events to a NATS
JetStream stream. Nothing is installed, nothing leaves this machine. %s

`

func (a *app) demoCommand() *cobra.Command {
	var events, rate int
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it at work: nothing to install, no network",
		Long: `Demo runs the whole way within one process: a shop whose transactions insert
orders and events into SQLite (one in ten rolls back), the relay, and a NATS
JetStream stream. In the end every order is checked: its event must have arrived,
and once; that of an order that was rolled back must not. If not, the exit status
is 1.`,
		Example: "  relay demo\n  relay demo --events 100000",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if events < 0 || rate < 0 {
				return usage("--events %d and --rate %d: numbers from 0 were expected", events, rate)
			}
			if events == 0 && !c.Flags().Changed("rate") {
				rate = demoRate
			}
			return a.demo(events, rate)
		},
	}
	c.Flags().IntVar(&events, "events", 0, "end after so many committed events; 0: at Ctrl-C")
	c.Flags().IntVar(&rate, "rate", 0, fmt.Sprintf("orders a second; 0: as fast as it goes (default %d without --events)", demoRate))
	return c
}

func (a *app) demo(events, rate int) (err error) {
	dir, err := os.MkdirTemp("", "relay-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	ending := "Ctrl-C ends it."
	if events > 0 {
		ending = ""
	}
	if _, err := fmt.Fprintf(a.stderr, demoIntro, ending); err != nil {
		return err
	}
	d := demo{dir: dir, events: events, rate: rate, audit: newAudit()}
	d.screen = &screen{out: a.stderr, audit: d.audit, events: events}
	running, stopped, life := live(demoTimeout, func() { os.RemoveAll(dir) })
	defer life.release()
	account, err := d.run(running, stopped)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(a.stdout, account); err != nil {
		return err
	}
	return account.verdict()
}

// demo is a shop, a relay and a broker.
type demo struct {
	dir          string
	events, rate int
	audit        *audit
	screen       *screen
}

// run sells orders until there are enough or running is done, waits until their
// events have arrived, and checks them off.
func (d *demo) run(running, stopped context.Context) (_ *account, err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	broker, err := startBroker(stopped, filepath.Join(d.dir, "broker"))
	if err != nil {
		return nil, err
	}
	defer closing(broker.close)
	database := filepath.Join(d.dir, "shop.db")
	line, closeLine, err := d.pipeline(stopped, database, broker.url)
	if err != nil {
		return nil, err
	}
	defer closing(closeLine)
	shop, err := openShop(stopped, database)
	if err != nil {
		return nil, err
	}
	defer closing(shop.close)
	drained, endConsuming, err := broker.consume(stopped, d.audit)
	if err != nil {
		return nil, err
	}
	defer endConsuming()

	relaying, enough := context.WithCancel(stopped)
	defer enough()
	var group errgroup.Group
	group.Go(func() error { return line.Run(relaying, stopped) })
	group.Go(func() error { return d.screen.run(relaying) })
	err = shop.sell(running, d.audit, d.events, d.rate)
	if err == nil && running.Err() != nil {
		_, err = fmt.Fprintln(d.screen, "The shop is closed; what is under way still arrives.")
	}
	if err == nil {
		err = d.audit.until(stopped, d.audit.settled)
	}
	enough()
	if err := errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	if err := drained(stopped); err != nil { // had an event come twice, its second would be in there
		return nil, err
	}
	return shop.check(context.WithoutCancel(stopped), d.audit)
}

// pipeline joins the shop's database to the broker.
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
	line, err := pipeline.New(buffer, to, pipeline.Config{
		Name: "demo", Poll: true,
		Log: slog.New(slog.NewTextHandler(d.screen, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	return line, release, nil
}
