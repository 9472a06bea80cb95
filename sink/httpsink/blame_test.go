package httpsink_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// pickyJQ takes no event of the topic "bad".
const pickyJQ = `[.events[] | if .topic == "bad" then error("no \(.id)") else .id end]`

// TestBadEventsAreParted: what the program takes need not wait with what it does not,
// and nothing is sent meanwhile.
func TestBadEventsAreParted(t *testing.T) {
	t.Parallel()
	url, bodies := keeping(t)
	s := open(t, httpsink.Config{URL: url, Request: pickyJQ})
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
		b := batch(topics...)
		*bodies = nil
		err := s.Send(t.Context(), b)
		divide, isDivide := errors.AsType[*sink.DivideError](err)
		switch {
		case len(want[1]) == 0:
			if err != nil {
				t.Fatalf("got %v", err)
			}
		case len(want[0]) == 0: // the program's own doing
			if isDivide || !errors.Is(err, sink.ErrSuspect) || len(*bodies) > 0 {
				t.Fatalf("got %v, want a suspect outage; sent %q", err, *bodies)
			}
		default:
			if !isDivide || len(*bodies) > 0 {
				t.Fatalf("got %v, want a *sink.DivideError; sent %q", err, *bodies)
			}
			// Where there are many bad ones, good ones beside them are parted later.
			good := divide.Groups[0].Indexes
			if bad := divide.Groups[1].Indexes; len(good)+len(bad) != len(topics) || slices.ContainsFunc(good, func(i int) bool { return topics[i] == "bad" }) {
				t.Fatalf("%q are parted into %v and %v", topics, good, bad)
			}
			if len(want[1]) <= 4 {
				if diff := cmp.Diff(want[0], good); diff != "" {
					t.Fatalf("the good ones (-want +got):\n%s", diff)
				}
			}
		}
	})
}

// TestWhatMayHaveBeenSentIsNotParted: its parts would go out under other group_ids.
func TestWhatMayHaveBeenSentIsNotParted(t *testing.T) {
	t.Parallel()
	url, bodies := keeping(t)
	s := open(t, httpsink.Config{URL: url, Request: pickyJQ})
	for name, sent := range map[string]func(*outbox.Batch){
		"an outage":         func(b *outbox.Batch) { b.Outages = 1 },
		"a refusal":         func(b *outbox.Batch) { b.Attempts = 1 },
		"an owner who died": func(b *outbox.Batch) { b.Starts = 2 },
	} {
		b := batch("good", "bad", "good")
		sent(b)
		err := s.Send(within(t), b)
		if errors.As(err, new(*sink.DivideError)) || !errors.Is(err, sink.ErrSuspect) || !strings.Contains(err.Error(), "no 2") {
			t.Errorf("%s: got %v, want a suspect outage", name, err)
		}
	}
	err := s.Send(within(t), batch("bad"))
	suspect(t, err, true)
	if !strings.Contains(err.Error(), "request of event 1: error: no 1 (nothing was sent") {
		t.Errorf("got %v", err)
	}
	if len(*bodies) > 0 {
		t.Errorf("sent: %q", *bodies)
	}
}
