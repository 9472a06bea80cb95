package delivery_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// keyedBatch has an event of each key from id 101 on; "-" is NULL.
func keyedBatch(keys string) *buffer.Lease {
	b := batchOf(len(keys))
	for i := range keys {
		if key := keys[i : i+1]; key != "-" {
			b.Events[i].Key = &key
		}
	}
	return b
}

// What becomes of a batch under order: key.
func TestDecide_InOrder(t *testing.T) {
	t.Parallel()
	partly := func(events ...sink.EventError) error { return &sink.BatchError{Events: events} }
	at := func(i int, err error) sink.EventError { return sink.EventError{Index: i, Err: err} }
	blocked := &sink.KeyBlockedError{ID: 101, Err: errBad}
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
		keys     string
		attempts int // of the batch, before; 3 kill
		answer   error
		want     string
	}{
		{"delivered", "aba", 0, nil, "delivered []0/0"},
		{"one behind a refused one", "aba", 0, partly(at(0, errBad), at(2, blocked)), "delivered [102]0/0, retry [101 103]1/0"},
		{"accepted behind a refused one", "abab", 0, partly(at(0, errBad)), "delivered [102 104]0/0, retry [101 103]1/0"},
		{"accepted behind the only other one", "aa", 1, partly(at(0, errBad)), "retry [101 102]2/0"},
		{"behind one that was buried", "aba", 0, partly(at(0, forGood)), "dead [101]1/0, delivered [102 103]0/0"},
		{"behind one refused once too often", "aba", 2, partly(at(0, errBad)), "dead [101]3/0, delivered [102 103]0/0"},
		{"refused behind an unavailable one", "aab", 1, partly(at(0, down), at(1, errBad)), "delivered [103]0/0, retry [101 102]1/5"},
		{"unavailable behind a refused one", "aab", 1, partly(at(0, errBad), at(1, down)), "delivered [103]0/0, retry [101 102]2/0"},
		{"for good behind a refused one", "aab", 1, partly(at(0, errBad), at(1, forGood)), "dead [102]1/0, delivered [103]0/0, retry [101]2/0"},
		{"none has a key", "---", 0, partly(at(0, errBad)), "delivered [102 103]0/0, retry [101]1/0"},
		{"the attempts are the first one's", "aab", 2, partly(at(1, errBad)), "delivered [101 103]0/0, retry [102]1/0"},
		{"each key's own attempts", "aabb", 1, partly(at(1, errBad), at(2, errBad), at(3, blocked)), "delivered [101]0/0, retry [102]1/0, retry [103 104]2/0"},
		{"unavailable behind one delivered", "aa", 2, partly(at(1, down)), "delivered [101]0/0, retry [102]0/5"},
		{"all refused", "aa", 1, partly(at(0, errBad), at(1, blocked)), "retry [101 102]2/0"},
		{"halves", "abab", 2, errBad, "retry [101 102]2/0, retry [103 104]0/0"},
		{"halves that share nothing", "aabb", 2, errBad, "retry [101 102]2/0, retry [103 104]2/0"},
		{"to be split, and no key is", "abab", 1, split([]int{0, 2}, []int{1, 3}), "retry [101 103]1/0, retry [102 104]1/0"},
		{"to be split across a key", "abaa", 1, split([]int{0, 2}, []int{1, 3}), "retry [101]1/0, retry [102]1/0, retry [103]0/0, retry [104]0/0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newHarness(ordered)
			s.answer(c.answer)
			batch := keyedBatch(c.keys)
			batch.Attempts, batch.Outages = c.attempts, 4
			if _, _, err := s.work(t, batch); err != nil {
				t.Fatal(err)
			}
			got := make([]string, len(s.settled))
			for i, o := range s.settled {
				got[i] = fmt.Sprintf("%v %v%d/%d", o.Verdict, o.IDs, o.Attempts, o.Outages)
			}
			expect(t, "outcomes", strings.Join(got, ", "), c.want)
		})
	}
}

func ordered(c *delivery.Config) { c.Ordered = true }

// For any result and any unavailable addresses: no delivered event of a key is behind one that is
// sent again, and parts that share a key are cut by id.
func TestDecide_InOrderProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a := newAddressed(ordered)
		a.loseAddresses(t, rapid.SliceOfDistinct(rapid.SampledFrom(threeAddresses), rapid.ID).Draw(rt, "unavailable"))
		n := rapid.IntRange(1, 30).Draw(rt, "events")
		b := batchOf(n)
		b.Attempts = rapid.IntRange(0, 3).Draw(rt, "attempts")
		for i := range b.Events {
			e := &b.Events[i]
			e.Topic = rapid.SampledFrom(threeAddresses).Draw(rt, "address")
			if key := rapid.SampledFrom([]string{"", "k", "l", "m"}).Draw(rt, "key"); key != "" {
				e.Key = &key
			}
		}
		a.answer(orderedAnswer(rt, b))
		if _, err := a.Work(t.Context(), t.Context(), b, nil, nil); err != nil {
			rt.Fatal(err)
		}
		expectOrder(rt, b, a.settled)
	})
}

var threeAddresses = []string{"x", "y", "z"}

// loseAddresses has them found down, by time-outs.
func (a *addressed) loseAddresses(t *testing.T, addresses []string) {
	t.Helper()
	for _, address := range addresses {
		a.makeUnavailable(address, sink.MaybePoison(errDown))
		a.works(t, to(address))
		a.works(t, to(address))
	}
}

func orderedAnswer(rt *rapid.T, b *buffer.Lease) error {
	switch rapid.SampledFrom([]string{"some", "some", "whole", "split", "outage"}).Draw(rt, "kind") {
	case "whole":
		return errBad
	case "outage":
		return sink.Unavailable(errDown)
	case "split":
		groups, _ := sink.GroupByAddress(&b.Batch, byTopic(rt).Address)
		return &sink.SplitError{Groups: groups}
	}
	e := &sink.BatchError{}
	for i := range b.Events {
		if rapid.Bool().Draw(rt, "named") {
			e.Events = append(e.Events, sink.EventError{Index: i, Err: rapid.SampledFrom([]error{
				errBad, sink.Permanent(errBad), sink.Unavailable(errDown), &sink.KeyBlockedError{ID: 1, Err: errBad},
			}).Draw(rt, "error")})
		}
	}
	return e
}

func byTopic(rt *rapid.T) sink.Template {
	template, err := sink.ParseTemplate("{topic}", false)
	if err != nil {
		rt.Fatal(err)
	}
	return template
}

func expectOrder(rt *rapid.T, b *buffer.Lease, outcomes []buffer.Outcome) {
	part := map[int64]int{} // of those to be sent again
	known := map[int64]bool{}
	bounds := make([][]int64, len(outcomes))
	for n, o := range outcomes {
		ids := o.IDs
		if ids == nil {
			ids = b.IDs()
		}
		bounds[n] = []int64{slices.Min(ids), slices.Max(ids)}
		for _, id := range ids {
			if known[id] {
				rt.Fatalf("event %d has two outcomes", id)
			}
			known[id] = true
			if o.Verdict == buffer.Retry {
				part[id] = n
			}
		}
	}
	if len(known) != len(b.Events) {
		rt.Fatalf("%d of %d events have an outcome", len(known), len(b.Events))
	}
	stuck := map[string]int{}
	for i := range b.Events {
		e := &b.Events[i]
		if e.Key == nil {
			continue
		}
		in, again := part[e.ID]
		before, known := stuck[*e.Key]
		switch {
		case !again && known && slices.ContainsFunc(outcomes, func(o buffer.Outcome) bool {
			return o.Verdict == buffer.Delivered && slices.Contains(o.IDs, e.ID)
		}):
			rt.Fatalf("event %d of key %s is delivered, and one before it is sent again", e.ID, *e.Key)
		case again && known && in != before && bounds[before][1] > bounds[in][0]:
			rt.Fatalf("parts %v and %v share key %s", bounds[before], bounds[in], *e.Key)
		case again:
			stuck[*e.Key] = in
		}
	}
}

// A batch with several addresses is sent as a probe too, because events that wait for an
// unavailable address take their keys along.
func TestDefer_ProbesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(ordered)
		a.loseAddresses(t, []string{"x"})
		key := "k"
		b := to("x", "y", "y")
		b.Events[0].Key, b.Events[1].Key = &key, &key
		expect(t, "parts of a batch while an address is unavailable", describe(a.works(t, b)), "retry [101 102] retry [103]")
		mixed := to("x", "y")
		mixed.Events[0].Key, mixed.Events[1].Key = &key, &key
		a.answer(nil)
		expect(t, "sends before a probe is due", a.sendsOf(func() { a.works(t, mixed) }), 0)
		<-time.After(time.Minute)
		expect(t, "sends when it is", a.sendsOf(func() { a.works(t, mixed) }), 1)
	})
}

// Events that were not sent say nothing of their address.
func TestRecord_EventBehindAnotherIsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(ordered)
		key := "k"
		b := to("x", "y")
		b.Events[0].Key, b.Events[1].Key = &key, &key
		for range 3 {
			a.answer(&sink.BatchError{Events: []sink.EventError{
				{Index: 0, Err: errBad}, {Index: 1, Err: &sink.KeyBlockedError{ID: 101, Err: sink.MaybePoison(errDown)}},
			}})
			a.works(t, b)
		}
		expect(t, "sends to the address of the one behind", a.sendsOf(func() { a.works(t, to("y", "z")) }), 1)
	})
}
