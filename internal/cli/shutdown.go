package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shutdown ends a process in two phases.
//
//	running ──first signal, or begin──▶ draining ──timeout──▶ stopped
//	                                        └──second signal──▶ exit 1 at once
//
// The same signal within a second is no second one: timeout(1), for example, signals its child and then the process group of both.
type shutdown struct {
	// begin does what the first signal does.
	begin context.CancelCauseFunc
	// release stops watching signals and waits for the watcher.
	release func()
}

var (
	errSignal          = errors.New("received a signal")
	errShutdownTimeout = errors.New("shutdown timeout")
)

// endSignals are the signals that end a command in order. SIGHUP, of a terminal that closes, is one unless the process that
// started the command ignores it, as nohup does.
func endSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

const (
	// sameRequest is how long the same signal counts as one.
	sameRequest = time.Second
	// forcedExitTakes is how long the exit on a second signal waits for its preparations: standard error may be what blocks the process.
	forcedExitTakes = time.Second
)

// newShutdown watches signals. The context running ends when no new work may start,
// with the reason as its cause; stopped ends when the timeout for started work is
// over. onForcedExit runs before the exit on a second signal.
func newShutdown(timeout time.Duration, onForcedExit func(os.Signal)) (running, stopped context.Context, s shutdown) {
	stopped, stop := context.WithCancelCause(context.Background())
	running, begin := context.WithCancelCause(stopped)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, endSignals()...)
	released, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		second := watch(signals, released, running.Done(), timeout, begin, func() { stop(errShutdownTimeout) })
		if second == nil {
			return
		}
		prepared := make(chan struct{})
		go func() {
			defer close(prepared)
			onForcedExit(second)
		}()
		select {
		case <-prepared:
		case <-time.After(forcedExitTakes):
		}
		os.Exit(statusFailed)
	}()
	return running, stopped, shutdown{begin: begin, release: func() {
		close(released)
		<-watched
		signal.Stop(signals)
		stop(nil)
	}}
}

// watch begins the shutdown at the first signal, and stops it after the timeout. It returns the second signal, or nil when it is released. It
// writes nothing: standard error may be what blocks the process.
func watch(signals <-chan os.Signal, released, begun <-chan struct{}, timeout time.Duration, begin context.CancelCauseFunc, stop func()) (second os.Signal) {
	var (
		first   os.Signal
		firstAt time.Time
	)
	select {
	case <-released:
		return nil
	case <-begun:
	case first = <-signals:
		firstAt = time.Now()
		begin(fmt.Errorf("%w (%v)", errSignal, first))
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-released:
			return nil
		case s := <-signals:
			if s != first || time.Since(firstAt) >= sameRequest {
				return s
			}
		case <-timer.C:
			stop()
		}
	}
}

// logForcedExit says why the relay exits at once. Flush writes what the log still holds.
func logForcedExit(log *slog.Logger, flush func()) func(os.Signal) {
	return func(s os.Signal) {
		flush()
		log.Error("second signal, exiting at once; unsettled batches are taken over when their leases end", "signal", s.String())
	}
}
