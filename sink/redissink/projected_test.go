package redissink_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// projected is b with the topics that the projection of this attempt returns.
func projected(b *buffer.Batch, topics ...string) *buffer.Batch {
	again := *b
	again.Projected, again.Events = true, slices.Clone(b.Events)
	for i, topic := range topics {
		again.Events[i].Topic = topic
	}
	return &again
}

// expectQueue fails the test unless the asynq queue contains exactly these events, in the
// order in which they were pushed.
func expectQueue(t testing.TB, c *redis.Client, queue string, want ...string) {
	t.Helper()
	got := c.LRange(t.Context(), "asynq:{"+queue+"}:pending", 0, -1).Val()
	slices.Reverse(got)
	for i := range got {
		got[i] = strings.TrimPrefix(got[i], "test:")
	}
	if !slices.Equal(got, want) {
		t.Errorf("queue %s contains %v; want %v", queue, got, want)
	}
}

// markerModes are the modes with markers, with addresses by topic.
var markerModes = map[redissink.Mode]struct {
	cfg     redissink.Config
	markers string
	broken  string
	expect  func(testing.TB, *redis.Client, string, ...string)
}{
	redissink.Stream: {
		redissink.Config{},
		"{%s}:relay:", "%s",
		func(t testing.TB, c *redis.Client, stream string, want ...string) {
			t.Helper()
			expectStream(t, c, stream, want...)
		},
	},
	redissink.Asynq: {redissink.Config{Mode: redissink.Asynq, Queue: "{topic}"}, "asynq:{%s}:relay:", "asynq:{%s}:pending", expectQueue},
}

// Events that wait for an address are projected to go to another one, where what went
// under their origin is known: that is no proof of theirs.
func TestProjected_PartMovesToOtherAddress(t *testing.T) {
	t.Parallel()
	for mode, at := range markerModes {
		_, s, c := start(t, at.cfg)
		testkit.NoError(t, c.Set(t.Context(), fmt.Sprintf(at.broken, "b"), "a string", 0).Err())
		b := projected(newBatch("a", "b", "a", "b", "b"))
		id := ids(b)
		expectParts(t, send(t, s, b), sink.ErrUnavailable, 1, 3, 4)
		names := func(word string, of ...int) string {
			for _, i := range of {
				word += "," + id[i]
			}
			return word + ","
		}
		marker := fmt.Sprintf(at.markers, "a")
		expectMarkers(t, c, marker, window, map[uuid.UUID]string{b.GroupID: names("sent", 0, 2)})

		moved := projected(part(b, 1, 3), "a", "a")
		for range 2 {
			if delivered, err := s.Fence(t.Context(), projected(part(b, 1), "a")); delivered || err != nil {
				t.Errorf("%s: Fence of unsent events: %v, %v", mode, delivered, err)
			}
		}
		mustSend(t, s, moved, moved)
		at.expect(t, c, "a", id[0], id[2], id[1], id[3])

		// An event that is present is not added again, whether the voided origin or the own
		// marker names it.
		if done := keys(t, c, "hash"); len(done) > 0 { // as asynq deletes tasks that are done
			testkit.NoError(t, c.Del(t.Context(), done...).Err())
		}
		mixed := projected(part(b, 0, 4, 2), "a", "a", "a")
		mustSend(t, s, mixed, mixed)
		at.expect(t, c, "a", id[0], id[2], id[1], id[3], id[4])
		known := part(b, 0, 2)
		mustSend(t, s, known)
		at.expect(t, c, "a", id[0], id[2], id[1], id[3], id[4])
		if got := c.Get(t.Context(), marker+known.GroupID.String()).Val(); got != names("sent", 0, 2) {
			t.Errorf("%s: the marker of a known batch is %s", mode, got)
		}
		if got := c.Get(t.Context(), marker+mixed.GroupID.String()).Val(); got != names("sent", 0, 4, 2) {
			t.Errorf("%s: the own marker is %s", mode, got)
		}
		if got := c.Get(t.Context(), marker+b.GroupID.String()).Val(); got != names("void", 0, 2) {
			t.Errorf("%s: the origin's marker is %s", mode, got)
		}
		for _, is := range []struct {
			b    *buffer.Batch
			want bool
		}{
			{mixed, true},
			{projected(part(mixed, 1)), true},
			{projected(part(b, 2)), true}, // although the origin is void
			{projected(part(moved, 0, 1)), true},
			{projected(part(b, 0, 1)), false},
		} {
			if delivered, err := s.Fence(t.Context(), is.b); delivered != is.want || err != nil {
				t.Errorf("%s: Fence: %v, %v; want %v", mode, delivered, err, is.want)
			}
		}
		if err := send(t, s, b); !errors.Is(err, sink.ErrFenced) {
			t.Errorf("%s: a former owner: got %v; want sink.ErrFenced", mode, err)
		}
		if err := send(t, s, moved); !errors.Is(err, sink.ErrFenced) && err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		at.expect(t, c, "a", id[0], id[2], id[1], id[3], id[4])
	}
}

// A batch is resent under its group_id, with events that went to other addresses before.
func TestProjected_BatchMovesToOtherAddress(t *testing.T) {
	t.Parallel()
	for mode, at := range markerModes {
		_, s, c := start(t, at.cfg)
		testkit.NoError(t, c.Set(t.Context(), fmt.Sprintf(at.broken, "b"), "a string", 0).Err())
		b := projected(newBatch("a", "b", "a"))
		id := ids(b)
		expectParts(t, send(t, s, b), sink.ErrUnavailable, 1)
		mustSend(t, s, projected(b, "a", "a", "a"), projected(b, "a", "a", "a"))
		at.expect(t, c, "a", id[0], id[2], id[1])
		testkit.NoError(t, c.Del(t.Context(), fmt.Sprintf(at.broken, "b")).Err())
		mustSend(t, s, projected(b, "a", "a", "b"), projected(b, "a", "a", "a"))
		at.expect(t, c, "a", id[0], id[2], id[1])
		at.expect(t, c, "b", id[2])

		// Fenced when a part was sent: no Send adds the rest.
		fenced := projected(b, "b", "a", "b")
		if delivered, err := s.Fence(t.Context(), fenced); delivered || err != nil {
			t.Errorf("%s: Fence: %v, %v", mode, delivered, err)
		}
		if err := send(t, s, fenced); !errors.Is(err, sink.ErrFenced) {
			t.Errorf("%s: got %v, want sink.ErrFenced", mode, err)
		}
		at.expect(t, c, "b", id[2])
		mustSend(t, s, projected(part(fenced, 0, 2)))
		at.expect(t, c, "b", id[2], id[0])
	}
}

// After an undo the marker names the events that were present before.
func TestProjected_MarkerAfterUndo(t *testing.T) {
	t.Parallel()
	for _, at := range markerModes {
		_, s, c := start(t, at.cfg)
		b := projected(newBatch("a", "b"))
		id := ids(b)
		mustSend(t, s, b)
		again := projected(b, "a", "a")
		testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-set").Err())
		expectOutage(t, send(t, s, again), "")
		testkit.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "+set").Err())
		at.expect(t, c, "a", id[0])
		mustSend(t, s, again, again)
		at.expect(t, c, "a", id[0], id[1])
	}
}

// A marker without names and one with names do not stand for each other.
func TestProjected_MarkerWithoutNames(t *testing.T) {
	t.Parallel()
	for mode, at := range markerModes {
		_, s, c := start(t, at.cfg)
		plain := newBatch("a", "a")
		mustSend(t, s, plain, plain)
		mustSend(t, s, projected(part(plain, 0)))
		if got := c.Get(t.Context(), fmt.Sprintf(at.markers, "a")+plain.GroupID.String()).Val(); got != "void" {
			t.Errorf("%s: the marker without names is %s", mode, got)
		}
		named := projected(newBatch("a", "a"))
		mustSend(t, s, named, projected(part(named, 0)))
		rest := part(named, 1)
		rest.Projected = false
		mustSend(t, s, rest)
		if err := send(t, s, named); !errors.Is(err, sink.ErrFenced) {
			t.Errorf("%s: got %v, want sink.ErrFenced", mode, err)
		}
		fixed := opened(t, redissink.Config{URL: "redis://" + c.Options().Addr, Mode: mode, Stream: "all", Queue: "all", DedupeWindow: window})
		one := projected(newBatch("a"))
		mustSend(t, fixed, one)
		expectMarkers(t, c, fmt.Sprintf(at.markers, "all"), window, map[uuid.UUID]string{one.GroupID: "sent all"})
	}
}

// An event that cannot be a task becomes valid when it is projected again. No marker may
// claim by then that it was sent with the others.
func TestProjected_AsynqEventBecomesValid(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"default", "{topic}"} {
		_, s, c := start(t, redissink.Config{Mode: redissink.Asynq, Queue: queue, Class: "{key}"})
		b := projected(newBatch("default", "default", "default"))
		id := ids(b)
		for i := range b.Events {
			b.Events[i].Key = new("kind")
		}
		b.Events[1].Key = nil
		var split *sink.SplitError
		if err := send(t, s, b); !errors.As(err, &split) || len(split.Groups) != 2 || !errors.Is(split.Groups[1].Err, sink.ErrPermanent) ||
			!slices.Equal(split.Groups[0].Indexes, []int{0, 2}) || !slices.Equal(split.Groups[1].Indexes, []int{1}) || split.Groups[0].Err != nil {
			t.Fatalf("got %v", err)
		}
		if n := c.Exists(t.Context(), "asynq:{default}:pending", "asynq:queues").Val(); n != 0 {
			t.Error("some events were sent")
		}
		// For a take-over of the batch as well as for its parts.
		fits := projected(b)
		fits.Events[1].Key = new("kind")
		mustSend(t, s, part(b, 0, 2), part(fits, 1))
		expectQueue(t, c, "default", id[0], id[2], id[1])
		whole := projected(newBatch("default", "default"))
		whole.Events[0].Key = new("kind")
		if err := send(t, s, whole); !errors.As(err, &split) {
			t.Fatalf("got %v", err)
		}
		whole.Events[1].Key = new("kind")
		mustSend(t, s, whole)
		expectQueue(t, c, "default", id[0], id[2], id[1], ids(whole)[0], ids(whole)[1])
	}
}
