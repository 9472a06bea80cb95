package cli

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The same signal within a second is one request, as that of timeout(1), which signals its child and the process group. Any other one is a second
// signal.
func TestShutdown_Signals(t *testing.T) {
	t.Parallel()
	type at struct {
		after  time.Duration // the one before
		signal os.Signal
	}
	for name, c := range map[string]struct {
		signals []at
		second  os.Signal
		stopped bool
	}{
		"one":               {[]at{{0, syscall.SIGTERM}}, nil, true},
		"twice at once":     {[]at{{0, syscall.SIGTERM}, {0, syscall.SIGTERM}, {999 * time.Millisecond, syscall.SIGTERM}}, nil, true},
		"twice":             {[]at{{0, syscall.SIGTERM}, {time.Second, syscall.SIGTERM}}, syscall.SIGTERM, false},
		"three times":       {[]at{{0, os.Interrupt}, {600 * time.Millisecond, os.Interrupt}, {600 * time.Millisecond, os.Interrupt}}, os.Interrupt, false},
		"two kinds at once": {[]at{{0, syscall.SIGTERM}, {0, os.Interrupt}}, os.Interrupt, false},
		"after the timeout": {[]at{{0, syscall.SIGTERM}, {time.Hour, syscall.SIGTERM}}, syscall.SIGTERM, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				signals, released := make(chan os.Signal, 2), make(chan struct{})
				running, begin := context.WithCancelCause(t.Context())
				stopped, second := false, make(chan os.Signal, 1)
				go func() {
					second <- watch(signals, released, running.Done(), time.Minute, begin, func() { stopped = true })
				}()
				for _, one := range c.signals {
					<-time.After(one.after)
					signals <- one.signal
					synctest.Wait()
				}
				if !errors.Is(context.Cause(running), errSignal) {
					t.Errorf("the cause is %v", context.Cause(running))
				}
				if c.second == nil {
					<-time.After(2 * time.Minute)
					close(released)
				}
				if got := <-second; got != c.second || stopped != c.stopped {
					t.Errorf("the second signal is %v, stopped: %v; want %v, %v", got, stopped, c.second, c.stopped)
				}
			})
		})
	}
}
