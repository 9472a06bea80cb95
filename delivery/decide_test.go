package delivery_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	partly := func(events ...sink.EventError) error { return &sink.BatchError{Events: events} }
	at := func(i int, err error) sink.EventError { return sink.EventError{Index: i, Err: err} }
	down, forGood := sink.Unavailable(errDown), sink.Permanent(errBad)
	split := func(groups ...[]int) error {
		e := &sink.SplitError{}
		for _, g := range groups {
			e.Groups = append(e.Groups, sink.Group{Indexes: g})
		}
		return e
	}
	for _, c := range []struct {
		name     string
		n        int
		attempts int // of the batch, before; 3 kill
		answer   error
		want     string // verdict, ids, attempts and outages of each outcome
	}{
		{"delivered", 3, 0, nil, "delivered []0/0"},
		{"an outage", 3, 2, down, "retry []2/5"},
		{"an outage, wrapped", 3, 0, fmt.Errorf("redis: %w", down), "retry []0/5"},
		{"one alone", 1, 2, down, "retry []2/5"},
		{"refused as a whole", 5, 1, errBad, "retry [101 102 103]1/0, retry [104 105]1/0"},
		{"refused as a whole, for good", 2, 0, forGood, "retry [101]0/0, retry [102]0/0"},
		{"refused as a whole, at the last attempt", 2, 2, errBad, "retry [101]0/0, retry [102]0/0"},
		{"one alone refused", 1, 0, errBad, "retry [101]1/0"},
		{"one alone refused once too often", 1, 2, errBad, "dead []3/0"},
		{"one alone refused for good", 1, 0, forGood, "retry [101]1/0"},
		{"one alone refused for good once too often", 1, 2, forGood, "dead []3/0"},

		{"no event named", 3, 0, partly(), "delivered []0/0"},
		{"one refused", 3, 0, partly(at(1, errBad)), "delivered [101 103]0/0, retry [102]1/0"},
		{"one refused for good", 3, 0, partly(at(1, forGood)), "dead [102]1/0, delivered [101 103]0/0"},
		{"one refused once too often", 3, 2, partly(at(2, errBad)), "dead [103]3/0, delivered [101 102]0/0"},
		{"one unavailable", 3, 1, partly(at(0, down)), "delivered [102 103]0/0, retry [101]1/5"},
		{"each has another fate", 4, 1, partly(at(3, forGood), at(0, down), at(2, errBad)), "dead [104]2/0, delivered [102]0/0, retry [101]1/5, retry [103]2/0"},
		{"all unavailable", 2, 1, partly(at(0, down), at(1, down)), "retry []1/5"},
		{"all refused", 2, 1, partly(at(0, errBad), at(1, errBad)), "retry [101 102]2/0"},
		{"all refused for good", 2, 0, partly(at(0, forGood), at(1, forGood)), "retry [101 102]1/0"},
		{"all refused, some for good", 2, 0, partly(at(0, errBad), at(1, forGood)), "retry [101]1/0, retry [102]1/0"},
		{"the only one refused", 1, 0, partly(at(0, errBad)), "retry [101]1/0"},

		{"to be split", 4, 1, split([]int{0, 3}, []int{1, 2}), "retry [101 104]1/0, retry [102 103]1/0"},

		// These name no event of the batch: none counts as delivered or refused.
		{"one beyond the batch named", 2, 2, partly(at(2, forGood)), "retry []2/5"},
		{"one before the batch named", 2, 2, partly(at(-1, forGood)), "retry []2/5"},
		{"one named without a reason", 2, 2, partly(at(0, nil)), "retry []2/5"},
		{"split into one", 2, 2, split([]int{0, 1}), "retry []2/5"},
		{"split with an event left out", 3, 2, split([]int{0}, []int{1}), "retry []2/5"},
		{"split with an event twice", 2, 2, split([]int{0, 1}, []int{1}), "retry []2/5"},
		{"split with an event twice and one left out", 3, 2, split([]int{0, 0}, []int{1}), "retry []2/5"},
		{"split beyond the batch", 2, 2, split([]int{0, 1}, []int{2}), "retry []2/5"},
		{"split with an empty part", 2, 2, split([]int{0, 1}, nil), "retry []2/5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(nil)
			b.answer(c.answer)
			batch := batchOf(c.n)
			batch.Attempts, batch.Outages = c.attempts, 4
			if _, _, err := b.work(t, batch); err != nil {
				t.Fatal(err)
			}
			got := make([]string, len(b.settled))
			for i, o := range b.settled {
				got[i] = fmt.Sprintf("%v %v%d/%d", o.Verdict, o.IDs, o.Attempts, o.Outages)
			}
			expect(t, "outcomes", strings.Join(got, ", "), c.want)
		})
	}
}

func TestDecide_ObeysRetryAfter(t *testing.T) {
	t.Parallel()
	busy := &sink.UnavailableError{Err: errDown, RetryAfter: 10 * time.Minute}
	for _, answer := range []error{
		busy, fmt.Errorf("http: %w", busy),
		&sink.BatchError{Events: []sink.EventError{{Index: 0, Err: sink.Unavailable(errDown)}, {Index: 1, Err: busy}, {Index: 2, Err: sink.Unavailable(errDown)}}},
	} {
		b := newHarness(nil)
		b.answer(answer)
		putBack, dueIn, err := b.work(t, batchOf(3))
		if !putBack || dueIn != 10*time.Minute || err != nil {
			t.Errorf("%v: put back %v for %v, %v; want 10m0s", answer, putBack, dueIn, err)
		}
		if b.settled[0].Address != nil {
			t.Errorf("%v: it may be sent sooner, when address %q is back", answer, *b.settled[0].Address)
		}
	}
}

// A sink that says when to come back bounds the backoff that earlier outages of the batch have raised. One that does so again and again is asked less often.
func TestDecide_RetryAfterOfAnOutage(t *testing.T) {
	t.Parallel()
	for asked, want := range map[time.Duration]time.Duration{time.Second: 30 * time.Second, 15 * time.Second: 30 * time.Second, time.Minute: time.Minute} {
		b := newHarness(nil)
		b.answer(&sink.UnavailableError{Err: errDown, RetryAfter: asked})
		batch := batchOf(3)
		batch.Outages = 20
		if putBack, dueIn, err := b.work(t, batch); !putBack || dueIn > want || dueIn < want/2 || err != nil {
			t.Errorf("asked for %v: put back %v for %v, %v; want %v", asked, putBack, dueIn, err, want)
		}
		deferred := batchOf(3) // which the pause keeps from being sent
		deferred.Outages = 20
		if putBack, dueIn, err := b.work(t, deferred); !putBack || dueIn > want || dueIn < want/2 || err != nil {
			t.Errorf("asked for %v: another is put back %v for %v, %v; want %v", asked, putBack, dueIn, err, want)
		}
	}
}

// For every answer of the sink: each event is in exactly one outcome, only accepted events count as
// delivered, only rejected ones are buried, no outage counts as an attempt, and the events of a
// group_id never change.
func TestDecide_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "events")
		batch := batchOf(n)
		batch.Attempts = rapid.IntRange(0, 4).Draw(rt, "attempts")
		batch.Outages = rapid.IntRange(0, 1e6).Draw(rt, "outages")
		refusal := func(label string) error {
			return rapid.SampledFrom([]error{
				errBad, sink.Permanent(errBad), sink.Unavailable(errDown),
				&sink.UnavailableError{Err: errDown, RetryAfter: time.Hour},
			}).Draw(rt, label)
		}

		fate := make([]error, n) // what the sink says of each
		var answer error
		whole := false
		switch rapid.SampledFrom([]string{"all", "some", "whole", "split"}).Draw(rt, "kind") {
		case "some":
			e := &sink.BatchError{}
			for i := range n {
				if rapid.Bool().Draw(rt, "named") {
					fate[i] = refusal("event")
					e.Events = append(e.Events, sink.EventError{Index: i, Err: fate[i]})
				}
			}
			e.Events = rapid.Permutation(e.Events).Draw(rt, "order")
			answer = e
		case "whole":
			whole = true
			answer = refusal("batch")
			for i := range fate {
				fate[i] = answer
			}
		case "split":
			whole = true
			groups := make([]sink.Group, rapid.IntRange(1, 4).Draw(rt, "groups"))
			for i := range n {
				g := rapid.IntRange(0, len(groups)-1).Draw(rt, "group")
				groups[g].Indexes = append(groups[g].Indexes, i)
			}
			answer = &sink.SplitError{Groups: groups}
			for i := range fate {
				fate[i] = sink.Unavailable(answer)
			}
		}

		b := newHarness(nil)
		b.answer(answer)
		if _, _, err := b.work(t, batch); err != nil {
			rt.Fatal(err)
		}

		others := slices.ContainsFunc(fate, func(err error) bool { return err == nil || errors.Is(err, sink.ErrUnavailable) })
		seen := map[int64]int{}
		groups := map[uuid.UUID]bool{batch.GroupID: true}
		for _, o := range b.settled {
			ids := o.IDs
			switch {
			case ids == nil && len(b.settled) > 1:
				rt.Fatalf("an outcome for all is one of several: %+v", b.settled)
			case ids == nil:
				ids = batch.IDs()
				if o.Verdict == buffer.Retry && o.GroupID != batch.GroupID {
					rt.Fatalf("a batch that stays whole changes its group_id")
				}
			case o.Verdict == buffer.Retry && groups[o.GroupID]:
				rt.Fatalf("a part gets a group_id that is used already")
			}
			if o.Verdict == buffer.Retry {
				groups[o.GroupID] = true
			}
			if !slices.IsSorted(ids) || len(ids) == 0 {
				rt.Fatalf("ids %v of %v", ids, o.Verdict)
			}
			for _, id := range ids {
				seen[id]++
				err := fate[id-101]
				down := errors.Is(err, sink.ErrUnavailable)
				last := errors.Is(err, sink.ErrPermanent) && others || batch.Attempts+1 >= 3
				halved := whole && n > 1 && !down
				want := buffer.Retry
				switch {
				case err == nil:
					want = buffer.Delivered
				case !down && !halved && last:
					want = buffer.Dead
				}
				if o.Verdict != want {
					rt.Fatalf("event %d, with result %v, is %v; want %v", id, err, o.Verdict, want)
				}
				if want == buffer.Delivered {
					continue
				}
				attempts := batch.Attempts + 1
				if down || halved {
					attempts = batch.Attempts
				}
				if halved && len(ids) == 1 {
					attempts = 0 // it has all of its own
				}
				if o.Attempts != attempts {
					rt.Fatalf("event %d, of which the sink says %v, has %d attempts; want %d", id, err, o.Attempts, attempts)
				}
			}
			if o.After < 0 || o.Verdict == buffer.Retry && o.Outages > 0 && o.After == 0 {
				rt.Fatalf("an outage waits %v", o.After)
			}
		}
		for _, id := range batch.IDs() {
			if seen[id] != 1 {
				rt.Fatalf("event %d stands in %d outcomes: %+v", id, seen[id], b.settled)
			}
		}
	})
}
