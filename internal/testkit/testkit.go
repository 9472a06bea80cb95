// Package testkit has the few assertions that the tests of several packages share.
package testkit

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TB is what the assertions need of a *testing.T, *testing.B or *rapid.T.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// PollTimeout is how long Eventually and Receive wait. It is generous, because only a
// test that fails waits for it.
const PollTimeout = time.Minute

const pollInterval = 10 * time.Millisecond

// NoError ends the test if err is not nil.
func NoError(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

// Equal ends the test unless got and want are deeply equal.
func Equal[T any](t TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s is\n%v\nwant\n%v", what, got, want)
	}
}

// ErrorContains ends the test unless the error's message contains all the texts.
func ErrorContains(t TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that contains %q", texts)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Fatalf("error is %q; want one that contains %q", err, text)
		}
	}
}

// Timeout returns the test's context with a timeout.
func Timeout(t interface {
	Context() context.Context
	Cleanup(func())
}, d time.Duration,
) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Eventually calls condition until it returns nil, and ends the test with its last error
// after PollTimeout.
func Eventually(t TB, condition func() error) {
	t.Helper()
	deadline := time.NewTimer(PollTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("after %v: %v", PollTimeout, err)
			return
		case <-poll.C:
		}
	}
}

// Receive returns the channel's next value, and ends the test if none comes within
// PollTimeout.
func Receive[T any](t TB, what string, ch <-chan T) (v T) {
	t.Helper()
	deadline := time.NewTimer(PollTimeout)
	defer deadline.Stop()
	select {
	case v = <-ch:
	case <-deadline.C:
		t.Fatalf("%s: nothing received after %v", what, PollTimeout)
	}
	return v
}

// Output is what a logger or program has written. Several goroutines may use it.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns everything that was written and not taken.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Take returns what was written since the last Take.
func (o *Output) Take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.text.Reset()
	return o.text.String()
}

// TakeOver takes over a batch that is due, a suspect if there is no other. nil, nil: there is none.
func TakeOver(ctx context.Context, from buffer.Claimer, lease time.Duration) (*buffer.Lease, error) {
	batch, err := from.TakeOver(ctx, lease, buffer.DueRetry)
	if batch != nil || err != nil {
		return batch, err
	}
	return from.TakeOver(ctx, lease, buffer.DueSuspect)
}
