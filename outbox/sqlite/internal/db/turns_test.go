package db

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// TestTurns: short transactions run a few at a time, and long ones, which wait for something else than a processor, hold up others for a moment only.
func TestTurns(t *testing.T) {
	t.Parallel()
	for takes, want := range map[time.Duration]time.Duration{
		time.Millisecond: 100 / 8 * time.Millisecond, // eight at a time
		time.Hour:        time.Hour + 100/8*longTurn, // the last begins when those before are long ones
	} {
		synctest.Test(t, func(t *testing.T) {
			few := make(turns, 8)
			began := time.Now()
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					end, err := few.wait(t.Context())
					testkit.NoError(t, err)
					time.Sleep(takes) //nolint:forbidigo // in a synctest bubble
					end()
					end()
				})
			}
			all.Wait()
			took := time.Since(began)
			if took < want || took > want+min(takes, longTurn) {
				t.Errorf("100 transactions of %v took %v; want about %v", takes, took, want)
			}
			testkit.Equal(t, "that run", len(few), 0)
		})
	}
}

// TestTurns_Ended: who does not wait any more has no turn.
func TestTurns_Ended(t *testing.T) {
	t.Parallel()
	few := make(turns, 1)
	end, err := few.wait(t.Context())
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := make(turns).wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("without a turn the error is %v", err)
	}
	end()
	testkit.Equal(t, "that run", len(few), 0)
}
