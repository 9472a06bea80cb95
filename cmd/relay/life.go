package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// life is how long a process that was told to stop may go on.
//
//	running ──first signal, or end──▶ finishing ──timeout──▶ stopped
//	                                      └──second signal──▶ exit 1 at once
type life struct {
	// end does what the first signal does.
	end context.CancelCauseFunc
	// release gives the signals back.
	release func()
}

var (
	errSignal    = errors.New("a signal")
	errOutOfTime = errors.New("out of time")
)

// live begins a life. running is done when nothing new is to begin, and its cause
// says why; stopped when there is no time left for what had begun. atOnce is called
// on the way out after a second signal.
func live(timeout time.Duration, atOnce func()) (running, stopped context.Context, l life) {
	stopped, stop := context.WithCancelCause(context.Background())
	running, end := context.WithCancelCause(stopped)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	released, watched := make(chan struct{}), make(chan struct{})
	// Whoever watches says nothing: standard error may be what is stuck.
	go func() {
		defer close(watched)
		select {
		case <-released:
			return
		case <-running.Done():
		case s := <-signals:
			end(fmt.Errorf("%w (%v)", errSignal, s))
		}
		out := time.NewTimer(timeout)
		defer out.Stop()
		for {
			select {
			case <-released:
				return
			case <-signals:
				atOnce()
				os.Exit(statusFailed)
			case <-out.C:
				stop(errOutOfTime)
			}
		}
	}()
	return running, stopped, life{end: end, release: func() {
		close(released)
		<-watched
		signal.Stop(signals)
		stop(nil)
	}}
}
