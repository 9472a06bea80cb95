package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func TestWork_SettlesOnce(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	putBack, _, err := b.work(t, batchOf(3))
	expectError(t, err, nil)
	expect(t, "put back", putBack, false)
	expect(t, "sends", b.sends, 1)
	expect(t, "settles", len(b.settles), 1)
	expect(t, "recorded deliveries", len(b.recorded), 0)
	if len(b.settled) != 1 || b.settled[0].Verdict != buffer.Delivered || b.settled[0].IDs != nil {
		t.Errorf("settled %+v, want all delivered", b.settled)
	}
	expect(t, "logged", strings.Count(b.log.String(), "level=DEBUG"), 1)
}

// The settle fails, and the delivery is recorded: the next owner does the rest.
func TestSettle_RecordsDeliveryWhenItFails(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.settle = always(errDeadlock)
	batch := batchOf(3)
	b.answer(&sink.BatchError{Events: []sink.EventError{{Index: 1, Err: errBad}}})
	putBack, dueIn, err := b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back", putBack, true)
	expect(t, "due in", dueIn, time.Second)
	expect(t, "settles", len(b.settles), 1)
	if len(b.recorded) != 1 || !slices.Equal(b.recorded[0], []int64{101, 103}) {
		t.Errorf("recorded %v, want the two that were delivered", b.recorded)
	}
	if b.settled != nil {
		t.Errorf("observed %+v, which was not settled", b.settled)
	}
}

func TestSettle_RecordsDeliveryOfAll(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.settle = always(errDeadlock)
	if _, _, err := b.work(t, batchOf(3)); err != nil {
		t.Error(err)
	}
	if len(b.recorded) != 1 || !slices.Equal(b.recorded[0], []int64{101, 102, 103}) {
		t.Errorf("recorded %v, want all", b.recorded)
	}
}

// Settle and mark fail: both are tried until the database is back, however long
// that takes, for only this worker knows what reached the sink.
func TestSettle_WaitsForTheDatabaseAfterASend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		began := time.Now()
		b.settle = func(context.Context, int) error {
			if time.Since(began) < time.Hour {
				return errDown
			}
			return nil
		}
		b.mark = always(errDown)
		_, _, err := b.work(t, batchOf(3))
		expectError(t, err, nil)
		expect(t, "sends", b.sends, 1)
		if n := len(b.settles); n < 60*60/5 || n > 60*60/4 {
			t.Errorf("%d tries in an hour; want one in five seconds", n)
		}
		expect(t, "observed outcomes", len(b.settled), 1)
	})
}

func TestSettle_SaysThatItFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct{ failures, want int }{"success": {0, 0}, "failures": {3, 1}} {
			b := newHarness(nil)
			b.settle = func(_ context.Context, try int) error {
				if try <= c.failures {
					return errDown
				}
				return nil
			}
			b.mark = always(errDown)
			said := 0
			_, err := b.Work(t.Context(), t.Context(), batchOf(3), nil, func() { said++ })
			expectError(t, err, nil)
			expect(t, name, said, c.want)
		}
	})
}

// It is not known whether the commit happened. It did: the row is gone.
func TestSettle_CommittedWithoutAnswer(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.settle = always(errDown)
	b.mark = always(buffer.ErrLeaseLost)
	putBack, _, err := b.work(t, batchOf(3))
	expectError(t, err, nil)
	expect(t, "put back", putBack, false)
	expect(t, "settles", len(b.settles), 1)
	expect(t, "observed", describe(b.settled), "delivered []")

	// The lease is over by now: it may be another owner who has it.
	b = newHarness(nil)
	b.settle = always(errDown)
	b.mark = always(buffer.ErrLeaseLost)
	_, err = b.Work(lost(t), t.Context(), batchOf(3), nil, nil)
	expectError(t, err, buffer.ErrLeaseLost)
	expect(t, "observed", describe(b.settled), "")
}

// Nothing was delivered, so no delivery is recorded. The second settle finds out.
func TestSettle_RetryCommittedWithoutAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.answer(sink.Unavailable(errDown))
		b.settle = func(_ context.Context, n int) error {
			if n == 1 {
				return errDown
			}
			return buffer.ErrLeaseLost
		}
		putBack, _, err := b.work(t, batchOf(3))
		expectError(t, err, nil)
		expect(t, "put back", putBack, true)
		expect(t, "settles", len(b.settles), 2)
	})
}

// The sink accepted a batch whose settle failed. Its lease ends, and the next one finds the database away again, so that its events are not known:
// nothing is settled before they are.
func TestSettle_AcceptedAndNotRead(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	batch := batchOf(3)
	b.settle, b.mark = always(buffer.ErrLeaseLost), always(buffer.ErrLeaseLost)
	if _, _, err := b.work(t, batch); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Fatal(err)
	}
	b.settle = nil
	unread := batch.Unread()
	unread.LeaseNo, unread.UnfinishedLeases, unread.NotRead = 2, 2, errDown
	if _, _, err := b.work(t, &unread); err != nil {
		t.Fatal(err)
	}
	expect(t, "outcomes", describe(b.settled), "retry []")
	again := *batch
	again.LeaseNo = 3
	if _, _, err := b.work(t, &again); err != nil {
		t.Fatal(err)
	}
	expect(t, "outcomes", describe(b.settled), "delivered []")
	expect(t, "sends", b.sends, 1)
}

func TestSettle_EndsWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.settle = always(buffer.ErrLeaseLost)
	_, _, err := b.work(t, batchOf(3))
	expectError(t, err, buffer.ErrLeaseLost)
	expect(t, "settles", len(b.settles), 1)
	expect(t, "recorded deliveries", len(b.recorded), 0)
}

// If nothing was delivered, the owner stops trying to settle: a new owner would repeat nothing.
func TestSettle_GivesUpOnUndeliveredBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.answer(sink.Unavailable(errDown))
		b.settle = always(errDown)
		putBack, _, err := b.work(t, batchOf(3))
		expectError(t, err, errDown)
		expect(t, "put back", putBack, false)
		expect(t, "settles", len(b.settles), 5)
		expect(t, "recorded deliveries", len(b.recorded), 0)
	})
}

func TestSettle_GivesUpOnRecordedDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.settle = always(errDown)
		batch := batchOf(3)
		batch.Delivered = []int64{101, 102, 103}
		_, _, err := b.work(t, batch)
		expectError(t, err, errDown)
		expect(t, "sends", b.sends, 0)
		expect(t, "settles", len(b.settles), 5)
		expect(t, "recorded deliveries", len(b.recorded), 0)
	})
}

func TestSettle_Retries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.answer(sink.Unavailable(errDown))
		b.settle = upTo(1, errDown)
		putBack, dueIn, err := b.work(t, batchOf(3))
		expectError(t, err, nil)
		expect(t, "put back", putBack, true)
		expect(t, "due in", dueIn, b.settled[0].After)
	})
}

func TestFinishDelivered_SendsOnlyTheRest(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	batch := batchOf(4)
	batch.UnfinishedLeases, batch.Attempts, batch.Delivered = 9, 2, []int64{102, 104}
	putBack, dueIn, err := b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "sends", b.sends, 0)
	expect(t, "put back", putBack, true)
	expect(t, "due in", dueIn, 0)
	got := fmt.Sprint(b.settled[0].Verdict, b.settled[0].IDs, b.settled[0].Attempts)
	expect(t, "outcomes", got, "retry [101 103] 2")
	if id := b.settled[0].GroupID; id == batch.GroupID || id == uuid.Nil {
		t.Errorf("the rest has group_id %v; want a new one", id)
	}

	b = newHarness(nil)
	batch.Events = batch.Events[:1] // the delivered ones are deleted already
	if _, _, err = b.work(t, batch); err != nil {
		t.Error(err)
	}
	if o := b.settled[0]; o.Verdict != buffer.Delivered || o.IDs == nil || len(o.IDs) != 0 {
		t.Errorf("delivered %v; want none of what is left", o.IDs)
	}

	b = newHarness(nil)
	batch.Delivered = []int64{101}
	b.settle = always(buffer.ErrLocked)
	putBack, dueIn, err = b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back while rows are locked", putBack, true)
	expect(t, "due in", dueIn, time.Second)
	expect(t, "recorded deliveries", len(b.recorded), 0)
}

func TestWork_ClosesBatchWithoutEvents(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	_, _, err := b.work(t, batchOf(0))
	expectError(t, err, nil)
	expect(t, "sends", b.sends, 0)
	expect(t, "settles", len(b.settles), 1)
}

func TestCrashLoopingBatch_IsHalved(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	for starts, want := range map[int]string{
		4: "delivered []", // it died alone once
		5: "retry [101 102 103] retry [104 105]",
	} {
		batch := batchOf(5)
		batch.UnfinishedLeases = starts
		if _, _, err := b.work(t, batch); err != nil {
			t.Error(err)
		}
		expect(t, fmt.Sprintf("outcomes at start %d", starts), describe(b.settled), want)
	}
	expect(t, "sends", b.sends, 1)
}

// The first leases of a batch end unfinished with those of others that were in flight, even if another batch killed the process.
func TestCrashLoopingEvent_IsBuriedAfterFiveDeathsAlone(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	for _, c := range []struct {
		starts int
		want   string
	}{{2, "delivered []"}, {7, "delivered []"}, {8, "dead []"}} {
		alone := batchOf(1)
		alone.UnfinishedLeases, alone.Attempts = c.starts, 1
		if _, _, err := b.work(t, alone); err != nil {
			t.Error(err)
		}
		expect(t, fmt.Sprintf("outcome at start %d", c.starts), describe(b.settled), c.want)
	}
	expect(t, "sends", b.sends, 2)
	expect(t, "attempts", b.settled[0].Attempts, 1)
	if why := b.settled[0].Error; !strings.Contains(why, "7 owners in a row did not finish this batch, 5 while nothing else was sent") {
		t.Errorf("buried because of %q, which does not say why", why)
	}
}

// A suspect that was not sent stays one.
func TestSuspect_StaysOneUntilItIsSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		events int
		change func(*workerHarness, *buffer.Lease)
		want   []int // unfinished leases
	}{
		{"an outage, which the process survived", 1, func(b *workerHarness, _ *buffer.Lease) { b.answer(sink.Unavailable(errDown)) }, []int{0}},
		{"refused", 2, func(b *workerHarness, _ *buffer.Lease) { b.answer(errBad) }, []int{1}}, // its key may still be needed
		{"halved, because it died", 2, func(_ *workerHarness, l *buffer.Lease) { l.UnfinishedLeases = 5 }, []int{2, 2}},
		{"split before it is sent", 2, func(b *workerHarness, _ *buffer.Lease) {
			b.answer(&sink.SplitError{Groups: []sink.Group{{Indexes: []int{0}}, {Indexes: []int{1}}}})
		}, []int{2, 2}},
		{"released", 2, func(b *workerHarness, _ *buffer.Lease) {
			b.slot = func(context.Context) (func(), bool) { return nil, false }
		}, []int{3}},
		{"not projected in part", 2, func(_ *workerHarness, l *buffer.Lease) { reject(l, buffer.ErrNotProjected, 0) }, []int{0, 2}},
		{"its projection fails", 2, func(_ *workerHarness, l *buffer.Lease) { l.FailProjection(buffer.ErrDatabaseUnavailable) }, []int{3}},
		{"its delivery is recorded in part", 2, func(_ *workerHarness, l *buffer.Lease) { l.Delivered = l.IDs()[:1] }, []int{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(nil)
			l := batchOf(c.events)
			l.UnfinishedLeases = 4
			c.change(b, l)
			if _, _, err := b.work(t, l); err != nil {
				t.Fatal(err)
			}
			got := make([]int, len(b.settled))
			for i, o := range b.settled {
				got[i] = o.UnfinishedLeases
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s with unfinished leases %v, want %v", describe(b.settled), got, c.want)
			}
		})
	}
}

// A panic of the sink says as little of the events as a status 500: if it keeps hitting one batch while others are
// accepted, that one is halved, and the bad event buried.
func TestPanic_OfTheSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.send = func(_ context.Context, batch *buffer.Batch) error {
			for i := range batch.Events {
				if batch.Events[i].ID == 103 {
					panic("assignment to entry in nil map")
				}
			}
			return nil
		}
		good := func() *buffer.Lease {
			l := batchOf(1)
			l.Events[0].ID = 900
			return l
		}
		waiting := []*buffer.Lease{batchOf(5)}
		var dead []int64
		for tries := 0; len(waiting) > 0; tries++ {
			if tries == 100 {
				t.Fatal("the bad event was not found")
			}
			for range 3 {
				if _, _, err := b.work(t, good()); err != nil {
					t.Fatal(err)
				}
			}
			l := waiting[0]
			waiting = waiting[1:]
			if _, _, err := b.work(t, l); err != nil {
				t.Fatal(err)
			}
			for _, o := range b.settled {
				ids := o.IDs
				if ids == nil {
					ids = l.IDs()
				}
				switch o.Verdict {
				case buffer.Dead:
					dead = append(dead, ids...)
				case buffer.Retry:
					part := batchOf(0)
					part.GroupID, part.Attempts, part.Outages = o.GroupID, o.Attempts, o.Outages
					for _, id := range ids {
						part.Events = append(part.Events, l.Events[slices.Index(l.IDs(), id)])
					}
					waiting = append(waiting, part)
				}
			}
			<-time.After(time.Minute)
		}
		if !slices.Equal(dead, []int64{103}) {
			t.Errorf("buried %v, want the event that makes the sink panic", dead)
		}
		if log := b.log.String(); !strings.Contains(log, "assignment to entry in nil map") || !strings.Contains(log, "settle_test.go") {
			t.Errorf("the log has no panic with its stack: %s", log)
		}
	})
}

// A panic while settling is a failed settle: what was sent is recorded.
func TestPanic_OfTheSettle(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.settle = func(context.Context, int) error { panic("index out of range") }
	done, err := b.Work(t.Context(), t.Context(), batchOf(3), nil, nil)
	expectError(t, err, nil)
	expect(t, "put back", done.PutBack, true)
	expect(t, "recorded deliveries", len(b.recorded), 1)
}

// Any other panic leaves the batch to its lease, as a suspect.
func TestPanic_BesideTheSink(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	slot := func(context.Context) (func(), bool) { panic("nil pointer") }
	_, err := b.Work(t.Context(), t.Context(), batchOf(3), slot, nil)
	if _, ok := errors.AsType[*delivery.PanicError](err); !ok {
		t.Errorf("got error %v, want the panic", err)
	}
	expect(t, "settles", len(b.settles), 0)
}

func TestWork_LeaseLostDuringSend(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		answer  error
		err     error
		settles int
	}{
		{"delivered all the same", nil, nil, 1},
		{"delivered in part", &sink.BatchError{Events: []sink.EventError{{Index: 1, Err: errBad}}}, nil, 1},
		{"cut off", context.Canceled, buffer.ErrLeaseLost, 0},
		{"outage", sink.Unavailable(errDown), buffer.ErrLeaseLost, 0},
		{"refused", errBad, buffer.ErrLeaseLost, 0},
		{"fenced", sink.ErrFenced, sink.ErrFenced, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(nil)
			b.answer(c.answer)
			_, err := b.Work(lost(t), t.Context(), batchOf(3), nil, nil)
			expectError(t, err, c.err)
			expect(t, "settles", len(b.settles), c.settles)
		})
	}
}

func TestWork_DropsFencedBatch(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.answer(fmt.Errorf("redis: %w", sink.ErrFenced))
	putBack, _, err := b.work(t, batchOf(3))
	expectError(t, err, sink.ErrFenced)
	expect(t, "put back", putBack, false)
	expect(t, "settles", len(b.settles), 0)
}

func TestWork_SendTimeoutIsAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(func(c *delivery.Config) { c.SendTimeout = 7 * time.Second })
		b.send = func(ctx context.Context, _ *buffer.Batch) error {
			<-ctx.Done()
			return errors.New("cut off") // of no known kind
		}
		began := time.Now()
		putBack, _, err := b.work(t, batchOf(1))
		expectError(t, err, nil)
		expect(t, "took", time.Since(began), 7*time.Second)
		expect(t, "put back", putBack, true)
		expect(t, "attempts", b.settled[0].Attempts, 0)
		expect(t, "outages", b.settled[0].Outages, 1)
	})
}

func TestWork_StopPutsTheBatchBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.send = func(ctx context.Context, _ *buffer.Batch) error {
			<-ctx.Done()
			return ctx.Err()
		}
		stop, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		leaseCtx, release := context.WithCancel(stop)
		defer release()
		done, err := b.Work(leaseCtx, stop, batchOf(2), nil, nil)
		expectError(t, err, nil)
		expect(t, "put back", done.PutBack, true)
		expect(t, "outcomes", describe(b.settled), "retry []")
		expect(t, "attempts", b.settled[0].Attempts, 0)
	})
}

// A process that is out of time tries once more to write down what it sent, and
// waits no longer than a second for each step.
func TestSettle_EndsWithStop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		database func(ctx context.Context, n int) error
		took     time.Duration
	}{
		{"a database that refuses", always(errDown), 4 * time.Second},
		{"a database that hangs", hangs, 6 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				b.settle, b.mark = c.database, c.database
				stop, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				began := time.Now()
				_, err := b.Work(stop, stop, batchOf(2), nil, nil)
				if err == nil || errors.Is(err, buffer.ErrLeaseLost) {
					t.Errorf("got %v; want an error that the batch was not settled", err)
				}
				expect(t, "took", time.Since(began), c.took)
			})
		})
	}

	t.Run("a stop in the past", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newHarness(nil)
			b.settle, b.mark = hangs, hangs
			stop, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			if _, err := b.Work(t.Context(), stop, batchOf(2), nil, nil); err == nil {
				t.Error("no error from a batch that was sent and not settled")
			}
			expect(t, "took", time.Since(began), 2*time.Second)
			expect(t, "settles", len(b.settles), 1)
			expect(t, "recorded deliveries", len(b.recorded), 1)
		})
	})
}

// fencing is a workerHarness whose sink remembers group_ids.
type fencing struct {
	*workerHarness
	delivered bool
	err       error
}

func (f *fencing) Fence(context.Context, *buffer.Batch) (bool, error) { return f.delivered, f.err }

// An event alone in its batch, with unfinished leases, is fenced at the sink before it is buried. If the
// sink has it already, it counts as delivered.
func TestCrashLoopingEvent_IsFenced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		delivered bool
		err       error
		want      string
	}{
		{false, nil, "dead []"},
		{true, nil, "delivered []"},
		{false, sink.Unavailable(errDown), "retry []"},
	} {
		f := &fencing{workerHarness: newHarness(nil), delivered: c.delivered, err: c.err}
		f.Worker = delivery.NewWorker(f, f.workerHarness, delivery.Config{
			MaxAttempts: 3, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2}, Observer: f.workerHarness,
			Log: slog.New(slog.DiscardHandler),
		})
		alone := batchOf(1)
		alone.UnfinishedLeases = 8
		if _, _, err := f.work(t, alone); err != nil {
			t.Error(err)
		}
		expect(t, "outcome", describe(f.settled), c.want)
		expect(t, "sends", f.sends, 0)
	}
}

// Events without a projection are buried before the rest is first sent. The rest gets a new group_id.
func TestUnprojected_IsBuriedBeforeTheRestIsSent(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	batch := batchOf(4)
	batch.Attempts = 2
	reject(batch, buffer.ErrNotProjected, 1, 3)
	putBack, dueIn, err := b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back", putBack, true)
	expect(t, "due in", dueIn, 0)
	expect(t, "sends", b.sends, 0)
	if describe(b.settled) != "dead [102 104] retry [101 103]" {
		t.Fatalf("settled %s", describe(b.settled))
	}
	dead, rest := b.settled[0], b.settled[1]
	expect(t, "why", dead.Error, buffer.ErrNotProjected.Error())
	expect(t, "attempts of the rest", rest.Attempts, 2)
	if rest.GroupID == batch.GroupID || rest.GroupID == uuid.Nil {
		t.Errorf("the rest has group_id %s; want a new one", rest.GroupID)
	}

	b = newHarness(nil)
	batch = batchOf(2)
	reject(batch, buffer.ErrNotProjected, 0, 1)
	putBack, _, err = b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back", putBack, false)
	expect(t, "settled", describe(b.settled), "dead []")
}

// A recorded delivery is finished even if the projection returns no row any more.
func TestFinishDelivered_IgnoresTheProjection(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	batch := batchOf(2)
	batch.Delivered = []int64{101, 102}
	reject(batch, buffer.ErrNotProjected, 0)
	_, _, err := b.work(t, batch)
	expectError(t, err, nil)
	if strings.Contains(describe(b.settled), "dead") {
		t.Errorf("settled %s, what was delivered is no dead letter", describe(b.settled))
	}
}

// A batch whose projection fails is not sent. It waits; while other batches are delivered it is
// halved, and a single event is buried.
func TestProjectionFailure_WaitsThenHalves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		failed := errors.New(`column "lead" does not exist`)
		bad := func(n int) *buffer.Lease {
			batch := batchOf(n)
			batch.FailProjection(failed)
			return batch
		}
		batch := bad(4)
		for range 10 {
			putBack, _, err := b.work(t, batch)
			expectError(t, err, nil)
			expect(t, "put back", putBack, true)
			expect(t, "settled", describe(b.settled), "retry []")
			if o := b.settled[0]; o.Attempts != 0 || !strings.Contains(o.Error, failed.Error()) {
				t.Fatalf("settled %+v", o)
			}
			batch.Outages++
			<-time.After(time.Minute)
		}
		expect(t, "sends", b.sends, 0)

		for _, c := range []struct {
			events int
			want   string
		}{{4, "retry [101 102] retry [103 104]"}, {1, "dead []"}} {
			b := newHarness(func(c *delivery.Config) { c.MaxAttempts = 1 })
			batch := bad(c.events)
			for tries := 0; describe(b.settled) != c.want; tries++ {
				if tries == 10 {
					t.Fatalf("%d events: settled %s, want %s", c.events, describe(b.settled), c.want)
				}
				for range 3 { // others are delivered
					_, _, err := b.work(t, batchOf(1))
					expectError(t, err, nil)
				}
				_, _, err := b.work(t, batch)
				expectError(t, err, nil)
				<-time.After(time.Minute)
			}
		}
	})
}

// Events that the projection rejected are buried, and the others are due at once. If the database
// does not say which events failed, the batch is halved.
func TestProjectionFailure_SplitsOffBadEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad := func(n int, which ...int) *buffer.Lease {
			batch := batchOf(n)
			reject(batch, errors.New("it is there twice"), which...)
			return batch
		}
		failed := func(n int, err error) *buffer.Lease {
			batch := batchOf(n)
			batch.FailProjection(err)
			return batch
		}
		again := func(batch *buffer.Lease) *buffer.Lease {
			batch.Outages = 1
			return batch
		}
		data := fmt.Errorf("division by zero: %w", buffer.ErrEventData)
		for name, c := range map[string]struct {
			batch *buffer.Lease
			want  string
		}{
			"one":                    {bad(3, 1), "dead [102] retry [101 103]"},
			"all":                    {bad(2, 0, 1), "retry []"},
			"one, tried before":      {again(bad(3, 1)), "dead [102] retry [101 103]"},
			"its data":               {failed(3, data), "retry [101 102] retry [103]"},
			"its data, alone":        {failed(1, data), "retry []"},
			"its data, tried before": {again(failed(3, data)), "retry [101 102] retry [103]"},
			"the projection":         {failed(3, errors.New("no such column")), "retry []"},
		} {
			b := newHarness(nil)
			_, _, err := b.work(t, c.batch)
			expectError(t, err, nil)
			expect(t, name, describe(b.settled), c.want)
			expect(t, "sends", b.sends, 0)
			for i, o := range b.settled {
				whole := len(b.settled) == 1
				if o.Verdict == buffer.Retry && (whole != (o.GroupID == c.batch.GroupID) || whole != (o.After > 0) || o.Attempts != 0) {
					t.Errorf("%s: outcome %d is %+v", name, i, o)
				}
			}
		}
	})
}

// An event that is alone, and whose projection fails for its own data, waits only until another event was accepted in a send that began after it
// had failed.
func TestProjectionFailure_AloneIsBuriedAfterASuccess(t *testing.T) {
	t.Parallel()
	own := func(n int) *buffer.Lease {
		batch := batchOf(n)
		reject(batch, errors.New("it is no JSON"), 0, n-1)
		return batch
	}
	data := batchOf(1)
	data.FailProjection(fmt.Errorf("division by zero: %w", buffer.ErrEventData))
	whole := batchOf(1)
	whole.FailProjection(errors.New("no such column"))
	for name, c := range map[string]struct {
		batch *buffer.Lease
		want  string
	}{
		"a row":          {own(1), "dead [101]"},
		"all rows":       {own(2), "dead [101] dead [102]"},
		"its data":       {data, "dead [101]"},
		"the projection": {whole, "retry []"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				work := func(batch *buffer.Lease, want string) {
					t.Helper()
					<-time.After(time.Second)
					batch.ClaimedLocal = time.Now()
					_, _, err := b.work(t, batch)
					expectError(t, err, nil)
					expect(t, "settled", describe(b.settled), want)
				}
				work(batchOf(1), "delivered []")
				for range 5 { // what was accepted before says nothing
					work(c.batch, "retry []")
					expect(t, "attempts", b.settled[0].Attempts, 0)
					c.batch.Outages++
				}
				b.recovered = nil
				early := batchOf(1) // it was projected before, and waited for a rate limit
				early.ClaimedLocal = time.Now().Add(-time.Minute)
				_, _, err := b.work(t, early)
				expectError(t, err, nil)
				expect(t, "made due by a batch of before", len(b.recovered), 0)
				work(c.batch, "retry []")
				c.batch.Outages++
				b.recovered = nil
				work(batchOf(1), "delivered []")
				expect(t, "made due", len(b.recovered) > 0, true)
				work(c.batch, c.want)
				expect(t, "sends", b.sends, 2) // what was leased before the failure waits, too
			})
		})
	}
}

// The reason that a settle stores, and a dead letter keeps, holds no secret.
func TestSettle_RedactsReasons(t *testing.T) {
	t.Parallel()
	b := newHarness(func(c *delivery.Config) {
		c.Redact = func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") }
	})
	b.answer(sink.Permanent(errors.New("the key s3cret is wrong")))
	if _, _, err := b.work(t, batchOf(1)); err != nil {
		t.Fatal(err)
	}
	if len(b.settles) != 1 || len(b.settles[0]) != 1 || !strings.Contains(b.settles[0][0].Error, "the key *** is wrong") {
		t.Errorf("settled %+v", b.settles)
	}
}

// TestSettle_TakenOverByTheSameProcess: the database could not be written until the lease was over. The next owner, in the same
// process, settles what the sink accepted and sends only the rest.
func TestSettle_TakenOverByTheSameProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer error
		want   string
	}{
		"all":  {nil, "delivered []"},
		"some": {&sink.BatchError{Events: []sink.EventError{{Index: 1, Err: errBad}}}, "delivered [101 103] retry [102]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				b.answer(c.answer)
				b.mark = always(errDeadlock)
				b.settle = func(_ context.Context, n int) error {
					if n < 3 {
						return errDeadlock
					}
					return buffer.ErrLeaseLost
				}
				first := batchOf(3)
				_, err := b.Work(lost(t), t.Context(), first, nil, nil)
				expectError(t, err, buffer.ErrLeaseLost)

				b.settle = nil
				again := batchOf(3)
				again.GroupID, again.LeaseNo, again.UnfinishedLeases = first.GroupID, 2, 2
				_, _, err = b.work(t, again)
				expectError(t, err, nil)
				expect(t, "sends", b.sends, 1)
				expect(t, "outcomes", describe(b.settled), c.want)
				_, _, err = b.work(t, again) // put back by hand
				expectError(t, err, nil)
				expect(t, "sends after it was settled", b.sends, 2)
			})
		})
	}
}

// TestWork_KeptEvents: a batch whose events were not deleted is put back, logged once, and reported until it is settled.
func TestWork_KeptEvents(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	kept := &buffer.KeptError{Table: "public.outbox_events", Kept: 2, Of: 3, RetryIn: 4 * time.Second}
	b.settle = upTo(2, kept)
	first, second := batchOf(3), batchOf(3)
	for _, batch := range []*buffer.Lease{first, second} {
		putBack, dueIn, err := b.work(t, batch)
		expectError(t, err, nil)
		expect(t, "put back", putBack, true)
		expect(t, "due in", dueIn, kept.RetryIn)
		expectError(t, b.Kept(), error(kept))
	}
	expect(t, "log lines", strings.Count(b.log.String(), "2 of 3 delivered events of table public.outbox_events"), 1)
	expect(t, "recorded deliveries", len(b.recorded), 0)
	for _, batch := range []*buffer.Lease{first, second} {
		expect(t, "kept", b.Kept() != nil, true)
		_, _, err := b.work(t, batch)
		expectError(t, err, nil)
	}
	expectError(t, b.Kept(), nil)
}

// TestWork_RefusedSettle: a batch that the database refuses to settle is recorded as delivered if any of it was, otherwise put
// back. It is logged once, and reported until it is settled.
func TestWork_RefusedSettle(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	refused := &buffer.SettleError{Table: "public.outbox_events", RetryIn: 4 * time.Second, Err: errors.New("violates foreign key constraint")}
	b.settle = upTo(1, refused)
	l := batchOf(3)
	putBack, dueIn, err := b.work(t, l)
	expectError(t, err, nil)
	expect(t, "put back", putBack, true)
	expect(t, "due in", dueIn, refused.RetryIn)
	expect(t, "settles", len(b.settles), 1)
	expect(t, "recorded deliveries", len(b.recorded), 1)
	expectError(t, b.Kept(), error(refused))

	// The rest goes first, in a settle of its own.
	l.Delivered = l.IDs()[:2]
	_, _, err = b.work(t, l)
	expectError(t, err, nil)
	rest := b.settles[1]
	expect(t, "outcomes", len(rest), 1)
	expect(t, "verdict of the rest", rest[0].Verdict, buffer.Retry)
	expect(t, "the rest", fmt.Sprint(rest[0].IDs), fmt.Sprint(l.IDs()[2:]))
	expect(t, "kept", b.Kept() != nil, true)
	l.Events = l.Events[:2]
	b.settle = upTo(len(b.settles)+1, refused)
	_, dueIn, err = b.work(t, l)
	expectError(t, err, nil)
	expect(t, "due in", dueIn, refused.RetryIn)
	expect(t, "recorded deliveries", len(b.recorded), 1)
	b.settle = nil
	_, _, err = b.work(t, l)
	expectError(t, err, nil)
	expectError(t, b.Kept(), nil)
	expect(t, "log lines", strings.Count(b.log.String(), "refuses to settle a batch of table public.outbox_events"), 1)
	expect(t, "sends", b.sends, 1)

	// Nothing of it was delivered.
	b.send = func(context.Context, *buffer.Batch) error { return sink.Permanent(errBad) }
	b.mu.Lock()
	b.settles, b.settle = nil, upTo(1, refused)
	b.mu.Unlock()
	dead := batchOf(1)
	dead.Attempts = 2
	_, dueIn, err = b.work(t, dead)
	expectError(t, err, nil)
	expect(t, "due in", dueIn, refused.RetryIn)
	expect(t, "recorded deliveries", len(b.recorded), 1)
	last := b.settles[1]
	expect(t, "outcomes", len(last), 1)
	expect(t, "verdict", last[0].Verdict, buffer.Retry)
	expect(t, "attempts", last[0].Attempts, 2)
	expect(t, "outages", last[0].Outages, 1)
	expect(t, "wait", last[0].After, refused.RetryIn)
	expect(t, "group_id", last[0].GroupID, dead.GroupID)

	// The same process settles the same outcomes again, and does not send it again.
	b.settle = nil
	_, _, err = b.work(t, dead)
	expectError(t, err, nil)
	expect(t, "sends", b.sends, 2)
	expect(t, "outcomes", describe(b.settled), describe(b.settles[0]))
	expect(t, "verdict", b.settled[0].Verdict, buffer.Dead)
	expectError(t, b.Kept(), nil)
}

// TestWork_RefusedDeadLetter: what was to be retried does not wait for the dead letter, unless order is kept.
func TestWork_RefusedDeadLetter(t *testing.T) {
	t.Parallel()
	refused := &buffer.SettleError{Table: "public.outbox_events", RetryIn: 4 * time.Second, Err: errors.New("no")}
	answer := &sink.BatchError{Events: []sink.EventError{
		{Index: 0, Err: sink.Unavailable(errDown)}, {Index: 1, Err: sink.Permanent(errBad)}, {Index: 2, Err: sink.Unavailable(errDown)},
	}}
	for name, c := range map[string]struct {
		ordered bool
		want    string
	}{
		"without order": {false, "retry [101 103] retry [102]"},
		"in order":      {true, "retry []"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(func(config *delivery.Config) { config.Ordered = c.ordered })
			_, _, err := b.work(t, batchOf(1)) // the sink accepts others
			expectError(t, err, nil)
			b.answer(answer)
			b.settles, b.settle = nil, upTo(1, refused)
			_, _, err = b.work(t, batchOf(3))
			expectError(t, err, nil)
			expect(t, "outcomes", describe(b.settles[1]), c.want)
		})
	}
}

// TestWork_NoEventLeft: a batch of which nothing is left and nothing was delivered is named in the log.
func TestWork_NoEventLeft(t *testing.T) {
	t.Parallel()
	for _, delivered := range [][]int64{nil, {101}} {
		b := newHarness(nil)
		batch := batchOf(3)
		batch.Events, batch.FirstID, batch.Counted, batch.Delivered = nil, 101, 3, delivered
		_, _, err := b.work(t, batch)
		expectError(t, err, nil)
		expect(t, "verdict", b.settled[0].Verdict, buffer.Delivered)
		want := fmt.Sprintf("level=WARN msg=\"no event of a batch is left, and none was delivered: the application deleted them, or the table was replaced\" group_id=%s events=3 first_id=101", batch.GroupID)
		expect(t, "warned", strings.Contains(b.log.String(), want), delivered == nil)
	}
}
