package watermark_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/outbox/sqlite/internal/watermark"
)

func TestCursor_SweepsEveryFewMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := watermark.NewCursor()
		at := func(want int64, due bool) {
			t.Helper()
			if got := c.Position(); got != want || c.SweepDue() != due {
				t.Fatalf("the cursor is at %d, sweep due %t; expected %d, %t", got, c.SweepDue(), want, due)
			}
		}
		at(watermark.Beginning, true)
		c.Swept()
		c.Claimed(watermark.Beginning, 1000, nil)
		at(1000, false)
		c.Exhausted(1000)
		at(1000, false)
		<-time.After(5 * time.Minute)
		at(1000, true)
		c.Swept()
		at(watermark.Beginning, false)
		c.Claimed(watermark.Beginning, 17, nil) // its stamp had been removed
		c.Exhausted(1000)                       // a claim that began before the sweep
		at(17, false)
		c.Exhausted(17)
		at(1000, false)
		c.Reset()
		at(watermark.Beginning, false)
		c.Claimed(watermark.Beginning, 2000, nil)
		c.Exhausted(watermark.Beginning) // a claim that began before the other
		at(2000, false)
		c.Claimed(2000, 3000, new(int64(2101))) // some in between were left behind
		at(2100, false)
		c.Swept()
		c.Claimed(2100, 4000, nil) // it began before the sweep
		at(watermark.Beginning, false)
		c.Exhausted(watermark.Beginning)
		at(4000, false)
	})
}
