package delivery_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// TestHoldsBad: a refused batch waits because of its own data, and one whose projection fails. One that waits for a sink that is away does not, nor is
// anything claimed for the others while it is away.
func TestHoldsBad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		work := func(answer error, l *buffer.Lease) {
			t.Helper()
			b.answer(answer)
			_, _, err := b.work(t, l)
			expectError(t, err, nil)
		}
		expect(t, "holds bad ones at first", b.HoldsBad(), false)
		work(sink.Unavailable(errDown), newLease(101))
		expect(t, "holds bad ones after a hiccup", b.HoldsBad(), false)
		work(errBad, newLease(102))
		expect(t, "holds bad ones after a refusal", b.HoldsBad(), true)
		for id := range 3 {
			work(sink.Unavailable(errDown), newLease(int64(103+id)))
		}
		expect(t, "holds bad ones while the sink is away", b.HoldsBad(), false)
		work(nil, newLease(106))
		expect(t, "holds bad ones when it is back", b.HoldsBad(), true)
		<-time.After(2 * time.Minute) // twice the longest wait
		expect(t, "holds bad ones when none was refused again", b.HoldsBad(), false)
		for range 2 { // this opens the breaker of the sink
			bad := batchOf(1)
			reject(bad, buffer.ErrEventData, 0)
			work(nil, bad)
		}
		expect(t, "holds bad ones after projections that failed", b.HoldsBad(), true)
	})
}
