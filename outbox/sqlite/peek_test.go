package sqlite_test

import (
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TestPeek_InOrder: Peek omits events that wait for their key.
func TestPeek_InOrder(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimAuto).Open(t, buffertest.Options{Ordered: true})
	var events []outbox.Event
	for _, key := range []string{"a", "b", "a", "c", "b"} {
		events = append(events, outbox.Event{Topic: "t", Key: &key, Payload: []byte("1")})
	}
	ids := f.Insert(t, events...)
	_, err := f.Buffer.Claim(t.Context(), 1, time.Hour) // of key a
	testkit.NoError(t, err)
	peeked, err := f.Buffer.Peek(t.Context(), 2)
	testkit.NoError(t, err)
	batch, err := f.Buffer.Claim(t.Context(), 2, time.Hour)
	testkit.NoError(t, err)
	if got := peeked.IDs(); !slices.Equal(got, batch.IDs()) || slices.Contains(got, ids[2]) {
		t.Fatalf("peeked %v, claimed %v", got, batch.IDs())
	}
}
