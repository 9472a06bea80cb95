package httpsink

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// hostile never ends for an event whose payload is 1.
const hostile = `[.events[] | until(.payload != 1; .) | .id]`

func openHostile(t *testing.T, program string, limit time.Duration) *Sink {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	t.Cleanup(server.Close)
	s, err := New(Config{URL: server.URL, Request: program})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	s.request.TimeLimit = limit
	return s
}

func numberedEvents(n int, hostile ...int) *buffer.Batch {
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "p", PayloadIsJSON: true}
	for i := range n {
		payload := "0"
		if slices.Contains(hostile, i) {
			payload = "1"
		}
		b.Events = append(b.Events, outbox.Event{ID: int64(i + 1), Topic: "t", Payload: []byte(payload)})
	}
	return b
}

// TestIsolate_HostileEvent sends the parts of a batch until the event that exceeds the limit is refused alone.
func TestIsolate_HostileEvent(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int{"First": 0, "Elsewhere": 321} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openHostile(t, hostile, 2*time.Second)
			left := []*buffer.Batch{numberedEvents(1000, at)}
			delivered, divided := 0, 0
			var refused []sink.Group
			for len(left) > 0 {
				b := left[0]
				left = left[1:]
				err := s.Send(t.Context(), b)
				if err == nil {
					delivered += len(b.Events)
					continue
				}
				var groups []sink.Group
				if split, ok := errors.AsType[*sink.SplitError](err); ok {
					groups, divided = split.Groups, divided+1
				} else if some, ok := errors.AsType[*sink.BatchError](err); ok && len(b.Events) == 1 {
					groups = []sink.Group{{Indexes: []int{0}, Err: some.Events[0].Err}}
				} else {
					t.Fatalf("got %v for %d events", err, len(b.Events))
				}
				for _, g := range groups {
					if g.Err != nil {
						refused = append(refused, g)
						continue
					}
					part := *b
					part.Events = nil
					for _, i := range g.Indexes {
						part.Events = append(part.Events, b.Events[i])
					}
					left = append(left, &part)
				}
			}
			if delivered != 999 || len(refused) != 1 || divided > 5 {
				t.Fatalf("%d events were delivered and %d refused after %d divisions", delivered, len(refused), divided)
			}
			// One attempt, because the machine may have been too slow.
			if err := refused[0].Err; errors.Is(err, sink.ErrPermanent) || errors.Is(err, sink.ErrUnavailable) || !strings.Contains(err.Error(), "the program did not end within 2s") {
				t.Errorf("refused for %v", err)
			}
		})
	}
}

// TestIsolate_BrokenProgram never ends for any event: the program is to blame.
func TestIsolate_BrokenProgram(t *testing.T) {
	t.Parallel()
	s := openHostile(t, `until(false; .)`, 200*time.Millisecond)
	for _, n := range []int{1, 2, 100} {
		err := s.Send(t.Context(), numberedEvents(n))
		if split, ok := errors.AsType[*sink.SplitError](err); ok || !errors.Is(err, sink.ErrMaybePoison) {
			t.Errorf("%d events: got %v, %v; want an outage that they may cause", n, err, split)
		}
	}
}

// TestIsolate_Killed has a new process that somebody killed, perhaps the kernel because of one event. The batch is divided
// if the program has worked, and no event is to blame.
func TestIsolate_Killed(t *testing.T) {
	t.Parallel()
	s := openHostile(t, `.`, time.Second)
	for _, c := range []struct {
		events, groups int
		worked         bool
	}{{100, 4, true}, {2, 2, true}, {1, 0, true}, {100, 0, false}} {
		s.hasWorked.Store(c.worked)
		b := numberedEvents(c.events)
		r := &request{}
		for i := range b.Events {
			r.indexes = append(r.indexes, i)
		}
		err := s.requestFailed(t.Context(), b, r, nil, fmt.Errorf("%w", jq.ErrKilled))
		split, _ := errors.AsType[*sink.SplitError](err)
		switch {
		case c.groups == 0:
			if split != nil || !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrMaybePoison) {
				t.Errorf("%+v: got %v; want an outage", c, err)
			}
		case split == nil || len(split.Groups) != c.groups || split.Groups[0].Err != nil:
			t.Errorf("%+v: got %v; want a division", c, err)
		}
	}
}

// TestRequest_BoundedMemory has batches whose values take 100 times their text.
func TestRequest_BoundedMemory(t *testing.T) {
	const batches, bound = 8, 128 << 20
	s := openHostile(t, `[.events[].payload | length]`, time.Minute)
	b := numberedEvents(4)
	for i := range b.Events {
		b.Events[i].Payload = []byte("[" + strings.Repeat(`{"a":1},`, 1<<17-1) + "1]")
	}
	peak := testkit.HeapGrowth(t)
	failed := make(chan error, batches)
	for range batches {
		go func() { failed <- s.Send(t.Context(), b) }()
	}
	for range batches {
		testkit.NoError(t, <-failed)
	}
	if grown := peak(); grown > bound {
		t.Errorf("%d batches of 4 MiB took %d MiB; want at most %d", batches, grown>>20, bound>>20)
	}
}
