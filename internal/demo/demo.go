// Package demo runs a shop, a relay and a broker in one process, and checks that the event of every committed
// order arrives exactly once.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink/natssink"
)

// Timeout is how long the demo waits for the next event after the last commit.
const Timeout = 30 * time.Second

// Config of a demo.
type Config struct {
	// Dir is an empty folder for the files of the shop and the broker.
	Dir string
	// Events is the number of committed events after which the shop closes; 0 is no limit.
	Events int
	// Rate limits the orders per second; 0 is no limit.
	Rate int
	// Out gets the progress and the relay's warnings. Terminal reports whether it is a terminal.
	Out      io.Writer
	Terminal bool
}

// Run places orders until there are enough or running ends, waits until their events have arrived, and checks
// all orders. It returns early when stopped ends.
func Run(running, stopped context.Context, c Config) (_ *Result, err error) {
	audit := newAudit()
	screen := &screen{out: c.Out, terminal: c.Terminal, audit: audit}
	closing := func(close func() error) { err = errors.Join(err, close()) }
	broker, err := startBroker(stopped, filepath.Join(c.Dir, "broker"))
	if err != nil {
		return nil, err
	}
	defer closing(broker.close)
	database := filepath.Join(c.Dir, "shop.db")
	p, closePipeline, err := openPipeline(stopped, database, broker.url, screen)
	if err != nil {
		return nil, err
	}
	defer closing(closePipeline)
	shop, err := openShop(stopped, database)
	if err != nil {
		return nil, err
	}
	defer closing(shop.close)
	consumedAll, stopConsuming, err := broker.consume(stopped, audit)
	if err != nil {
		return nil, err
	}
	defer stopConsuming()

	relaying, stopRelaying := context.WithCancel(stopped)
	defer stopRelaying()
	var group errgroup.Group
	group.Go(func() error { return p.Run(relaying, stopped) })
	group.Go(func() error { return screen.run(relaying) })
	err = shop.run(running, audit, c.Events, c.Rate)
	if err == nil && running.Err() != nil {
		_, err = fmt.Fprintln(screen, "The shop is closed. Waiting for events in flight.")
	}
	if err == nil {
		err = audit.waitUntil(stopped, audit.allArrived)
	}
	stopRelaying()
	if err := errors.Join(err, group.Wait()); err != nil {
		return nil, err
	}
	if err := consumedAll(stopped); err != nil { // finds events that arrived twice
		return nil, err
	}
	return shop.check(context.WithoutCancel(stopped), audit)
}

// openPipeline connects the shop's database to the broker.
func openPipeline(ctx context.Context, database, brokerURL string, log io.Writer) (*pipeline.Pipeline, func() error, error) {
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
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	return p, release, nil
}
