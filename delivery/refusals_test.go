package delivery_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// ledger is the batches of one worker, which works on one after the other.
type ledger struct {
	*workerHarness
	// answer is the sink's, and requests how often it was asked about each event.
	answer   func(ids []int64) error
	requests map[int64]int

	bubble          bool // each request takes a millisecond
	batches         []*waiting
	keys            map[uuid.UUID]bool // group_ids that an answer refused
	delivered, dead []int64
	report          delivery.Report // of the last batch
}

// waiting is a batch and when it is due.
type waiting struct {
	*buffer.Lease
	due  time.Time
	held bool
}

func newLedger(change func(*delivery.Config), answer func(ids []int64) error) *ledger {
	l := &ledger{workerHarness: newHarness(change), answer: answer, requests: map[int64]int{}, keys: map[uuid.UUID]bool{}}
	l.send = func(_ context.Context, b *buffer.Batch) error {
		if l.bubble {
			<-time.After(time.Millisecond)
		}
		ids := b.IDs()
		for _, id := range ids {
			l.requests[id]++
		}
		return l.answer(ids)
	}
	return l
}

// put adds a batch of fresh events.
func (l *ledger) put(ids ...int64) {
	l.batches = append(l.batches, &waiting{Lease: leaseOf(buffer.NewGroupID(), ids), due: time.Now()})
}

func leaseOf(groupID uuid.UUID, ids []int64) *buffer.Lease {
	b := &buffer.Lease{Batch: buffer.Batch{GroupID: groupID}, UnfinishedLeases: 1, FirstID: ids[0], LastID: ids[len(ids)-1]}
	for _, id := range ids {
		b.Events = append(b.Events, outbox.Event{ID: id})
	}
	return b
}

func idsFrom(first int64, n int) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = first + int64(i)
	}
	return ids
}

// next works on the batch that has been due longest, and returns its outcomes; nil: none is due yet.
func (l *ledger) next(t testing.TB) []buffer.Outcome {
	t.Helper()
	return l.take(t, func([]*waiting) int { return 0 }, false)
}

// search goes on after a batch that was halved, as a pipeline does.
func (l *ledger) search(t testing.TB) {
	t.Helper()
	if l.report.Halved == nil || !l.BeginSearch(l.report.Halved, 4) {
		return
	}
	defer l.EndSearch()
	smallest := func(due []*waiting) int {
		return slices.Index(due, slices.MinFunc(due, func(a, b *waiting) int {
			return cmp.Or(cmp.Compare(a.Len(), b.Len()), cmp.Compare(a.FirstID, b.FirstID))
		}))
	}
	for {
		if goesOn, _ := l.Searching(); !goesOn || l.take(t, smallest, true) == nil || !l.report.WasRefused {
			return
		}
	}
}

// take works on one of the batches that are due, which come in the order of their times.
func (l *ledger) take(t testing.TB, which func(due []*waiting) int, searched bool) []buffer.Outcome {
	t.Helper()
	if l.accepts > 0 { // RetryRefused
		l.accepts = 0
		for _, b := range l.batches {
			if b.held {
				b.due = time.Now()
			}
		}
	}
	slices.SortStableFunc(l.batches, func(a, b *waiting) int { return a.due.Compare(b.due) })
	due := 0
	for due < len(l.batches) && !l.batches[due].due.After(time.Now()) {
		due++
	}
	if due == 0 {
		return nil
	}
	at := which(l.batches[:due])
	batch := l.batches[at].Lease
	l.batches = slices.Delete(l.batches, at, at+1)
	batch.Searched = searched
	if l.keys[batch.GroupID] {
		t.Fatalf("batch %v is sent again under the group_id that was refused", batch.IDs())
	}
	batch.ClaimedLocal = time.Now()
	sends := l.sends
	var err error
	if l.report, err = l.Work(t.Context(), t.Context(), batch, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, o := range l.settled {
		ids := o.IDs
		if ids == nil {
			ids = batch.IDs()
		}
		switch o.Verdict {
		case buffer.Delivered:
			l.delivered = append(l.delivered, ids...)
		case buffer.Dead:
			l.dead = append(l.dead, ids...)
		case buffer.Retry:
			again := leaseOf(o.GroupID, ids)
			again.Attempts, again.Outages = o.Attempts, o.Outages
			l.keys[batch.GroupID] = l.keys[batch.GroupID] || l.sends > sends && o.Outages == 0
			l.batches = append(l.batches, &waiting{Lease: again, due: time.Now().Add(o.After), held: o.Address != nil && o.Outages == 0})
		}
	}
	return l.settled
}

// drain works until nothing is due.
func (l *ledger) drain(t testing.TB) {
	t.Helper()
	for l.next(t) != nil {
	}
}

// wait lets the time pass until a batch is due.
func (l *ledger) wait() {
	due := slices.MinFunc(l.batches, func(a, b *waiting) int { return a.due.Compare(b.due) }).due
	<-time.After(time.Until(due))
}

// What is said of the sink is true: that it refuses these few events, or those of one batch, as after the replay of bad events, or every event.
func TestRefusal_Words(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		batches [][]int64
		log     string
		want    string
	}{
		"OneEvent":  {[][]int64{{7}}, "event 7 and has accepted no other since", "event 7 and has accepted no other since"},
		"FewEvents": {[][]int64{{7}, {9}, {8}}, "events 7 and 9 and has accepted no other since", "events 7, 8 and 9 and has accepted no other since"},
		"OneBatch":  {[][]int64{{1, 2, 3, 4, 5, 6}}, "the events of one batch and has accepted no other since", "the events of one batch and has accepted no other since"},
		"Several":   {[][]int64{{1, 2}, {3, 4}, {5, 6}}, "every event", "every event"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 100 }, refusesAll)
				for _, ids := range c.batches {
					l.put(ids...)
				}
				for range 10 { // until each event was tried
					l.drain(t)
					l.wait()
				}
				if got, log := l.Refusal().Error(), l.log.String(); !strings.Contains(got, "the sink refuses "+c.want+",") || !strings.Contains(log, `"sink refuses `+c.log+",") {
					t.Errorf("%s; the log is\n%s", got, log)
				}
			})
		})
	}
}

// TestRefusal_WordsAmongAccepted: a burst of bad events among good ones is not called a sink that refuses every event. A minute later it is one.
func TestRefusal_WordsAmongAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 100 }, func(ids []int64) error {
			if slices.Contains(ids, 1) {
				return nil
			}
			return sink.Permanent(errBad)
		})
		l.put(1)
		l.drain(t)
		for id := range int64(4) {
			l.put(10+2*id, 11+2*id)
		}
		for range 2 {
			l.drain(t)
			<-time.After(5 * time.Second)
		}
		for after, want := range []string{"many events, and accepted others less than a minute ago", "every event"} {
			if err := l.Refusal(); err == nil || !strings.Contains(err.Error(), "the sink refuses "+want+",") {
				t.Errorf("after %d minutes: %v", after, err)
			}
			<-time.After(time.Minute)
		}
	})
}

func refusesAll([]int64) error { return sink.Permanent(errBad) }

// The bad events of a batch that is refused as a whole are found in at most 2*ceil(log2(batch))+1 requests each, all
// others are delivered, and none is sent again under a group_id that an answer refused.
func TestHalving_FindsTheBadEvents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 1200).Draw(rt, "events")
		ids := idsFrom(101, n)
		bad := rapid.SliceOfNDistinct(rapid.SampledFrom(ids), 1, min(n, 3), rapid.ID[int64]).Draw(rt, "bad")
		requests := 0
		l := newLedger(func(c *delivery.Config) { c.Ordered = rapid.Bool().Draw(rt, "ordered") }, func(of []int64) error {
			if of[0] != 1 {
				requests++
			}
			if slices.ContainsFunc(of, func(id int64) bool { return slices.Contains(bad, id) }) {
				return sink.Permanent(errBad)
			}
			return nil
		})
		l.put(ids...)
		l.drain(t)
		l.put(1) // another event is accepted
		l.drain(t)
		slices.Sort(bad)
		slices.Sort(l.dead)
		if !slices.Equal(l.dead, bad) || len(l.delivered) != 1+n-len(bad) || len(l.batches) > 0 {
			rt.Fatalf("buried %v of %v, delivered %d of %d, %d batches wait", l.dead, bad, len(l.delivered), 1+n-len(bad), len(l.batches))
		}
		if most := len(bad) * (2*bits.Len(uint(n-1)) + 1); requests > most {
			rt.Fatalf("%d requests for %d bad events of %d; want at most %d", requests, len(bad), n, most)
		}
	})
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	newLedger := func(change func(*delivery.Config), answer func(ids []int64) error) *ledger {
		l := newLedger(change, answer)
		l.bubble = true
		return l
	}
	run := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, test)
		})
	}

	run("OfEverythingIsFoundOut", func(t *testing.T) {
		for _, n := range []int{1, 2, 3, 5, 8, 100, 1000} {
			l := newLedger(nil, refusesAll)
			l.put(idsFrom(1, n)...)
			l.drain(t)
			if most := 2*bits.Len(uint(n-1)) + 1; l.sends > most {
				t.Errorf("%d requests for %d events; want at most %d", l.sends, n, most)
			}
			if n == 1 {
				l.wait()
				l.drain(t)
			}
			if l.Refusal() == nil || !strings.Contains(l.Refusal().Error(), errBad.Error()) {
				t.Errorf("%d events: the refusal is %v", n, l.Refusal())
			}
			expect(t, "dead", len(l.dead), 0)
			expect(t, "a fresh claim at once", l.Allow(t.Context()), 0)
			<-time.After(5 * time.Second)
			expect(t, "a try later", l.Allow(t.Context()), 1)
			expect(t, "two at once", l.Allow(t.Context()), 0)
		}
	})

	// The batch that is halved waits for something else: another process has it, or an outage. Another one is halved
	// soon, not only when its attempts are used up.
	run("TheSearchIsInterrupted", func(t *testing.T) {
		bad := []int64{3, 101}
		l := newLedger(func(c *delivery.Config) {
			c.MaxAttempts, c.Backoff = 10, delivery.Backoff{Initial: time.Second, Max: 5 * time.Minute, Multiplier: 2}
		}, func(ids []int64) error {
			if slices.ContainsFunc(bad, func(id int64) bool { return slices.Contains(ids, id) }) {
				return sink.Permanent(errBad)
			}
			return nil
		})
		l.put(idsFrom(1, 4)...)
		l.next(t)
		l.batches = nil // the parts are gone
		l.put(idsFrom(101, 100)...)
		began := time.Now()
		for range 100 {
			if l.drain(t); len(l.batches) == 0 {
				break
			}
			l.wait()
		}
		slices.Sort(l.delivered)
		if !slices.Equal(l.dead, bad[1:]) || !slices.Equal(l.delivered, idsFrom(102, 99)) {
			t.Errorf("dead %v, delivered %v", l.dead, l.delivered)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %v", took)
		}
	})

	// Nearly every batch has a bad event, and the sink refuses it as a whole: one at a time is sent then, and halved to the end.
	run("OfNearlyEveryBatch", func(t *testing.T) {
		const batches, size, each = 30, 100, 5
		l := newLedger(nil, func(ids []int64) error {
			if slices.ContainsFunc(ids, func(id int64) bool { return id*7919%size < each }) {
				return sink.Permanent(errBad)
			}
			return nil
		})
		began, most := time.Now(), 0
		for claimed := 0; claimed < batches || len(l.batches) > 0; {
			for range min(4, l.Allow(t.Context()), batches-claimed) {
				l.put(idsFrom(int64(1+claimed*size), size)...)
				claimed++
			}
			if l.next(t) == nil {
				<-time.After(250 * time.Millisecond)
				continue
			}
			l.search(t)
			if most = max(most, len(l.batches)); l.Refusal() != nil {
				t.Fatalf("after %d requests: %v", l.sends, l.Refusal())
			}
			if time.Since(began) > time.Hour {
				t.Fatalf("%d of %d batches were claimed in an hour; %d wait", claimed, batches, len(l.batches))
			}
		}
		if len(l.dead) != batches*each || len(l.delivered) != batches*(size-each) {
			t.Errorf("%d are dead and %d delivered, of %d", len(l.dead), len(l.delivered), batches*size)
		}
		if bound := batches*each*(2*bits.Len(size-1)+1) + batches; l.sends > bound || most > 20 {
			t.Errorf("%d requests, and up to %d batches waited; want at most %d and 20", l.sends, most, bound)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %v", took)
		}
	})

	run("OfSeveralBatchesLetsOneAtATimeOut", func(t *testing.T) {
		l := newLedger(nil, func(ids []int64) error {
			if ids[0] < 100 && len(ids) > 1 {
				return sink.Permanent(errBad)
			}
			return nil
		})
		l.put(1, 2)
		l.next(t)
		expect(t, "claims after one that was refused", l.Allow(t.Context()), math.MaxInt)
		l.put(3, 4)
		l.batches = l.batches[2:]
		l.next(t)
		expect(t, "claims after two", l.Allow(t.Context()), 1)
		for range 3 {
			expect(t, "search begins", l.BeginSearch(&delivery.Halved{}, 4), true)
		}
		expect(t, "another search begins", l.BeginSearch(&delivery.Halved{}, 4), false)
		expect(t, "the first claim while all search", l.Allow(t.Context()), 1)
		expect(t, "claims at once after it", l.Allow(t.Context()), 0)
		l.EndSearch()
		expect(t, "claims while two search", l.Allow(t.Context()), 1)
		l.next(t) // a half, which is accepted, says nothing of fresh batches
		expect(t, "claims after a part was accepted", l.Allow(t.Context()), 1)
		expect(t, "search begins", l.BeginSearch(&delivery.Halved{}, 4), true)
		<-time.After(time.Second)
		expect(t, "claims a second later, while all search", l.Allow(t.Context()), 1)
		l.batches = nil
		l.put(101, 102)
		l.next(t)
		expect(t, "claims after a fresh batch was accepted", l.Allow(t.Context()), math.MaxInt)
	})

	// The sink refuses so many requests in a row, all innocent, in the middle of a search. Only an event whose path alone it refused cannot be told from a bad one.
	run("OfABlipDuringASearch", func(t *testing.T) {
		const n = 100
		for blip := range 40 {
			l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 1000 }, nil)
			l.answer = func([]int64) error {
				if l.sends <= blip {
					return sink.Permanent(errBad)
				}
				return nil
			}
			l.put(idsFrom(1, n)...)
			for len(l.batches) > 0 {
				if l.Allow(t.Context()) == 0 || l.next(t) == nil {
					<-time.After(250 * time.Millisecond)
				}
				l.search(t)
				l.report.Halved = nil
			}
			most := 0
			if blip == bits.Len(n-1) { // the smaller halves are sent first
				most = 1
			}
			if len(l.dead) > most {
				t.Errorf("%d refusals in a row bury %v", blip, l.dead)
			}
		}
	})

	// What may have been sent keeps its group_id: an API would take its events again under another one.
	run("OfEverythingTriesOneEvent", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(1)
		l.put(2)
		l.drain(t)
		if l.Refusal() == nil {
			t.Fatal("the sink is taken to accept events")
		}
		for what, change := range map[string]func(*buffer.Lease){
			"fresh": func(*buffer.Lease) {}, "after an outage": func(b *buffer.Lease) { b.Outages = 1 },
			"unfinished": func(b *buffer.Lease) { b.UnfinishedLeases = 2 },
		} {
			b := leaseOf(buffer.NewGroupID(), []int64{10, 11, 12})
			change(b)
			r, err := l.Work(t.Context(), t.Context(), b, nil, nil)
			expectError(t, err, nil)
			expect(t, what+": one is tried", r.TriesOne, what == "fresh")
		}
	})

	// Many batches were handed over at once, so that the search has not come to an event alone when the pause begins: its parts come first, and at once.
	run("OfEverythingSearchesFirst", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		const batches, n = 20, 100
		for i := range int64(batches) {
			l.put(idsFrom(1+i*n, n)...)
		}
		for range batches {
			l.next(t)
		}
		goesOn, first := l.Searching()
		expect(t, "the search goes on, before all else", fmt.Sprint(goesOn, first), "true true")
		smallest := func(due []*waiting) int {
			return slices.Index(due, slices.MinFunc(due, func(a, b *waiting) int { return cmp.Compare(a.Len(), b.Len()) }))
		}
		<-time.After(10 * time.Second) // the pause that began before
		for began := time.Now(); first; _, first = l.Searching() {
			if l.Allow(t.Context()) != 1 || time.Since(began) > time.Second {
				t.Fatal("the search waits for the pause between two tries")
			}
			l.take(t, smallest, false)
		}
		if l.Refusal() == nil || l.sends > batches+2*bits.Len(n) {
			t.Errorf("%d requests, refusal %v; expected one for each batch and each part", l.sends, l.Refusal())
		}
	})

	// The bad event may be the first of every batch. Each cut leaves a row more in the ledger, so they end.
	run("OfEverythingTriesAnyOne", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(1)
		l.put(2)
		l.drain(t)
		work := func(ids ...int64) delivery.Report {
			r, err := l.Work(t.Context(), t.Context(), leaseOf(buffer.NewGroupID(), ids), nil, nil)
			expectError(t, err, nil)
			return r
		}
		tried := map[int64]int{}
		for cut := 0; work(10, 11, 12).TriesOne; cut++ {
			if cut > 1000 {
				t.Fatal("batches are cut for ever")
			}
			for _, o := range l.settled {
				if len(o.IDs) == 1 {
					tried[o.IDs[0]]++
				}
			}
			work(5) // it is refused
		}
		if tried[10] == 0 || tried[11] == 0 || tried[12] == 0 || tried[10]+tried[11]+tried[12] < 900 {
			t.Errorf("the events were tried %v times; expected each, and nearly 1000 in all", tried)
		}
	})

	run("OfEverythingEndsASearch", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(idsFrom(1, 100)...)
		l.put(idsFrom(101, 100)...)
		l.next(t)
		l.search(t)
		if most := 2*bits.Len(99) + 1; l.sends > most || l.Refusal() == nil {
			t.Errorf("%d requests, at most %d expected; refusal: %v", l.sends, most, l.Refusal())
		}
		expect(t, "dead", len(l.dead), 0)
	})

	run("OfEverythingEndsWithASuccess", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		const n = 1000
		l.put(idsFrom(1, n)...)
		l.drain(t)
		l.answer = func(ids []int64) error {
			if slices.Contains(ids, 500) {
				return sink.Permanent(errBad)
			}
			return nil
		}
		asked := l.requests[500]
		for l.Refusal() != nil {
			l.wait()
			l.drain(t)
		}
		expect(t, "refusal", l.Refusal(), nil)
		expect(t, "claims", l.Allow(t.Context()), math.MaxInt)
		expect(t, "dead", fmt.Sprint(l.dead), "[500]")
		expect(t, "delivered", len(l.delivered), n-1)
		if more := l.requests[500] - asked; more > 2*bits.Len(n) {
			t.Errorf("the bad event was sent %d times more", more)
		}
		if l.requests[1] < 2 {
			t.Error("an event that was refused when everything was is not sent again")
		}
	})

	// One attempt of max_attempts, with backoff; a batch of many is halved at the last one.
	run("OfEverythingBuriesAfterMaxAttempts", func(t *testing.T) {
		for _, n := range []int{1, 2, 7} {
			l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 4 }, refusesAll)
			began := time.Now()
			l.put(idsFrom(1, n)...)
			for l.drain(t); len(l.batches) > 0; l.drain(t) {
				if took := time.Since(began); len(l.dead) > 0 && took < 3*time.Second {
					t.Fatalf("buried %v after %v", l.dead, took)
				}
				l.wait()
			}
			expect(t, "dead", len(l.dead), n)
			expect(t, "delivered", len(l.delivered), 0)
		}
	})

	// A batch with a bad event has met refusals of everything before, as many as max_attempts allows but one. Its good events do not
	// die of the next ones: neither if the bad event is found meanwhile, nor if all of the batch is halved for its last attempt.
	run("OfABatchSparesItsOthers", func(t *testing.T) {
		for _, others := range []bool{true, false} {
			l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 10 }, nil)
			all := !others
			l.answer = func(ids []int64) error {
				if all && len(ids) < 3 || slices.Contains(ids, 1) {
					return sink.Permanent(errBad)
				}
				return nil
			}
			if others { // they are accepted while the batch is halved, down to the event alone
				l.put(1, 2, 3, 4)
				l.batches[0].Attempts = 9
				l.put(10)
				for i := range int64(2) {
					l.next(t)
					l.put(11 + i)
					l.next(t)
				}
				all = true
				l.drain(t)
			} else {
				l.put(1, 2)
				l.batches[0].Attempts = 9
				l.drain(t)
			}
			for range 9 { // not as often as max_attempts allows to an event alone
				if len(l.batches) > 0 {
					l.wait()
					l.drain(t)
				}
			}
			if len(l.dead) > 0 && !slices.Equal(l.dead, []int64{1}) {
				t.Errorf("others were accepted: %v; buried %v while the sink refused everything", others, l.dead)
			}
			all = false
			l.put(20)
			l.drain(t)
			for len(l.batches) > 0 {
				l.wait()
				l.drain(t)
			}
			expect(t, "dead", fmt.Sprint(l.dead), "[1]")
		}
	})

	// What the sink said of a whole batch, it said of none of its events.
	run("OfAWholeBatchIsNoAttemptOfANamedEvent", func(t *testing.T) {
		l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 10 }, nil)
		wrongKey, named := true, 0
		l.answer = func(ids []int64) error {
			switch i := slices.Index(ids, 101); {
			case wrongKey:
				return sink.Permanent(errBad)
			case i >= 0 && named < 3:
				named++
				return &sink.BatchError{Events: []sink.EventError{{Index: i, Err: errBad}}}
			}
			return nil
		}
		for i := range int64(4) {
			l.put(idsFrom(1+100*i, 32)...)
		}
		l.drain(t)
		again := func() {
			l.wait()
			l.drain(t)
		}
		for whole := true; whole; { // until the next refusal of the whole batch of event 101 would be its last
			again()
			for _, b := range l.batches {
				if slices.Contains(b.IDs(), 101) && b.Attempts >= 9 {
					whole = false
				}
			}
		}
		wrongKey = false
		for len(l.batches) > 0 {
			again()
		}
		// The search leaves events of the first batch alone. Their refusals are their own, and with a shorter backoff than that of the batch of event 101
		// they reach the last attempt before it.
		expect(t, "dead, of the batch that was refused as a whole", slices.ContainsFunc(l.dead, func(id int64) bool { return id > 32 }), false)
		expect(t, "delivered or dead", len(l.delivered)+len(l.dead), 128)
	})

	// A sink that stops working buries nothing, not even the events of a batch that is being halved.
	run("FromNowOnBuriesNothing", func(t *testing.T) {
		for after := range 12 {
			l := newLedger(nil, nil)
			n := 0
			l.answer = func(ids []int64) error {
				if n++; n > after || slices.Contains(ids, 1) {
					return sink.Permanent(errBad)
				}
				return nil
			}
			for i := range int64(8) {
				l.put(idsFrom(1+100*i, 32)...)
			}
			l.drain(t)
			if most := after + 2*(2*5+1) + 7; n > most {
				t.Errorf("%d requests, want at most %d", n, most)
			}
			if len(l.dead) > 1 || len(l.dead) == 1 && l.dead[0] != 1 {
				t.Errorf("buried %v after %d requests", l.dead, after)
			}
		}
	})

	// The key may have expired in between.
	run("SuccessBeforeProvesNothing", func(t *testing.T) {
		l := newLedger(func(c *delivery.Config) { c.MaxAttempts = 4 }, func(ids []int64) error {
			if ids[0] == 2 {
				return sink.Permanent(errBad)
			}
			return nil
		})
		l.put(1)
		l.put(2)
		l.drain(t)
		expect(t, "refusal", l.Refusal(), nil)
		expect(t, "claims", l.Allow(t.Context()), math.MaxInt)
		for requests := 2; requests < 4; requests++ {
			l.wait()
			l.drain(t)
			expect(t, "dead", len(l.dead), 0)
			expect(t, "requests", l.requests[2], requests)
			if l.Refusal() == nil {
				t.Error("the sink is taken to accept events")
			}
		}
		l.put(3)
		l.drain(t)
		expect(t, "dead", fmt.Sprint(l.dead), "[2]")
		expect(t, "refusal", l.Refusal(), nil)
	})

	// A batch has a bad event, others are accepted, and then the sink refuses everything: the halves are not to blame.
	run("SuccessBetweenTwoHalvesProvesNothing", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(1, 2)
		l.next(t)
		l.answer = func([]int64) error { return nil }
		l.batches = append([]*waiting{{Lease: newLease(3)}}, l.batches...)
		l.next(t)
		l.answer = refusesAll
		l.drain(t)
		expect(t, "delivered", fmt.Sprint(l.delivered), "[3]")
		expect(t, "dead", len(l.dead), 0)
		l.answer = func([]int64) error { return nil }
		for len(l.batches) > 0 {
			l.wait()
			l.drain(t)
		}
		expect(t, "dead", len(l.dead), 0)
	})

	// The other half was accepted, in a send that began before the refusal or after it: the bad event is in this one.
	run("OfTheLastHalfLeft", func(t *testing.T) {
		for _, late := range []bool{false, true} {
			l := newLedger(nil, func(ids []int64) error {
				if slices.Contains(ids, 1) {
					return sink.Permanent(errBad)
				}
				return nil
			})
			l.put(1, 2)
			l.next(t)
			good := l.batches[1].Lease
			l.batches = l.batches[:1]
			answer := make(chan struct{})
			send := l.send
			l.send = func(ctx context.Context, b *buffer.Batch) error {
				if late && b.Events[0].ID == 2 {
					<-answer
				}
				return send(ctx, b)
			}
			done := make(chan error)
			go func() {
				_, err := l.Work(t.Context(), t.Context(), good, nil, nil)
				done <- err
			}()
			if synctest.Wait(); !late {
				expectError(t, <-done, nil)
			}
			l.next(t)
			if late {
				expect(t, "dead", len(l.dead), 0)
				close(answer)
				expectError(t, <-done, nil)
				l.next(t)
			}
			expect(t, "dead", fmt.Sprint(l.dead), "[1]")
			expect(t, "requests", l.requests[1], 2)
		}
	})

	// What waits after an outage does not name the refusal before it.
	run("OfEverythingThenAnOutage", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(1)
		l.drain(t)
		l.wait()
		l.drain(t)
		for answer, want := range map[error]string{sink.Permanent(errBad): errBad.Error(), sink.Unavailable(errDown): errDown.Error()} {
			l.answer = func([]int64) error { return answer }
			<-time.After(10 * time.Second)
			_, _, err := l.work(t, newLease(2))
			expectError(t, err, nil)
			<-time.After(10 * time.Second)
			_, _, err = l.work(t, leaseOf(buffer.NewGroupID(), []int64{3, 4}))
			expectError(t, err, nil)
			if len(l.settled) != 2 || !strings.HasSuffix(l.settled[1].Error, ": "+want) {
				t.Errorf("%s: %+v", want, l.settled)
			}
		}
	})

	// The second refusal of an event was under way when the sink accepted another one: it may accept this one, too, from then on.
	run("WhileAnotherIsAccepted", func(t *testing.T) {
		for _, stillRefuses := range []bool{false, true} {
			l := newLedger(nil, refusesAll)
			l.put(1)
			l.next(t) // it is held
			bad := l.batches[0].Lease
			<-time.After(10 * time.Second)
			answered, send := make(chan struct{}), l.send
			l.send = func(ctx context.Context, b *buffer.Batch) error {
				if b.Events[0].ID == 1 {
					<-answered
					return sink.Permanent(errBad)
				}
				return send(ctx, b)
			}
			done := make(chan error)
			go func() {
				_, err := l.Work(t.Context(), t.Context(), bad, nil, nil)
				done <- err
			}()
			synctest.Wait()
			l.answer = func([]int64) error { return nil }
			_, _, err := l.work(t, newLease(2))
			expectError(t, err, nil)
			close(answered)
			expectError(t, <-done, nil)
			if o := l.settled[len(l.settled)-1]; o.Verdict != buffer.Retry {
				t.Fatalf("%v", describe(l.settled))
			} else if bad.Attempts, bad.GroupID = o.Attempts, o.GroupID; !stillRefuses {
				l.send = send
			}
			<-time.After(10 * time.Second)
			_, _, err = l.work(t, bad)
			expectError(t, err, nil)
			want := map[bool]buffer.Verdict{false: buffer.Delivered, true: buffer.Dead}[stillRefuses]
			expect(t, "verdict", l.settled[len(l.settled)-1].Verdict, want)
		}
	})

	// The sink refused several batches before it was clear that it refuses everything: it is asked again.
	run("OfSeveralBatchesIsDoubted", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(idsFrom(1, 8)...)
		l.put(9)
		l.next(t)
		l.next(t)
		expect(t, "refusal", l.Refusal(), nil)
		l.answer = func([]int64) error { return nil }
		l.drain(t)
		expect(t, "dead", len(l.dead), 0)
		expect(t, "delivered", len(l.delivered), 9)
		expect(t, "requests", l.requests[9], 2)
	})

	// Nobody knows whether an earlier owner's send was accepted. Its key can tell, once the sink accepts anything.
	run("OfABatchThatMayHaveBeenSentKeepsTheKey", func(t *testing.T) {
		for name, answer := range map[string]error{"delivered []": nil, "retry [101] retry [102]": sink.Permanent(errBad)} {
			b := newHarness(nil)
			l := batchOf(2)
			l.UnfinishedLeases = 2
			work := func(l *buffer.Lease, answer error) buffer.Outcome {
				b.answer(answer)
				if _, _, err := b.work(t, l); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Millisecond)
				return b.settled[0]
			}
			for range 3 {
				o := work(l, sink.Permanent(errBad))
				expect(t, "outcome", describe(b.settled), "retry []")
				expect(t, "group_id", o.GroupID, l.GroupID)
				l.UnfinishedLeases, l.Attempts = o.UnfinishedLeases+1, 0
				expect(t, "unfinished leases", l.UnfinishedLeases, 2)
			}
			work(newLease(1), nil)
			work(l, answer)
			expect(t, "outcome", describe(b.settled), name)
			expect(t, "sends", b.sends, 5)
		}
	})

	// An API that stores its answers by idempotency key repeats the one of before, also while it refuses everything else.
	run("TheAnswerToAKnownKeyProvesNothing", func(t *testing.T) {
		for name, known := range map[string]func(*buffer.Lease){
			"an unfinished lease": func(l *buffer.Lease) { l.UnfinishedLeases = 2 },
			"an outage":           func(l *buffer.Lease) { l.Outages = 1 },
		} {
			b := newHarness(nil)
			work := func(l *buffer.Lease, answer error) buffer.Outcome {
				b.answer(answer)
				if _, _, err := b.work(t, l); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Millisecond)
				return b.settled[0]
			}
			before := func() *buffer.Lease {
				l := newLease(2)
				known(l)
				return l
			}
			l := newLease(1)
			refused := func() {
				o := work(l, sink.Permanent(errBad))
				if expect(t, name+": outcome", describe(b.settled), "retry [1]"); t.Failed() {
					return
				}
				l.GroupID, l.Attempts = o.GroupID, 0
			}
			for range 2 {
				refused()
				work(before(), nil)
			}
			for b.Refusal() == nil && !t.Failed() {
				refused()
			}
			work(before(), nil)
			if b.Refusal() == nil {
				t.Errorf("%s: the sink counts as one that accepts others", name)
			}
			expect(t, name+": the next try", b.Allow(t.Context()), 1)
			work(newLease(3), nil)
			expect(t, name+": refusal", b.Refusal(), nil)
			work(l, nil)
			expect(t, name+": outcome after a proof", describe(b.settled), "delivered []")
		}
	})

	// What the sink refused as it is, it accepted later: its answers said nothing of the events.
	run("OfEventsThatAreAcceptedLaterIsDoubted", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		l.put(1, 2, 3, 4)
		for l.requests[1] < 3 || l.requests[3] < 2 {
			l.next(t)
		}
		expect(t, "requests of event 2", l.requests[2], 2)
		l.answer = func([]int64) error { return nil }
		slices.SortFunc(l.batches, func(a, b *waiting) int { return b.Len() - a.Len() })
		l.batches[0].due = time.Now().Add(-time.Second)
		for l.next(t); len(l.batches) > 0; l.next(t) {
			l.wait()
		}
		expect(t, "dead", fmt.Sprint(l.dead), "[]")
		expect(t, "delivered", len(l.delivered), 4)
	})

	// A row of a custom table that was repaired while its event was held is sent as it is now, not buried for what it was.
	run("OfWhatWasRepairedIsAskedAgain", func(t *testing.T) {
		bad := true
		l := newLedger(nil, func(ids []int64) error {
			if bad && slices.Contains(ids, 1) {
				return sink.Permanent(errBad)
			}
			return nil
		})
		l.put(1)
		l.drain(t)
		if len(l.batches) != 1 || !l.batches[0].held {
			t.Fatal("the event is not held")
		}
		bad = false
		l.batches[0].Events[0].Payload = []byte(`{"repaired": true}`)
		l.put(2)
		l.drain(t)
		for len(l.batches) > 0 {
			l.wait()
			l.drain(t)
		}
		slices.Sort(l.delivered)
		expect(t, "delivered", fmt.Sprint(l.delivered, l.dead), "[1 2] []")
		expect(t, "requests for the event", l.requests[1], 2)
	})

	run("AloneBeforeASuccess", func(t *testing.T) {
		l := newLedger(nil, func(ids []int64) error {
			if ids[0] == 2 {
				return sink.Permanent(errBad)
			}
			return nil
		})
		l.put(2)
		l.drain(t)
		expect(t, "dead", len(l.dead), 0)
		l.put(1)
		l.drain(t)
		expect(t, "dead", fmt.Sprint(l.dead), "[2]")
		expect(t, "requests", l.requests[2], 1)
	})

	// A success of a send that began before the refusal proves nothing.
	run("SlowSuccessProvesNothing", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		slow := newLease(9)
		began, answer := make(chan struct{}), make(chan struct{})
		send := l.send
		l.send = func(ctx context.Context, b *buffer.Batch) error {
			if b.Events[0].ID == 9 {
				close(began)
				<-answer
				return nil
			}
			return send(ctx, b)
		}
		done := make(chan error)
		go func() {
			_, err := l.Work(t.Context(), t.Context(), slow, nil, nil)
			done <- err
		}()
		<-began
		<-time.After(time.Millisecond)
		l.put(1)
		l.drain(t)
		close(answer)
		expectError(t, <-done, nil)
		expect(t, "signals to decide on what is held", l.accepts, 0)
		l.drain(t)
		expect(t, "dead", len(l.dead), 0)
	})

	// A request that waited for the rate limit while the other was refused began after that.
	run("SuccessAfterARateLimit", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		s := &limited{l.workerHarness, func(context.Context) error { return nil }}
		l.Worker = delivery.NewWorker(s, l, delivery.Config{
			MaxAttempts: 3, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2},
			Observer: l, Log: slog.New(slog.DiscardHandler),
		})
		acquiring, acquired := make(chan struct{}), make(chan struct{})
		s.wait = func(context.Context) error {
			close(acquiring)
			<-acquired
			return nil
		}
		done := make(chan error)
		go func() {
			_, err := l.Work(t.Context(), t.Context(), newLease(9), nil, nil)
			done <- err
		}()
		<-acquiring
		<-time.After(time.Millisecond)
		s.wait = func(context.Context) error { return nil }
		l.put(1)
		l.drain(t)
		expect(t, "dead", len(l.dead), 0)
		l.answer = func([]int64) error { return nil }
		close(acquired)
		expectError(t, <-done, nil)
		l.drain(t)
		expect(t, "dead", fmt.Sprint(l.dead), "[1]")
		expect(t, "requests", l.requests[1], 1)
	})

	run("NamedByEvent", func(t *testing.T) {
		all := func(ids []int64) error {
			e := &sink.BatchError{}
			for i := range ids {
				e.Events = append(e.Events, sink.EventError{Index: i, Err: sink.Permanent(fmt.Errorf("%w %d", errBad, ids[i]))})
			}
			return e
		}
		l := newLedger(nil, all)
		l.put(1, 2, 3)
		l.put(4, 5)
		l.drain(t)
		expect(t, "requests", l.sends, 2)
		if l.Refusal() == nil {
			t.Error("the sink is taken to accept events")
		}
		expect(t, "dead", len(l.dead), 0)
		l.answer = func(ids []int64) error {
			if ids[0] == 6 {
				return nil
			}
			return all(ids)
		}
		l.put(6)
		l.drain(t)
		slices.Sort(l.dead)
		expect(t, "dead", fmt.Sprint(l.dead), "[1 2 3 4 5]")
		expect(t, "requests", l.sends, 5)
	})

	run("DefersWhatWasClaimedBefore", func(t *testing.T) {
		l := newLedger(nil, refusesAll)
		ahead := newLease(9)
		ahead.ClaimedLocal = time.Now()
		<-time.After(time.Millisecond)
		l.put(idsFrom(1, 4)...)
		l.drain(t)
		sends := l.sends
		if _, err := l.Work(t.Context(), t.Context(), ahead, nil, nil); err != nil {
			t.Fatal(err)
		}
		expect(t, "outcome", fmt.Sprint(describe(l.settled), l.settled[0].Attempts), "retry []0")
		expect(t, "sends", l.sends, sends)
		l.answer = func([]int64) error { return nil }
		l.wait()
		l.drain(t)
		if !slices.Contains(l.recovered, "") {
			t.Error("nothing makes due what was deferred")
		}
	})

	run("OfAHookIsRetriedForEver", func(t *testing.T) {
		l := newLedger(func(c *delivery.Config) { c.NeverBury = true }, refusesAll)
		l.put(1)
		for range 20 {
			l.drain(t)
			l.wait()
		}
		expect(t, "requests", l.sends, 20)
		expect(t, "dead", len(l.dead), 0)
		expect(t, "refusal", l.Refusal(), nil)
		expect(t, "claims", l.Allow(t.Context()), math.MaxInt)
	})
}

func newLease(id int64) *buffer.Lease { return leaseOf(buffer.NewGroupID(), []int64{id}) }

// An outage keeps the group_id; an answer that refuses the batch changes it.
func TestRefusal_ChangesTheKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer error
		keeps  bool
	}{
		"an outage":                 {sink.Unavailable(errDown), true},
		"a 5xx":                     {sink.MaybePoison(errDown), true},
		"a time-out":                {context.DeadlineExceeded, true},
		"refused":                   {errBad, false},
		"refused for good":          {sink.Permanent(errBad), false},
		"refused by event":          {&sink.BatchError{Events: []sink.EventError{{Index: 0, Err: errBad}}}, false},
		"unavailable by event":      {&sink.BatchError{Events: []sink.EventError{{Index: 0, Err: sink.Unavailable(errDown)}}}, true},
		"refused by event for good": {&sink.BatchError{Events: []sink.EventError{{Index: 0, Err: sink.Permanent(errBad)}}}, false},
	} {
		b := newHarness(nil)
		b.answer(c.answer)
		batch := newLease(101)
		if _, _, err := b.work(t, batch); err != nil {
			t.Fatal(err)
		}
		o := b.settled[0]
		if keeps := o.GroupID == batch.GroupID; o.Verdict != buffer.Retry || keeps != c.keeps || keeps != (o.IDs == nil) {
			t.Errorf("%s: %v %v, keeps its group_id: %v", name, o.Verdict, o.IDs, keeps)
		}
	}
}
