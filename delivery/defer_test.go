package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// addressed is a workerHarness whose events' addresses are their topics.
type addressed struct {
	*workerHarness
	only bool
}

func (a *addressed) AddressOf(e *outbox.Event) (string, bool) { return e.Topic, e.Topic != "" }
func (a *addressed) OneAddress() bool                         { return a.only }

func newAddressed(change func(*delivery.Config)) *addressed {
	a := &addressed{workerHarness: &workerHarness{}}
	b := a.workerHarness
	c := delivery.Config{
		MaxAttempts: 3, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2}, Observer: b, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&c)
	}
	a.Worker = delivery.NewWorker(a, b, c)
	return a
}

// to makes a batch with an event for each of the addresses.
func to(addresses ...string) *buffer.Lease {
	b := batchOf(len(addresses))
	for i, address := range addresses {
		b.Events[i].Topic = address
	}
	return b
}

// makeUnavailable makes every batch fail whose events are all for the address, as drivers say
// it: of the events. Mixed ones fail in part.
func (a *addressed) makeUnavailable(address string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.send = func(_ context.Context, b *buffer.Batch) error {
		some := &sink.BatchError{}
		for i := range b.Events {
			if b.Events[i].Topic == address {
				some.Events = append(some.Events, sink.EventError{Index: i, Err: err})
			}
		}
		switch len(some.Events) {
		case 0:
			return nil
		case len(b.Events):
			return sink.Unavailable(some)
		}
		return some
	}
}

func (a *addressed) works(t *testing.T, b *buffer.Lease) []buffer.Outcome {
	t.Helper()
	if _, _, err := a.work(t, b); err != nil {
		t.Fatal(err)
	}
	return a.settled
}

// sends returns how many sends act makes.
func (a *addressed) sendsOf(act func()) int {
	before := a.sends
	act()
	return a.sends - before
}

func waitsFor(t *testing.T, o buffer.Outcome, address string) {
	t.Helper()
	if o.Verdict != buffer.Retry || o.Address == nil || *o.Address != address || o.Outages == 0 || o.After <= 0 {
		t.Errorf("outcome %+v; want a retry that waits for address %q", o, address)
	}
}

// One batch at a time finds out whether the address is back; the others are put back
// unsent, and other addresses do not notice.
func TestAddressBreaker_SendsOneProbeAndDefersTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		a.makeUnavailable("x", sink.Unavailable(errDown))
		waitsFor(t, a.works(t, to("x", "x"))[0], "x") // it may be the batch's own doing
		waitsFor(t, a.works(t, to("x", "x"))[0], "x")
		expect(t, "sends", a.sends, 2)

		second := to("x", "x")
		second.Outages, second.Attempts = 3, 1
		outcomes := a.works(t, second)
		waitsFor(t, outcomes[0], "x")
		expect(t, "sends of one put back", a.sends, 2)
		expect(t, "its outages", outcomes[0].Outages, 3)
		expect(t, "its attempts", outcomes[0].Attempts, 1)
		expect(t, "its group_id", outcomes[0].GroupID, second.GroupID)
		expect(t, "parts", len(outcomes), 1)

		expect(t, "sends of another address", a.sendsOf(func() { a.works(t, to("y")) }), 1)
		expectAllowed(t, a.workerHarness, all)

		// The probe hangs; nothing is sent meanwhile.
		<-time.After(2 * time.Second)
		hang := make(chan struct{})
		a.mu.Lock()
		failing := a.send
		a.send = func(ctx context.Context, b *buffer.Batch) error {
			<-hang
			return failing(ctx, b)
		}
		a.mu.Unlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := a.Work(t.Context(), t.Context(), to("x"), nil, nil); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		a.mu.Lock()
		a.send = failing
		a.mu.Unlock()
		expect(t, "sends during a probe", a.sendsOf(func() { a.works(t, to("x")) }), 0)
		close(hang)
		<-done

		a.answer(nil)
		<-time.After(2 * time.Second)
		expect(t, "sends of a probe that succeeds", a.sendsOf(func() { a.works(t, to("x")) }), 1)
		expect(t, "recovered", strings.Join(slices.DeleteFunc(a.recovered, func(s string) bool { return s == "" }), " "), "x")
		expect(t, "sends after it", a.sendsOf(func() { a.works(t, to("x")); a.works(t, to("x")) }), 2)
	})
}

// TestDefer_SaysWhy: what waits unsent says what the address answered, and so does the worker, until something is delivered.
func TestDefer_SaysWhy(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		`subject "x": maximum messages exceeded`: `deferred: subject "x": maximum messages exceeded`, // as of those that were sent
		"no space":                               "deferred: address unavailable: x: no space",
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAddressed(nil)
			a.makeUnavailable("x", sink.Unavailable(sink.Full(errors.New(said))))
			a.works(t, to("x"))
			a.works(t, to("x"))
			deferred := a.works(t, to("x", "x"))
			expect(t, "sends", a.sends, 2)
			expect(t, "why it waits", deferred[0].Error, want)
			expectError(t, a.LastOutage(), sink.ErrFull)
			expect(t, "an outage of the sink", a.Outage(), nil)
			a.works(t, to("x", "y"))
			expect(t, "an outage after a delivery elsewhere", a.LastOutage(), nil)
		})
	}
}

// A time-out and a 5xx say of the address only if the sink as such is there.
func TestRecord_OutageOfAnAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer  error
		check   error
		only    bool
		allowed int
	}{
		"a 5xx of one address":              {sink.MaybePoison(errBad), nil, false, all},
		"of a sink that does not answer":    {sink.MaybePoison(errBad), sink.Unavailable(errDown), false, none},
		"of a sink with one address":        {sink.MaybePoison(errBad), nil, true, none},
		"no connection":                     {sink.Unavailable(errDown), nil, false, none},
		"a time-out without a kind":         {fmt.Errorf("%w", sink.Unavailable(context.DeadlineExceeded)), nil, false, all},
		"a 5xx with a time, as for a 429":   {sink.MaybePoison(&sink.UnavailableError{Err: errBad, RetryAfter: time.Hour}), nil, false, none},
		"no connection to the one address ": {sink.Unavailable(errDown), nil, true, none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAddressed(nil)
				a.only = c.only
				a.Worker = delivery.NewWorker(a, a.workerHarness, delivery.Config{MaxAttempts: 3, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2}, Observer: a.workerHarness, Log: slog.New(slog.DiscardHandler)})
				a.heals(c.check)
				a.answer(c.answer)
				a.works(t, to("x"))
				a.works(t, to("y"))
				expect(t, "allowed", a.Allow(t.Context()), c.allowed)
			})
		})
	}
}

// An address that takes up all of a Send's time must not do so for the others'
// events.
func TestDefer_SplitsOffAnAddressThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		a.makeUnavailable("x", sink.MaybePoison(errDown))
		a.works(t, to("x"))
		a.works(t, to("x"))
		mixed := to("y", "x", "z", "x")
		mixed.Attempts = 2
		var outcomes []buffer.Outcome
		expect(t, "sends", a.sendsOf(func() { outcomes = a.works(t, mixed) }), 0)
		expect(t, "parts", describe(outcomes), "retry [102 104] retry [101 103]")
		waitsFor(t, outcomes[0], "x")
		if rest := outcomes[1]; rest.After != 0 || rest.Address != nil || rest.Outages != 0 || rest.Attempts != 2 || rest.GroupID == mixed.GroupID {
			t.Errorf("the rest is %+v; want a retry at once under a new group_id", rest)
		}
		// One that says no at once costs nothing.
		a = newAddressed(nil)
		a.makeUnavailable("x", sink.Unavailable(errDown))
		a.works(t, to("x"))
		a.works(t, to("x"))
		expect(t, "sends", a.sendsOf(func() { outcomes = a.works(t, to("y", "x")) }), 1)
		expect(t, "outcomes", describe(outcomes), "delivered [101] retry [102]")
		waitsFor(t, outcomes[1], "x")
	})
}

// An answer for one event of the address says that the address is there.
func TestAddressBreaker_OneAnswerIsEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, other := range []error{nil, errBad} {
			a := newAddressed(nil)
			some := &sink.BatchError{Events: []sink.EventError{{Index: 0, Err: sink.Unavailable(errDown)}, {Index: 2, Err: sink.Unavailable(errDown)}}}
			if other != nil {
				some.Events = append(some.Events, sink.EventError{Index: 1, Err: other})
			}
			a.answer(some)
			a.works(t, to("x", "x", "x"))
			expect(t, "sends after it", a.sendsOf(func() { a.works(t, to("x")) }), 1)
		}
	})
}

// A batch for thousands of addresses does not become thousands of batches.
func TestDecide_ManyUnavailableAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		some := &sink.BatchError{}
		batch := batchOf(1000)
		for i := range batch.Events {
			batch.Events[i].Topic = fmt.Sprint("address ", i%500)
			some.Events = append(some.Events, sink.EventError{Index: i, Err: sink.Unavailable(errDown)})
		}
		a.answer(sink.Unavailable(some))
		for range 3 { // then again, when all of them are known to be unavailable
			before := a.sends
			outcomes := a.works(t, batch)
			if len(outcomes) > 18 {
				t.Fatalf("%d parts", len(outcomes))
			}
			var ids []int64
			for _, o := range outcomes {
				if !slices.IsSorted(o.IDs) {
					t.Errorf("ids of a part are not in order: %v", o.IDs)
				}
				ids = append(ids, o.IDs...)
			}
			slices.Sort(ids)
			if !slices.Equal(ids, batch.IDs()) {
				t.Errorf("%d of 1000 events are in the parts", len(ids))
			}
			if last := outcomes[len(outcomes)-1]; a.sends > before {
				waitsFor(t, last, "")
			} else if last.After != 0 || last.Address != nil {
				t.Errorf("the last part %d of %d has many addresses; want a retry at once", len(last.IDs), len(ids))
			}
			some.Events = slices.Clone(some.Events)
			for i := range some.Events {
				some.Events[i].Err = sink.MaybePoison(errDown)
			}
		}
	})
}

// While batches wait one of them is made due now and then; soon enough to notice
// within two seconds that the address is back, however long they are to wait.
func TestProbesDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		count := func(seconds int, waitedFor ...string) map[string]int {
			n := map[string]int{}
			for range 4 * seconds {
				for _, address := range a.ProbesDue(waitedFor, 4) {
					n[address]++
				}
				<-time.After(250 * time.Millisecond)
			}
			return n
		}
		// Nothing is known of these: another process put them there.
		n := count(60, "", "x", "y")
		for _, address := range []string{"", "x", "y"} {
			if n[address] < 30 || n[address] > 120 {
				t.Errorf("%q was probed %d times in a minute", address, n[address])
			}
		}
		// No result was recorded for them: perhaps no event goes there any more.
		sort.Strings(a.recovered)
		expect(t, "recovered", fmt.Sprintf("%q", a.recovered), `["" "x" "y"]`)
		expect(t, "probes without anything that waits", len(count(5)), 0)

		a.makeUnavailable("x", sink.Unavailable(errDown))
		a.works(t, to("x"))
		var last time.Time
		for range 240 {
			for range a.ProbesDue([]string{"x"}, 4) {
				if pause := time.Since(last); !last.IsZero() && pause > 2*time.Second {
					t.Errorf("%v between two probes", pause)
				}
				last = time.Now()
				a.works(t, to("x")) // the probe fails
			}
			<-time.After(250 * time.Millisecond)
		}
		if last.IsZero() {
			t.Error("an unavailable address was not probed")
		}

		a.answer(&sink.UnavailableError{Err: errDown, RetryAfter: time.Hour})
		a.works(t, to("y"))
		expect(t, "probes while the sink wants to be left alone", len(count(3500, "x", "y", "")), 0)
		<-time.After(2 * time.Minute)
		expect(t, "probes after that", len(count(5, "x", "y", "")), 3)
	})
}

// TestProbesDue_ThatTimeOut: no more than half of the workers send probes that take all of a Send's time, also if their batches became due by themselves. The addresses
// take turns. An address that refuses at once is not limited.
func TestProbesDue_ThatTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const addresses, workers, takes = 20, 4, 5 * time.Second
		var (
			slow, refused    []string
			most, sending    atomic.Int64
			tries            = map[string]int{}
			mu               sync.Mutex
			wait             sync.WaitGroup
			a                = newAddressed(func(c *delivery.Config) { c.SendTimeout = 2 * takes })
			timesOut, isAway = sink.Unavailable(context.DeadlineExceeded), sink.Unavailable(errDown)
		)
		a.send = func(_ context.Context, b *buffer.Batch) error {
			address, why := b.Events[0].Topic, isAway
			if strings.HasPrefix(address, "slow") {
				why = timesOut
				most.Store(max(most.Load(), sending.Add(1)))
				<-time.After(takes)
				sending.Add(-1)
			}
			mu.Lock()
			defer mu.Unlock()
			tries[address]++
			return sink.Unavailable(&sink.BatchError{Events: []sink.EventError{{Index: 0, Err: why}}})
		}
		work := func(address string) {
			wait.Go(func() {
				l := to(address)
				l.Outages = 1
				if _, err := a.Work(t.Context(), t.Context(), l, nil, nil); err != nil {
					t.Error(err)
				}
			})
		}
		for i := range addresses {
			slow, refused = append(slow, fmt.Sprint("slow", i)), append(refused, fmt.Sprint("refused", i))
		}
		all := slices.Concat(slow, refused)
		a.ProbesDue(all, workers)
		for _, address := range all { // the first sends
			work(address)
		}
		wait.Wait()
		most.Store(0)
		for _, address := range all { // while their breakers are closed, one place more is theirs
			work(address)
		}
		wait.Wait()
		expect(t, "sends at once that time out", most.Load(), workers/2+1)
		for _, address := range slow {
			work(address)
			wait.Wait()
		}
		most.Store(0)
		clear(tries)
		for i := range 4 * 90 {
			for _, address := range a.ProbesDue(all, workers) {
				work(address)
			}
			if i%8 == 0 {
				work(slow[i/8%addresses]) // it is due by itself
			}
			<-time.After(250 * time.Millisecond)
		}
		wait.Wait()
		expect(t, "probes at once that time out", most.Load(), workers/2)
		defer func() { // all are back
			a.answer(nil)
			began, waiting := time.Now(), slices.Clone(slow)
			for len(waiting) > 0 && time.Since(began) < time.Minute {
				for _, address := range a.ProbesDue(waiting, workers) {
					work(address)
					waiting = slices.DeleteFunc(waiting, func(one string) bool { return one == address })
				}
				wait.Wait()
				<-time.After(250 * time.Millisecond)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("the addresses that are back have all been tried after %v", took)
			}
		}()
		for _, address := range slow {
			if n := tries[address]; n < 1 || n > 5 {
				t.Errorf("%s was tried %d times in 90 s; expected the addresses to take turns", address, n)
			}
		}
		for _, address := range refused {
			if n := tries[address]; n < 30 {
				t.Errorf("%s was tried %d times in 90 s; expected once in two seconds", address, n)
			}
		}
	})
}

// One batch is answered 403 while others are accepted: it waits by itself, longer and
// longer, and is not used as a probe again and again.
func TestProbe_SkipsBatchThatFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, address := range []string{"", "x"} {
			a := newAddressed(nil)
			batch := to("x")
			a.send = func(_ context.Context, b *buffer.Batch) error {
				switch {
				case b.GroupID != batch.GroupID:
					return nil
				case address == "":
					return sink.Unavailable(errBad)
				}
				return sink.Unavailable(&sink.BatchError{Events: []sink.EventError{{Index: 0, Err: sink.Unavailable(errBad)}}})
			}
			a.works(t, batch)
			probes := 0
			for range 240 {
				a.works(t, to("x"))
				for range a.ProbesDue([]string{address}, 4) {
					probes++
					batch.Outages++
					a.works(t, batch)
				}
				<-time.After(250 * time.Millisecond)
			}
			expect(t, "probes", probes, 0)
		}
	})
}

// After a restart, with the sink unavailable and no fresh events, waiting batches are the probes,
// one every second or two.
func TestProbe_FindsTheSinkUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		a.answer(sink.Unavailable(errDown))
		batch := to("x")
		sends := 0
		for range 240 {
			for range a.ProbesDue([]string{""}, 4) {
				if batch.Outages++; a.Allow(t.Context()) > 0 {
					sends++
					a.works(t, batch)
				}
			}
			<-time.After(250 * time.Millisecond)
		}
		if sends < 20 || sends > 110 {
			t.Errorf("%d sends in a minute", sends)
		}
		if a.Outage() == nil {
			t.Error("the outage is not known")
		}
	})
}

// What waited for an outage went through: so may all that wait for it, also where
// this process knows of no outage because it began a moment ago.
func TestRecovery_FollowsADeferredBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		waited := to("x")
		waited.Outages = 2
		a.works(t, waited)
		sort.Strings(a.recovered)
		expect(t, "recovered", fmt.Sprintf("%q", a.recovered), `["" "x"]`)

		a = newAddressed(nil)
		a.fail(t, 2, sink.Unavailable(errDown))
		a.fail(t, 1, nil)
		expect(t, "recovered", fmt.Sprintf("%q", a.recovered), `[""]`)
		a.fail(t, 3, nil)
		expect(t, "recovered", len(a.recovered), 1)
	})
}

// The batch with the poison event gets a 500 each time while others are accepted: a
// refusal, which is halved. Where nothing is accepted it is an outage.
func TestPoison_IsHalvedAndBuried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		poison := func(_ context.Context, b *buffer.Batch) error {
			if slices.Contains(b.IDs(), 103) {
				return sink.MaybePoison(errors.New("500 Internal Server Error"))
			}
			return nil
		}
		a.send = poison
		waiting := []*buffer.Lease{batchOf(8)}
		for i := range waiting[0].Events {
			waiting[0].Events[i].Topic = "x"
		}
		other := func() *buffer.Lease {
			b := batchOf(1)
			b.Events[0].ID, b.Events[0].Topic = 900, "x"
			return b
		}
		poisoned, delivered, dead := 0, 0, []int64{}
		for len(waiting) > 0 && poisoned < 100 {
			batch := waiting[0]
			waiting = waiting[1:]
			if slices.Contains(batch.IDs(), 103) {
				poisoned++
			}
			for _, o := range a.works(t, batch) {
				ids := o.IDs
				if ids == nil {
					ids = batch.IDs()
				}
				switch o.Verdict {
				case buffer.Delivered:
					delivered += len(ids)
				case buffer.Dead:
					dead = append(dead, ids...)
				default:
					<-time.After(o.After)
					part := &buffer.Lease{Batch: buffer.Batch{GroupID: o.GroupID}, UnfinishedLeases: 1, Attempts: o.Attempts, Outages: o.Outages}
					for _, id := range ids {
						part.Events = append(part.Events, outbox.Event{ID: id, Topic: "x"})
					}
					waiting = append(waiting, part)
				}
			}
			<-time.After(2 * time.Second)
			a.works(t, other())
			<-time.After(2 * time.Second)
		}
		expect(t, "delivered", delivered, 7)
		expect(t, "dead", fmt.Sprint(dead), "[103]")
		// Three of the batch, one of each half, and then its attempts.
		if poisoned > 3+3+3 {
			t.Errorf("%d sends with the poison event", poisoned)
		}
	})
}

// As httpsink says it of a URL that has a template: of every event.
func TestPoison_ConfirmedByEveryEventOfAnAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		batch := to("x", "x")
		a.send = func(_ context.Context, b *buffer.Batch) error {
			if b.GroupID != batch.GroupID {
				return nil
			}
			e := &sink.BatchError{}
			for i := range b.Events {
				e.Events = append(e.Events, sink.EventError{Index: i, Err: sink.MaybePoison(errBad)})
			}
			return sink.MaybePoison(e)
		}
		for n := range 3 {
			outcomes := a.works(t, batch)
			expect(t, "parts", len(outcomes), 1+n/2) // the third time it is halved
			batch.Outages++
			<-time.After(3 * time.Second)
			a.works(t, to("x"))
			<-time.After(time.Second)
		}
	})
}

// One other batch a second, and a probe four times a second: that the batch itself
// fails so often says nothing of the sink.
func TestPoison_ConfirmedInASlowPipeline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		batch := to("x", "x")
		a.send = func(_ context.Context, b *buffer.Batch) error {
			if b.GroupID == batch.GroupID {
				return sink.MaybePoison(errBad)
			}
			return nil
		}
		for n := range 40 {
			if n%4 == 3 {
				a.works(t, to("x"))
			}
			if outcomes := a.works(t, batch); len(outcomes) == 2 {
				return
			}
			batch.Outages++
			<-time.After(2 * time.Second) // longer than the interval between probes
		}
		t.Error("the batch was not taken for a bad one")
	})
}

func TestPoison_NotConfirmedByAnOutage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err     error
		address string // of what is accepted meanwhile, "" nothing is
	}{
		"a 5xx, and nothing is accepted":      {sink.MaybePoison(errBad), ""},
		"a 5xx, and another address accepts":  {sink.MaybePoison(errBad), "y"},
		"an outage that is not the batch's":   {sink.Unavailable(errDown), "x"},
		"one that says when, as with 429 too": {&sink.UnavailableError{Err: errBad, RetryAfter: time.Second}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAddressed(nil)
				batch := to("x", "x")
				group := uuid.Nil
				for range 50 {
					a.answer(c.err)
					outcomes := a.works(t, batch)
					if len(outcomes) != 1 || outcomes[0].Verdict != buffer.Retry || outcomes[0].Attempts != 0 {
						t.Fatalf("outcomes %s; want a retry of the whole batch", describe(outcomes))
					}
					batch.Outages = outcomes[0].Outages
					if group == uuid.Nil {
						group = outcomes[0].GroupID
					}
					<-time.After(3 * time.Second)
					if c.address != "" {
						a.answer(nil)
						a.works(t, to(c.address))
					}
					<-time.After(3 * time.Second)
				}
			})
		})
	}
}

// Most answers are a 502, for a load balancer's nodes are down but one: an outage, of which no event is buried, although one send in ten is accepted all the while.
func TestPoison_NotConfirmedByAFailingServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		a := newAddressed(nil)
		waiting := make([]*buffer.Lease, 20)
		for i := range waiting {
			waiting[i] = to("x", "x")
		}
		for n := range 4000 {
			<-time.After(2 * time.Second)
			batch, works := &waiting[n%len(waiting)], random.IntN(10) == 0
			a.answer(sink.MaybePoison(errBad))
			if works {
				a.answer(nil)
			}
			for _, o := range a.works(t, *batch) {
				if !works && (o.IDs != nil || o.Verdict != buffer.Retry || o.Attempts != 0) {
					t.Fatalf("send %d: %s; want a retry of the whole batch", n, describe(a.settled))
				}
			}
			if works {
				*batch = to("x", "x")
			}
		}
	})
}

// A dead letter is never buried again.
func TestDecide_NeverBury(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(func(c *delivery.Config) { c.NeverBury = true })
		b.answer(sink.Permanent(errBad))
		for attempts := range 20 {
			alone := batchOf(1)
			alone.Attempts = attempts
			_, dueIn, err := b.work(t, alone)
			expectError(t, err, nil)
			expect(t, "outcome", describe(b.settled), "retry [101]")
			expect(t, "attempts", b.settled[0].Attempts, attempts+1)
			if dueIn <= 0 || dueIn > time.Minute {
				t.Errorf("it waits %v", dueIn)
			}
		}
		b.answer(&sink.BatchError{Events: []sink.EventError{{Index: 1, Err: sink.Permanent(errBad)}}})
		if _, _, err := b.work(t, batchOf(2)); err != nil {
			t.Error(err)
		}
		expect(t, "outcomes", describe(b.settled), "delivered [101] retry [102]")
		alone := batchOf(1)
		alone.UnfinishedLeases = 9
		if _, _, err := b.work(t, alone); err != nil {
			t.Error(err)
		}
		expect(t, "outcome of one that takes its worker down", describe(b.settled), "retry []")
	})
}

// The addresses of a batch whose projection failed are unknown. Other batches that are accepted prove
// that this batch is the cause.
func TestProjectionFailure_HasNoAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		bad := to("table", "table")
		bad.FailProjection(errors.New("it cannot be done"))
		for tries := 1; ; tries++ {
			for range 3 { // others are delivered
				a.works(t, to("x"))
			}
			outcomes := a.works(t, bad)
			if len(outcomes) == 2 { // halved
				break
			}
			waitsFor(t, outcomes[0], "")
			if tries == 10 {
				t.Fatalf("settled %s", describe(outcomes))
			}
			bad.Outages++
			<-time.After(time.Minute)
		}
		bad.UnfinishedLeases = 9 // nothing was sent
		if outcomes := a.works(t, bad); outcomes[0].Verdict == buffer.Dead {
			t.Errorf("settled %s", describe(outcomes))
		}
	})
}
