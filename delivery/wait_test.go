package delivery_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The wait for a rate is not the sink's time, which a batch's size is found by.
func TestTheWaitForARateIsNotTheSinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.send = func(ctx context.Context, _ *buffer.Batch) error {
			for range 2 {
				<-time.After(3 * time.Second)
				sink.Waited(ctx, 3*time.Second)
			}
			<-time.After(time.Second)
			return nil
		}
		done, err := b.Work(t.Context(), t.Context(), batchOf(3))
		expectError(t, err, nil)
		expect(t, "sent", done.Sent, time.Second)
		sink.Waited(t.Context(), time.Second) // nobody's
	})
}
