package main

import (
	"context"
	"errors"
	"log/slog"
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
// when there is no time left for what had begun.
func live(timeout time.Duration, log *slog.Logger) (running, stopped context.Context, l life) {
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
			log.Info("finishing what is in flight", "shutdown_timeout", timeout)
		case s := <-signals:
			log.Info("finishing what is in flight; a second signal ends at once", "signal", s, "shutdown_timeout", timeout)
			end()
		}
		out := time.NewTimer(timeout)
		defer out.Stop()
		for {
			select {
			case <-released:
				return
			case <-signals:
				// Nothing is said: standard error may be what is stuck.
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
