package redissink_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

var lastID atomic.Int64

// newBatch returns a batch with one event for each topic.
func newBatch(topics ...string) *buffer.Batch {
	events := make([]outbox.Event, len(topics))
	for i, topic := range topics {
		events[i] = outbox.Event{ID: lastID.Add(1), Topic: topic, Payload: []byte(`{"n": 1}`), CreatedAt: time.Now().UTC()}
	}
	return batchOf(events, nil)
}

func batchOf(events []outbox.Event, origins []uuid.UUID) *buffer.Batch {
	return &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "test", Events: events, PayloadIsJSON: true, Origins: origins}
}

// times repeats a topic.
func times(n int, topic string) []string { return slices.Repeat([]string{topic}, n) }

// part is some events of b under a new group_id, as after a split.
func part(b *buffer.Batch, indexes ...int) *buffer.Batch {
	var events []outbox.Event
	for _, i := range indexes {
		events = append(events, b.Events[i])
	}
	p := batchOf(events, append(slices.Clone(b.Origins), b.GroupID))
	p.Projected = b.Projected
	return p
}

func ids(b *buffer.Batch) []string {
	var all []string
	for _, id := range b.IDs() {
		all = append(all, strconv.FormatInt(id, 10))
	}
	return all
}

// send sends within 20 seconds.
func send(t testing.TB, s sink.Sink, b *buffer.Batch) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return s.Send(ctx, b)
}

func mustSend(t testing.TB, s sink.Sink, batches ...*buffer.Batch) {
	t.Helper()
	for _, b := range batches {
		testkit.NoError(t, send(t, s, b))
	}
}

// expectOutage ends the test unless err is an outage whose message contains text.
func expectOutage(t testing.TB, err error, text string) {
	t.Helper()
	if !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) || !contains(err, text) {
		t.Fatalf("got %v; want an outage that contains %q", err, text)
	}
}

// expectParts ends the test unless err names exactly these events, each with that kind of
// error (nil: a rejection that is retried). It returns the first one's message.
func expectParts(t testing.TB, err error, kind error, indexes ...int) string {
	t.Helper()
	var batch *sink.BatchError
	if !errors.As(err, &batch) {
		t.Fatalf("got %v, want a *sink.BatchError", err)
	}
	var got []int
	for _, e := range batch.Events {
		got = append(got, e.Index)
		for _, k := range []error{sink.ErrUnavailable, sink.ErrPermanent} {
			wanted := kind != nil && errors.Is(kind, k)
			if errors.Is(e.Err, k) != wanted {
				t.Errorf("event %d: got %v, want %v", e.Index, e.Err, kind)
			}
		}
	}
	if !slices.Equal(got, indexes) {
		t.Fatalf("got events %v, want %v", got, indexes)
	}
	return batch.Events[0].Err.Error()
}

// expectStream fails the test unless the stream contains exactly these events, in this order.
func expectStream(t testing.TB, c redis.Cmdable, stream string, want ...string) {
	t.Helper()
	entries, err := c.XRange(t.Context(), stream, "-", "+").Result()
	testkit.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprint(e.Values["id"]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("stream %s contains %v; want %v", stream, got, want)
	}
}

// sent is the marker of a batch that was sent with the default template.
const sent = "sent {topic}"

// expectMarkers fails the test unless the keys with the prefix are these markers, and each
// expires within the window.
func expectMarkers(t testing.TB, c *redis.Client, prefix string, window time.Duration, want map[uuid.UUID]string) {
	t.Helper()
	got := map[uuid.UUID]string{}
	for _, key := range keys(t, c, "string") {
		if len(key) < len(prefix) || key[:len(prefix)] != prefix {
			continue
		}
		id, err := uuid.Parse(key[len(prefix):])
		testkit.NoError(t, err)
		got[id] = c.Get(t.Context(), key).Val()
		if ttl := c.PTTL(t.Context(), key).Val(); ttl <= window-time.Minute || ttl > window {
			t.Errorf("marker %s expires in %v, want %v", key, ttl, window)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("markers are %v, want %v", got, want)
	}
}
