//go:build !slim

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/outboxrelay/relay/internal/demo"
)

const demoIntro = `A demo shop writes orders to a SQLite database. Each transaction inserts an order
and its event; one in ten is rolled back. Relay moves the committed events to a
NATS JetStream stream, all in this process. %s

`

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
	running, stopped, shutdown := newShutdown(demo.Timeout, func() { os.RemoveAll(dir) })
	defer shutdown.release()
	terminal := isTerminal(a.stderr) && os.Getenv("TERM") != "dumb"
	result, err := demo.Run(running, stopped, demo.Config{Dir: dir, Events: events, Rate: rate, Out: a.stderr, Terminal: terminal})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(a.stdout, result); err != nil {
		return err
	}
	return result.Check()
}
