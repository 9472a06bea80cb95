package buffertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var rateCases = []testCase{
	{name: "rate/spaces tokens evenly", run: ratePace},
	{name: "rate/is shared by processes", run: rateShared},
	{name: "rate/is kept for each name", run: rateNames},
	{name: "rate/allows no burst after a pause", run: rateRest},
	{name: "rate/does not wait for a former rate", run: rateChanged},
	{name: "rate/check names a missing table", run: rateMissing},
}

type bucket interface {
	TakeToken(ctx context.Context, name string, requests int, per time.Duration) (time.Duration, error)
}

// take takes a token and returns the earliest and the latest time at which it may be used. They
// differ by the duration of the call.
func take(t *testing.T, b bucket, name string, requests int, per time.Duration) (from, to time.Time) {
	t.Helper()
	began := time.Now()
	wait, err := b.TakeToken(t.Context(), name, requests, per)
	ok(t, "TakeToken", err)
	if wait < 0 {
		t.Errorf("a wait of %v", wait)
	}
	return began.Add(wait), time.Now().Add(wait)
}

// clockStep is the resolution of a database's clock.
const clockStep = time.Millisecond

func ratePace(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	// The rate is so slow that the duration of a call does not matter.
	firstFrom, firstTo := take(t, f.Buffer, "orders", 3, time.Hour)
	for i := range 5 {
		from, to := take(t, f.Buffer, "orders", 3, time.Hour)
		pace := time.Duration(i+1) * 20 * time.Minute
		if to.Before(firstFrom.Add(pace-clockStep)) || from.After(firstTo.Add(pace+clockStep)) {
			t.Errorf("token %d is %v after the first, want %v", i+1, from.Sub(firstFrom), pace)
		}
	}
}

func rateShared(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	all := []bucket{f.Buffer, f.Second(t), f.Second(t)}
	const each = 20
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		waits []time.Duration
	)
	began := time.Now()
	for _, b := range all {
		group.Go(func() {
			for range each {
				wait, err := b.TakeToken(t.Context(), "orders", 1, time.Hour)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				waits = append(waits, wait)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	equal(t, "tokens", len(waits), each*len(all))
	slices.Sort(waits)
	for i, wait := range waits {
		// Each hour is taken once.
		hours := time.Duration(i) * time.Hour
		if wait > hours+clockStep || wait < hours-took-clockStep {
			t.Fatalf("token %d is to wait %v, want %v less at most %v", i, wait, hours, took)
		}
	}
}

func rateNames(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	for _, name := range []string{"orders", "orders:hook", "other"} {
		if from, to := take(t, f.Buffer, name, 1, time.Hour); to.Sub(from) > time.Hour/2 || time.Until(from) > time.Minute {
			t.Errorf("%s waits until %v for its first token", name, from)
		}
	}
	if from, _ := take(t, f.Second(t), "orders", 1, time.Hour); time.Until(from) < time.Minute {
		t.Error("two tokens of one name at once")
	}
}

func rateRest(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	_, _ = take(t, f.Buffer, "orders", 1, time.Hour)
	f.Exec(t, "UPDATE outbox_rates SET next_at = '2020-01-02T03:04:05.000000Z'")
	if from, _ := take(t, f.Buffer, "orders", 1, time.Hour); time.Until(from) > time.Minute {
		t.Error("the first after a rest waits")
	}
	if from, _ := take(t, f.Buffer, "orders", 1, time.Hour); time.Until(from) < 59*time.Minute {
		t.Errorf("the second after a rest waits %v only", time.Until(from))
	}
}

func rateChanged(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	for range 3 {
		_, _ = take(t, f.Buffer, "orders", 1, 24*time.Hour)
	}
	if from, _ := take(t, f.Buffer, "orders", 1000, time.Second); time.Until(from) > 2*time.Second {
		t.Errorf("a token of the quick rate waits %v for those of the slow one", time.Until(from))
	}
}

func rateMissing(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Exec(t, "DROP TABLE outbox_rates")
	_, err := f.Buffer.TakeToken(t.Context(), "orders", 1, time.Second)
	fails(t, "TakeToken", err, buffer.ErrNotReady)
	for _, want := range []string{"outbox_rates", "relay migrate"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Second(t).TakeToken(ctx, "orders", 1, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: got %v", err)
	}
}
