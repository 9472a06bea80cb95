//go:build !slim

package cli

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/demo"
)

const demoIntro = `A demo shop writes orders to a SQLite database. Each transaction inserts an
order and its event; one in ten is rolled back. Relay moves the committed
events to a NATS JetStream stream. In the next 30 seconds, three things fail.
Press Ctrl-C to stop.

`

// demo runs the demo. hasRate reports whether the rate was given.
func (a *app) demo(events, rate int, hasRate, console bool) (err error) {
	var forced struct {
		sync.Mutex
		cleanup func()
	}
	running, stopped, shutdown := newShutdown(demo.Timeout, func(os.Signal) {
		forced.Lock()
		defer forced.Unlock()
		if forced.cleanup != nil {
			forced.cleanup()
		}
	})
	defer shutdown.release()
	dir, err := os.MkdirTemp("", "relay-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	if _, err := fmt.Fprint(a.stderr, demoIntro); err != nil {
		return err
	}
	perSecond := float64(rate)
	if !hasRate {
		perSecond = demoRate
		if events > 0 {
			perSecond = float64(events) / .9 / demo.Length.Seconds()
		}
	}
	terminal := isTerminal(a.stderr) && os.Getenv("TERM") != "dumb"
	d := demo.New(demo.Config{
		Dir: dir, Events: events, Rate: perSecond, Out: a.stderr,
		Terminal: terminal, Colour: terminal && os.Getenv("NO_COLOR") == "", Console: console,
	})
	forced.Lock()
	forced.cleanup = func() {
		_ = d.Kill()
		for range 10 { // the broker of this process may still write
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the process exits next
		}
	}
	forced.Unlock()
	result, err := d.Run(running, stopped)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(a.stdout, result); err != nil {
		return err
	}
	return result.Check()
}
