package admin

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// RetryAll makes every waiting batch of a buffer due, those of its dead-letter hook too, and returns how many. sinks are the names of several
// configured sinks, nil for a single one; hooks are those of them with a hook of their own. The running relays notice it within a second or two, and end their pauses.
func RetryAll(ctx context.Context, b buffer.Buffer, sinks, hooks []string) (batches int, err error) {
	request := buffer.NewRetryRequest()
	queues := []buffer.Deferrer{b, b.DeadLetterQueue()}
	if router, ok := b.(buffer.Router); ok {
		for _, sink := range sinks {
			queues = append(queues, router.Sink(sink))
		}
	}
	if owner, ok := b.(buffer.SinkHooks); ok {
		for _, sink := range hooks {
			queues = append(queues, owner.SinkDeadLetterQueue(sink))
		}
	}
	for _, queue := range queues {
		n, err := queue.RetryAll(ctx, request)
		if err != nil {
			return batches, err
		}
		batches += n
	}
	return batches, nil
}
