// Package demo runs a shop and a broker in this process and a relay in a child process. It kills the relay, takes
// the broker away, has an event rejected, and checks that every committed event arrived exactly once or is a dead letter.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox/sqlite"
)

const (
	// Timeout is how long the demo waits for the next event after the last commit.
	Timeout = 30 * time.Second
	// Length is about how long the faults take.
	Length = 25 * time.Second

	lease           = 3 * time.Second
	shutdownTimeout = 5 * time.Second
)

// Config of a demo.
type Config struct {
	// Dir is an empty folder for the files of the shop, the broker and the relay.
	Dir string
	// Events is the number of committed events after which the shop closes; 0 is no limit. The rejected one comes on top.
	Events int
	// Rate limits the orders per second; 0 is no limit.
	Rate float64
	// Out gets the progress. Terminal reports whether it is a terminal, Colour whether it may be coloured.
	Out              io.Writer
	Terminal, Colour bool
	// Console: the relay serves its console on a free port of the loopback interface, which Out says.
	Console bool
}

// Demo is one run. Make one with New.
type Demo struct {
	config Config
	audit  *audit
	screen *screen
	relays *relays
	shop   *shop
	broker *broker
	first  chan jetstream.Msg
}

// New returns a demo that has not started.
func New(c Config) *Demo {
	a := newAudit()
	return &Demo{
		config: c, audit: a,
		screen: &screen{out: c.Out, terminal: c.Terminal, colour: c.Colour, audit: a, start: time.Now()},
		relays: &relays{config: filepath.Join(c.Dir, "relay.yaml"), failed: a.fail},
		first:  make(chan jetstream.Msg, 1),
	}
}

// Kill ends the relay at once, for an exit that does not wait for Run.
func (d *Demo) Kill() error {
	d.relays.mu.Lock()
	d.relays.closed = true
	d.relays.mu.Unlock()
	return d.relays.kill()
}

// Run places orders until there are enough or running ends, meanwhile shows the faults, waits until the events have
// arrived, and checks all orders. It returns early when stopped ends.
func (d *Demo) Run(running, stopped context.Context) (_ *Result, err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	if d.broker, err = startBroker(stopped, filepath.Join(d.config.Dir, "broker"), d.audit, func(m jetstream.Msg) { d.first <- m }); err != nil {
		return nil, err
	}
	defer closing(d.broker.stop)
	database := filepath.Join(d.config.Dir, "shop.db")
	if err := d.configure(stopped, database); err != nil {
		return nil, err
	}
	if d.shop, err = openShop(stopped, database, d.audit); err != nil {
		return nil, err
	}
	defer closing(d.shop.close)
	defer closing(d.relays.close)

	watching, stopWatching := context.WithCancel(stopped)
	defer stopWatching()
	var background errgroup.Group
	background.Go(func() error { return d.screen.run(watching) })
	background.Go(func() error { return d.shop.watchDead(watching) })
	err = d.play(running, stopped)
	stopWatching()
	if err := errors.Join(err, background.Wait()); err != nil {
		return nil, err
	}
	return d.count(stopped)
}

// configure writes the relay's configuration and creates its tables.
func (d *Demo) configure(ctx context.Context, database string) error {
	url := "sqlite://" + filepath.ToSlash(database)
	if _, err := sqlite.Migrate(ctx, url, sqlite.SchemaConfig{}); err != nil {
		return err
	}
	console, err := d.openConsole(ctx)
	if err != nil {
		return err
	}
	return os.WriteFile(d.relays.config, fmt.Appendf(nil, `admin: {listen: %q}
log: {level: warn}
shutdown_timeout: %v
pipelines:
  - name: demo
    source: {url: %q}
    lease: %v
    retry: {max: 1s}
    sink: {url: %q}
`, console, shutdownTimeout, url, lease, d.broker.url()), 0o600)
}

// play shows one event's way, opens the shop, and plays the faults. Finally it waits for what is in flight.
func (d *Demo) play(running, stopped context.Context) error {
	script, interrupt := context.WithCancel(running)
	defer interrupt()
	if err := d.showEvent(script); err != nil {
		return err
	}
	var once sync.Once
	var group errgroup.Group
	failed := func(err error) error {
		if err != nil {
			once.Do(interrupt)
		}
		return err
	}
	group.Go(func() error { return failed(d.shop.run(script, d.config.Events, d.config.Rate)) })
	group.Go(func() error { return failed(d.faults(script)) })
	err := group.Wait()
	// An interrupted script may have left something switched off.
	if err == nil {
		err = d.broker.start(stopped)
	}
	if err == nil {
		_, err = d.relays.start()
	}
	if err == nil && running.Err() != nil {
		err = d.screen.event(bold, "The shop is closed. Waiting for events in flight.")
	}
	if err != nil {
		return err
	}
	return d.audit.waitUntil(stopped, d.audit.allArrived)
}

// count compares the orders with what arrived.
func (d *Demo) count(ctx context.Context) (*Result, error) {
	if err := d.broker.consumedAll(ctx); err != nil { // finds events that arrived twice
		return nil, err
	}
	return d.shop.check(context.WithoutCancel(ctx))
}
