package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shutdown ends a process in two phases.
//
//	running ──first signal, or begin──▶ draining ──timeout──▶ stopped
//	                                        └──second signal──▶ exit 1 at once
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

// newShutdown watches signals. The context running ends when no new work may start,
// with the reason as its cause; stopped ends when the timeout for started work is
// over. onForcedExit runs before the exit on a second signal.
func newShutdown(timeout time.Duration, onForcedExit func()) (running, stopped context.Context, s shutdown) {
	stopped, stop := context.WithCancelCause(context.Background())
	running, begin := context.WithCancelCause(stopped)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, endSignals()...)
	released, watched := make(chan struct{}), make(chan struct{})
	// The watcher writes nothing: standard error may be what blocks the process.
	go func() {
		defer close(watched)
		select {
		case <-released:
			return
		case <-running.Done():
		case s := <-signals:
			begin(fmt.Errorf("%w (%v)", errSignal, s))
		}
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		for {
			select {
			case <-released:
				return
			case <-signals:
				onForcedExit()
				os.Exit(statusFailed)
			case <-timer.C:
				stop(errShutdownTimeout)
			}
		}
	}()
	return running, stopped, shutdown{begin: begin, release: func() {
		close(released)
		<-watched
		signal.Stop(signals)
		stop(nil)
	}}
}
