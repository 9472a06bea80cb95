package admin

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Retried is what a request to retry everything that waits has found.
type Retried struct {
	// Due are the batches that waited, and are due now.
	Due int
	// Sending are those that relays had at that moment. They are counted only if none waited.
	Sending int
}

// Text says it in a few words.
func (r Retried) Text() string {
	switch {
	case r.Due == 1:
		return "1 batch is due now"
	case r.Due > 1:
		return Count(int64(r.Due)) + " batches are due now"
	case r.Sending == 1:
		return "nothing was changed: 1 batch is being sent at this moment"
	case r.Sending > 1:
		return "nothing was changed: " + Count(int64(r.Sending)) + " batches are being sent at this moment"
	}
	return "nothing waits"
}

// maxSending is how many live batches are looked at for Retried.Sending.
const maxSending = 1000

// RetryAll makes every waiting batch of a buffer due, those of its dead-letter hook too. sinks are the names of several
// configured sinks, nil for a single one; hooks are those of them with a hook of their own. The running relays notice it within a second or two, and end their pauses.
func RetryAll(ctx context.Context, b buffer.Buffer, sinks, hooks []string) (r Retried, err error) {
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
	if r.Due, err = retryAll(ctx, queues, request); err != nil || r.Due > 0 {
		return r, err
	}
	live, _, err := b.ListBatches(ctx, maxSending)
	if err != nil {
		return r, err
	}
	waits := false
	for i := range live {
		switch one := &live[i]; {
		case one.State == "leased" && one.Due > 0:
			r.Sending++
		case one.State == "waiting": // the relay that had it a moment ago could not send it
			waits = true
		}
	}
	if waits {
		r.Due, err = retryAll(ctx, queues, request)
		if r.Due == 0 { // a relay has it again
			r.Sending++
		}
	}
	return r, err
}

// retryAll makes the waiting batches of some queues due, and returns how many.
func retryAll(ctx context.Context, queues []buffer.Deferrer, request string) (batches int, err error) {
	for _, queue := range queues {
		n, err := queue.RetryAll(ctx, request)
		if err != nil {
			return batches, err
		}
		batches += n
	}
	return batches, nil
}
