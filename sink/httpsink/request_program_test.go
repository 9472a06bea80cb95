package httpsink_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// rejectBad fails on events of the topic "bad".
const rejectBad = `[.events[] | if .topic == "bad" then error("no \(.id)") else .id end]`

func TestBisect_SplitsOffBadEvents(t *testing.T) {
	t.Parallel()
	url, bodies := recordBodies(t)
	s := open(t, httpsink.Config{URL: url, Request: rejectBad})
	rapid.Check(t, func(t *rapid.T) {
		topics := rapid.SliceOfN(rapid.SampledFrom([]string{"good", "good", "good", "good", "bad"}), 2, 40).Draw(t, "topics")
		var want [2][]int
		for i, topic := range topics {
			which := 0
			if topic == "bad" {
				which = 1
			}
			want[which] = append(want[which], i)
		}
		*bodies = nil
		err := s.Send(t.Context(), batch(topics...))
		split, isSplit := errors.AsType[*sink.SplitError](err)
		switch {
		case len(want[1]) == 0:
			if err != nil {
				t.Fatalf("got %v", err)
			}
		case len(want[0]) == 0: // the program is the cause
			if isSplit || !errors.Is(err, sink.ErrMaybePoison) || len(*bodies) > 0 {
				t.Fatalf("got %v, want an outage that may be poison; sent %q", err, *bodies)
			}
		default:
			if !isSplit || len(*bodies) > 0 {
				t.Fatalf("got %v, want a *sink.SplitError; sent %q", err, *bodies)
			}
			var good, bad []int
			for _, g := range split.Groups {
				switch {
				case g.Err != nil:
					bad = append(bad, g.Indexes...)
					if i := g.Indexes[0]; len(g.Indexes) != 1 || topics[i] != "bad" || !errors.Is(g.Err, sink.ErrPermanent) ||
						!strings.Contains(g.Err.Error(), fmt.Sprintf("request of event %d: error: no %[1]d (nothing was sent", i+1)) {
						t.Fatalf("%q: %v are rejected with %v", topics, g.Indexes, g.Err)
					}
				case len(want[1]) <= 4: // otherwise some are not tried
					good = append(good, g.Indexes...)
				}
			}
			if diff := cmp.Diff(want, [2][]int{good, bad}); diff != "" && len(want[1]) <= 4 {
				t.Fatalf("good and bad ones (-want +got):\n%s", diff)
			}
		}
	})
}

// TestBisect_MoreBadEventsThanRuns sends the groups until none is left.
func TestBisect_MoreBadEventsThanRuns(t *testing.T) {
	t.Parallel()
	url, bodies := recordBodies(t)
	s := open(t, httpsink.Config{URL: url, Request: rejectBad})
	var topics []string
	for range 200 {
		topics = append(topics, "good", "bad")
	}
	left, buried := []*buffer.Batch{batch(topics...)}, 0
	for len(left) > 0 {
		b := left[0]
		left = left[1:]
		err := s.Send(testContext(t), b)
		split, isSplit := errors.AsType[*sink.SplitError](err)
		if !isSplit {
			testkit.NoError(t, err)
			continue
		}
		for _, g := range split.Groups {
			if g.Err != nil {
				buried++
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
	if buried != 200 {
		t.Errorf("%d of 200 bad events are rejected", buried)
	}
	if n := strings.Count(strings.Join(*bodies, ""), `"`) / 2; n != 200 {
		t.Errorf("%d of 200 good events are sent: %q", n, *bodies)
	}
}

func TestBisect_RepeatedBatch(t *testing.T) {
	t.Parallel()
	url, bodies := recordBodies(t)
	s := open(t, httpsink.Config{URL: url, Request: rejectBad})
	b := batch("good", "bad", "good")
	b.FirstSend = false
	err := s.Send(testContext(t), b)
	split, isSplit := errors.AsType[*sink.SplitError](err)
	if !isSplit || len(split.Groups) != 2 || !slices.Equal(split.Groups[0].Indexes, []int{0, 2}) || !errors.Is(split.Groups[1].Err, sink.ErrPermanent) {
		t.Errorf("got %v, want the second to be split off", err)
	}
	err = s.Send(testContext(t), batch("bad"))
	expectMaybePoison(t, err, true)
	if !strings.Contains(err.Error(), "request of event 1: error: no 1 (nothing was sent") {
		t.Errorf("got %v", err)
	}
	if len(*bodies) > 0 {
		t.Errorf("sent: %q", *bodies)
	}
}
