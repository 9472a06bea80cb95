package main

import (
	"context"
	"errors"
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
	// end is what the first signal does too.
	end context.CancelFunc
	// release gives the signals back; nobody waits for them any more.
	release func()
}

var errOutOfTime = errors.New("shutdown_timeout ran out")

// live returns two contexts: running is done when no new work is to begin, stopped
// when there is no time left for what had begun. told hears that running is done;
// its signal is nil when it was l.end that ended it. atOnce is done on the way out
// after a second signal.
func live(timeout time.Duration, told func(os.Signal), atOnce func()) (running, stopped context.Context, l life) {
	stopped, stop := context.WithCancelCause(context.Background())
	running, end := context.WithCancel(stopped)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	released, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-released:
			return
		case <-running.Done():
			told(nil)
		case s := <-signals:
			end()
			told(s)
		}
		out := time.NewTimer(timeout)
		defer out.Stop()
		for {
			select {
			case <-released:
				return
			case <-signals:
				// Nothing is said: standard error may be what is stuck.
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
