package delivery

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func TestAnswer(t *testing.T) {
	t.Parallel()
	odd := errors.New("odd")
	halves := []sink.Group{{Indexes: []int{0}}, {Indexes: []int{1}}}
	for _, c := range []struct {
		err  error
		want Answer
	}{
		{nil, Accepted},
		{odd, Nothing},
		{sink.Permanent(odd), Nothing},
		{sink.Permanent(sink.TooLarge(odd)), TooLarge},
		{&sink.SplitError{Groups: halves, TooLarge: true}, TooLarge},
		{&sink.SplitError{Groups: halves}, Nothing},
		{&sink.BatchError{}, Nothing},
		{sink.Unavailable(odd), Unavailable},
		{sink.MaybePoison(odd), Unavailable},
		{&sink.UnavailableError{Err: odd, RetryAfter: time.Second}, Unavailable},
		{sink.MaybePoison(fmt.Errorf("posting: %w", context.DeadlineExceeded)), TimedOut},
	} {
		r := interpret(&buffer.Batch{Events: make([]outbox.Event, 2)}, c.err, func(*outbox.Event) string { return "" })
		if got := r.answer(); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
