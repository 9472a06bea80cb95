package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// TestPoison_OutageOfOneBatch: an outage keeps hitting the batch with event 103. It is divided until that event is alone, and the
// event waits, if the answers say that nothing was accepted and the address accepts others.
func TestPoison_OutageOfOneBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err       error
		others    bool
		delivered int
	}{
		"nothing was accepted":                {sink.NotAccepted(errBad), true, 7},
		"what was accepted is unknown":        {sink.Unavailable(errBad), true, 0},
		"nothing is accepted, of others also": {sink.NotAccepted(errBad), false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAddressed(nil)
				a.send = func(_ context.Context, b *buffer.Batch) error {
					if slices.Contains(b.IDs(), 103) || !c.others {
						return c.err
					}
					return nil
				}
				parts := []*buffer.Lease{to("x", "x", "x", "x", "x", "x", "x", "x")}
				first, delivered := parts[0].GroupID, 0
				var alone *buffer.Lease
				for n := 0; len(parts) > 0 && n < 30; n++ {
					batch := parts[0]
					parts = parts[1:]
					for _, o := range a.works(t, batch) {
						if o.Verdict == buffer.Delivered {
							delivered += batch.Len()
							continue
						}
						expect(t, "verdict", o.Verdict, buffer.Retry)
						expect(t, "attempts", o.Attempts, 0)
						if (o.IDs == nil) != (o.GroupID == batch.GroupID) || o.Outages == 0 {
							t.Errorf("outcome %+v of batch %s", o, batch.GroupID)
						}
						part := &buffer.Lease{Batch: buffer.Batch{GroupID: o.GroupID}, UnfinishedLeases: 1, Outages: o.Outages}
						for _, e := range batch.Events {
							if o.IDs == nil || slices.Contains(o.IDs, e.ID) {
								part.Events = append(part.Events, e)
							}
						}
						if part.Len() == 1 && part.Events[0].ID == 103 {
							alone = part
						}
						parts = append(parts, part)
					}
					<-time.After(2 * time.Second)
					other := to("x")
					other.Events[0] = outbox.Event{ID: 900, Topic: "x"}
					a.works(t, other)
					<-time.After(2 * time.Second)
				}
				expect(t, "delivered", delivered, c.delivered)
				expect(t, "the event is alone", alone != nil, c.delivered > 0)
				if alone == nil && len(parts) == 1 {
					expect(t, "the group_id", parts[0].GroupID, first)
				}
				if len(parts) != 1 {
					t.Errorf("%d batches wait", len(parts))
				}
				expect(t, "the breakers", fmt.Sprint(a.Outage() != nil), fmt.Sprint(false))
			})
		})
	}
}

// TestPoison_MaybeAccepted: a batch meets these outages, one after the other, and the sink accepts others in between. It is halved,
// so that its events get new group_ids, only by an answer that repeats, never by a first send without a response.
func TestPoison_MaybeAccepted(t *testing.T) {
	t.Parallel()
	var (
		fails = sink.MaybePoison(errors.New("500 Internal Server Error"))
		lost  = sink.MaybePoison(sink.MaybeAccepted(errors.New("EOF")))
		busy  = sink.InProgress(errors.New("409 Conflict"))
		cut   = sink.MaybeAccepted(errors.New("200 OK: results: the response could not be read"))
	)
	for name, c := range map[string]struct {
		outages []error
		halved  int // by which of the outages
		part    []error
		again   int // by which of these a half is
	}{
		"answers":                 {[]error{fails, fails, fails}, 3, []error{fails}, 1},
		"answers, then no":        {[]error{fails, fails, lost, fails, fails}, 5, []error{lost, fails}, 2},
		"no answer, then answers": {[]error{lost, fails, fails, fails}, 4, []error{lost, lost, lost}, 3},
		"a response that is cut":  {[]error{fails, fails, cut, fails, fails, fails}, 6, []error{fails}, 1},
		"no answers":              {[]error{lost, lost, lost, lost, lost}, 5, []error{lost, lost}, 2},
		"no answers, then none":   {[]error{lost, lost, lost, lost, lost}, 5, []error{fails, lost}, 2},
		"in progress":             {[]error{lost, busy, busy, busy, busy, busy, busy, busy, busy, busy, busy, busy, busy, busy}, 11, []error{lost, lost}, 2},
		"in progress, then not":   {[]error{lost, busy, busy, busy, lost}, 5, []error{busy, busy}, 0},
		"every other one":         {[]error{lost, fails, lost, fails, lost}, 5, []error{lost, lost}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAddressed(nil)
				meets := func(batch *buffer.Lease, outages []error) (halved int, half *buffer.Lease) {
					for i, outage := range outages {
						a.answer(outage)
						outcomes := a.works(t, batch)
						batch.Outages++
						a.answer(nil)
						for range 3 {
							<-time.After(2 * time.Second)
							other := to("x")
							other.Events[0] = outbox.Event{ID: 900, Topic: "x"}
							a.works(t, other)
						}
						if len(outcomes) > 1 {
							return i + 1, &buffer.Lease{Batch: buffer.Batch{GroupID: outcomes[0].GroupID, Events: batch.Events[:2]}, UnfinishedLeases: 1}
						}
						if o := outcomes[0]; o.IDs != nil || o.GroupID != batch.GroupID || o.Attempts != 0 {
							t.Errorf("outage %d: %+v", i+1, o)
						}
					}
					return 0, nil
				}
				halved, half := meets(to("x", "x", "x", "x"), c.outages)
				expect(t, "halved by outage", halved, c.halved)
				if half == nil {
					return
				}
				again, _ := meets(half, c.part)
				expect(t, "a half is halved by outage", again, c.again)
			})
		})
	}
}

// TestPoison_ProgramAndOutage: `request` fails for an event while the sink accepts others, and then the sink is away for long. That says nothing of the
// program: once the sink accepts others again, the next failure is another attempt of the event.
func TestPoison_ProgramAndOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(func(c *delivery.Config) { c.MaxAttempts = 10 })
		bad := to("x")
		fails := func() buffer.Outcome {
			t.Helper()
			a.answer(sink.ProgramFailed(sink.MaybePoison(errors.New("request of event 101: cannot divide"))))
			o := a.works(t, bad)[0]
			bad.Attempts, bad.Outages = o.Attempts, o.Outages
			return o
		}
		other := func(answer error) {
			t.Helper()
			<-time.After(2 * time.Second)
			a.answer(answer)
			l := to("x")
			l.Events[0] = outbox.Event{ID: 900, Topic: "x"}
			a.works(t, l)
		}
		for range 4 {
			fails()
			other(nil)
		}
		expect(t, "attempts", bad.Attempts, 2)
		for range 20 {
			other(sink.MaybePoison(errDown))
		}
		expect(t, "attempts after a failure in the outage", fails().Attempts, 2)
		other(nil)
		o := fails()
		expect(t, "attempts after the outage", o.Attempts, 3)
		expect(t, "the error", o.Error, "fails again and again, while others are accepted: request of event 101: cannot divide")
	})
}

// TestPoison_SeveralBatches: of two bad batches and a few good ones, the retries of the bad ones outnumber what is accepted. Both are halved. While the sink fails for most
// sends, no batch is.
func TestPoison_SeveralBatches(t *testing.T) {
	t.Parallel()
	fails, errSkip := sink.MaybePoison(errors.New("500 Internal Server Error")), errors.New("none is sent")
	for name, c := range map[string]struct {
		bad, rounds int
		goods       func(n int) error // what a good batch of round n meets
		within      bool
		pause       time.Duration
	}{
		"two":  {2, 30, func(int) error { return nil }, true, 2 * time.Second},
		"five": {5, 120, func(int) error { return nil }, true, 2 * time.Second},
		"two, and few good ones": {2, 120, func(n int) error {
			if n%3 == 0 {
				return nil
			}
			return errSkip
		}, true, 2 * time.Second},
		"two, and little else for hours": {2, 80, func(n int) error {
			if n%2 == 0 {
				return nil
			}
			return fails // once
		}, true, 12 * time.Minute},
		"two, and the sink is away": {2, 200, func(int) error { return fails }, false, 2 * time.Second},
		"the sink accepts one in ten": {5, 40, func(n int) error {
			if n%10 == 0 {
				return nil
			}
			return fails
		}, false, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAddressed(nil)
				batches := make([]*buffer.Lease, c.bad)
				for i := range batches {
					batches[i] = to("x", "x")
				}
				halved := 0
				for n := range c.rounds {
					a.answer(fails)
					for i, b := range batches {
						if b == nil {
							continue
						}
						if outcomes := a.works(t, b); len(outcomes) > 1 {
							halved, batches[i] = halved+1, nil
						}
						b.Outages++
					}
					<-time.After(c.pause)
					good := to("x")
					good.Events[0] = outbox.Event{ID: 900 + int64(n), Topic: "x"}
					if answer := c.goods(n); !errors.Is(answer, errSkip) {
						a.answer(answer)
						a.works(t, good)
					}
					<-time.After(2 * time.Second)
				}
				if all := halved == c.bad; all != c.within || halved > 0 && !c.within {
					t.Errorf("%d of %d batches were halved", halved, c.bad)
				}
			})
		})
	}
}

// TestPoison_AskedToWait: the sink asks for a pause whenever event 103 is sent, and accepts others. The batch is divided until that event is alone. It then waits for as long as it is
// asked to, and the sink does not.
func TestPoison_AskedToWait(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string]error{
		"a pause": sink.AskedToWait(&sink.UnavailableError{Err: errBad, RetryAfter: 2 * time.Minute}),
		"no time": sink.AskedToWait(errBad),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAddressed(nil)
				told := false
				a.send = func(_ context.Context, b *buffer.Batch) error {
					if told = told || b.AskedAlone; slices.Contains(b.IDs(), 103) {
						return asks
					}
					return nil
				}
				parts, delivered := []*buffer.Lease{to("x", "x", "x", "x", "x", "x", "x", "x")}, 0
				for n := 0; n < 60 && !told; n++ {
					batch := parts[0]
					parts = parts[1:]
					for _, o := range a.works(t, batch) {
						if o.Verdict == buffer.Delivered {
							delivered += batch.Len()
							continue
						}
						expect(t, "attempts", o.Attempts, 0)
						part := &buffer.Lease{Batch: buffer.Batch{GroupID: o.GroupID}, UnfinishedLeases: 1, Outages: o.Outages}
						for _, e := range batch.Events {
							if o.IDs == nil || slices.Contains(o.IDs, e.ID) {
								part.Events = append(part.Events, e)
							}
						}
						parts = append(parts, part)
					}
					<-time.After(3 * time.Minute) // a pause is over
					for range 5 {
						other := to("x")
						other.Events[0] = outbox.Event{ID: 900, Topic: "x"}
						a.works(t, other)
					}
				}
				expect(t, "delivered", delivered, 7)
				expect(t, "the sink is told", told, true)
				expect(t, "the sink is paused", a.Paused(), false)
				o := a.works(t, parts[0])[0]
				expect(t, "the sink is paused after the event", a.Paused(), false)
				if o.Address != nil || o.After < 2*time.Second || name == "a pause" && o.After < 2*time.Minute {
					t.Errorf("the event waits: %+v", o)
				}
			})
		})
	}
}

// TestPoison_AskedToWaitAtRandom: an API that turns away many requests for a time, whichever they are, has no batch divided.
func TestPoison_AskedToWaitAtRandom(t *testing.T) {
	t.Parallel()
	for _, accepts := range []int{1, 3, 5, 8} {
		t.Run(fmt.Sprint(accepts, " of 10"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(3, uint64(accepts)))
				a := newAddressed(nil)
				waiting := make([]*buffer.Lease, 20)
				for i := range waiting {
					waiting[i] = to("x", "x")
				}
				for n := range 1000 {
					<-time.After(2 * time.Second)
					batch, works := &waiting[random.IntN(len(waiting))], random.IntN(10) < accepts
					if a.answer(sink.AskedToWait(errBad)); works {
						a.answer(nil)
					}
					if outcomes := a.works(t, *batch); len(outcomes) > 1 {
						t.Fatalf("send %d: %s; want a retry of the whole batch", n, describe(outcomes))
					}
					if works {
						*batch = to("x", "x")
					}
				}
			})
		})
	}
}

// everyEvent is the error of a batch whose address is unavailable, as a sink with several addresses returns it.
func everyEvent(b *buffer.Batch, kind func(error) error, one error) error {
	var events []sink.EventError
	for i := range b.Events {
		events = append(events, sink.EventError{Index: i, Err: kind(one)})
	}
	return kind(&sink.BatchError{Events: events})
}

// TestPoison_AskedAddress: one address of many asks for a pause, whichever event it gets. Once that is proven, no batch of its pauses the sink, a new one neither, until it accepts one.
func TestPoison_AskedAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(nil)
		var told, back bool
		a.send = func(_ context.Context, b *buffer.Batch) error {
			if told = b.AskedAlone; b.Events[0].Topic == "over" && !back {
				return everyEvent(b, sink.AskedToWait, &sink.UnavailableError{Err: errBad, RetryAfter: time.Minute})
			}
			return nil
		}
		other := func() {
			for range 10 {
				a.works(t, to("x"))
			}
		}
		id := int64(1000)
		tenant := func() buffer.Outcome {
			b := to("over", "over")
			for i := range b.Events {
				id++
				b.Events[i].ID = id
			}
			return a.works(t, b)[0]
		}
		proven := -1
		for n := range 10 {
			o := tenant()
			expect(t, "attempts", o.Attempts, 0)
			if paused := a.Outage() != nil; !paused && proven < 0 {
				proven = n
			} else if paused && proven >= 0 {
				t.Errorf("answer %d pauses the sink", n)
			}
			if told != (proven >= 0 && n > proven) {
				t.Errorf("answer %d: the sink is told %t", n, told)
			}
			if n > 2 && o.After < time.Minute {
				t.Errorf("the batch waits %v", o.After)
			}
			<-time.After(2 * time.Minute)
			other()
		}
		if proven < 1 || proven > 5 {
			t.Errorf("proven by answer %d", proven)
		}
		back = true
		expect(t, "once it accepts events", tenant().Verdict, buffer.Delivered)
		back = false
		tenant()
		expect(t, "the next answer pauses the sink", a.Outage() != nil, true)
	})
}

// TestPoison_AskedAndDown: an address that is down asks for a pause and answers 500 in turn, while others accept. None of its events is blamed.
func TestPoison_AskedAndDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(func(c *delivery.Config) { c.MaxAttempts = 2 })
		sends := 0
		a.send = func(_ context.Context, b *buffer.Batch) error {
			if b.Events[0].Topic != "down" {
				return nil
			}
			if sends++; sends%2 == 0 {
				return everyEvent(b, sink.AskedToWait, errBad)
			}
			return everyEvent(b, sink.MaybePoison, errDown)
		}
		bad := to("down")
		for range 200 {
			o := a.works(t, bad)[0]
			if o.Verdict != buffer.Retry || o.Attempts != 0 {
				t.Fatalf("send %d: %+v", sends, o)
			}
			bad.Outages = o.Outages
			<-time.After(3 * time.Minute)
			for range 10 {
				a.works(t, to("x"))
			}
		}
		if sends < 100 {
			t.Errorf("%d sends", sends)
		}
	})
}

// TestPoison_AsksWithA503: the 503s of one event are its own, so it does not pause the sink at each further one.
func TestPoison_AsksWithA503(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAddressed(func(c *delivery.Config) { c.MaxAttempts = 20 })
		told := 0
		a.send = func(_ context.Context, b *buffer.Batch) error {
			if b.Events[0].ID != 101 {
				return nil
			}
			if b.AskedAlone {
				told++
			}
			return sink.MaybePoison(&sink.UnavailableError{Err: errBad, RetryAfter: time.Minute})
		}
		bad := to("x")
		for range 10 {
			o := a.works(t, bad)[0]
			bad.Attempts, bad.Outages = o.Attempts, o.Outages
			<-time.After(2 * time.Minute)
			for range 5 {
				other := to("x")
				other.Events[0].ID = 900
				a.works(t, other)
			}
		}
		expect(t, "sends of which the sink is told", told, 7)
	})
}
