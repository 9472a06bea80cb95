package buffertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var liveCases = []testCase{
	{name: "live batches/are listed", run: liveListed},
	{name: "live batches/their events are read without a lease", run: liveRead},
	{name: "live batches/one is retried", run: liveRetried},
	{name: "live batches/one is divided", run: liveDivided},
	{name: "live batches/one is not divided", run: liveNotDivided},
	{name: "live batches/are divided while others take them over", run: liveRaces},
}

// listBatches lists the live batches, the one that was claimed last first.
func listBatches(t TB, b buffer.Buffer, limit int) (all []buffer.LiveBatch, total int64) {
	t.Helper()
	all, total, err := b.ListBatches(context.Background(), limit)
	ok(t, "ListBatches", err)
	return all, total
}

// refuse settles a batch as refused once, and waiting.
func refuse(t testing.TB, b buffer.Queue, batch *buffer.Lease) {
	t.Helper()
	o := retry(batch, lease)
	o.Attempts, o.Error = batch.Attempts+1, "400 Bad Request"
	settle(t, b, batch, o)
}

func liveListed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	n.Insert(t, orders(1)...)
	claim(t, n.Buffer, 1)
	all, total := listBatches(t, f.Buffer, 10)
	equal(t, "batches of an empty buffer", len(all), 0)
	equal(t, "their number", total, int64(0))

	bury(t, f, "no such tenant", orders(1)...)
	hook := claim(t, f.Queue(t), 10)
	f.Insert(t, orders(9)...)
	leased, refused, waits, marked := claim(t, f.Buffer, 2), claim(t, f.Buffer, 3), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2)
	refuse(t, f.Buffer, refused)
	outage(t, f.Buffer, waits, "a", lease)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), marked, marked.IDs()[:1]))
	all, total = listBatches(t, f.Second(t), 10)
	equal(t, "live batches", total, int64(5))
	got := map[uuid.UUID]buffer.LiveBatch{}
	for _, one := range all {
		row := ledgerOf(t, f, one.GroupID)
		if h.UUIDKeys { // the fixture has numbers of its own
			row.FirstID = one.FirstID
			equal(t, "has a uuid", one.FirstUUID != uuid.Nil, !one.Hook)
		}
		equal(t, "ledger", []any{one.State, one.LeaseNo, one.Owner, one.Attempts, one.Outages, one.UnfinishedLeases, int(one.Events), one.FirstID, one.Error, one.Address, int(one.Delivered)},
			[]any{row.State, row.LeaseNo, row.Owner, row.Attempts, row.Outages, row.UnfinishedLeases, row.Events, row.FirstID, row.Error, row.Address, len(row.Delivered)})
		about(t, "due", one.Due, row.DueIn)
		about(t, "age", one.Age, 0)
		if one.Suspect || one.Parted || one.Sink != "default" {
			t.Fatalf("batch %+v is a suspect, parted, or of another sink", one)
		}
		got[one.GroupID] = one
		alone, found, err := f.Buffer.LiveBatch(t.Context(), one.GroupID)
		ok(t, "LiveBatch", err)
		equal(t, "batch by its group_id", []any{found, alone.GroupID, alone.State, alone.FirstID}, []any{true, one.GroupID, one.State, one.FirstID})
	}
	for _, b := range []*buffer.Lease{leased, refused, waits, marked, hook} {
		if _, ok := got[b.GroupID]; !ok {
			t.Fatalf("batch %s of events %v is not listed", b.GroupID, b.IDs())
		}
	}
	equal(t, "batches of a hook", []bool{got[hook.GroupID].Hook, got[leased.GroupID].Hook}, []bool{true, false})
	maybe := func(b *buffer.Lease) bool { one := got[b.GroupID]; return one.MaybeSent() }
	equal(t, "may have been sent", []bool{maybe(refused), maybe(waits)}, []bool{false, true})

	_, found, err := n.Buffer.LiveBatch(t.Context(), leased.GroupID)
	ok(t, "LiveBatch", err)
	equal(t, "a batch of another buffer is found", found, false)

	all, total = listBatches(t, f.Buffer, 2)
	equal(t, "batches listed and counted", []int64{int64(len(all)), total}, []int64{2, 5})
	f.Exec(t, "UPDATE outbox_batches SET unfinished_leases = 2 WHERE group_id = '"+waits.GroupID.String()+"'")
	all, _ = listBatches(t, f.Buffer, 10)
	for _, one := range all {
		equal(t, "suspect", one.Suspect, one.GroupID == waits.GroupID)
	}
}

// readBatch reads events of a batch and expects that it changed nothing.
func readBatch(t *testing.T, f *Fixture, b buffer.LiveBatches, group uuid.UUID, limit int) *buffer.Lease {
	t.Helper()
	var batch *buffer.Lease
	untouched(t, f, "BatchEvents", func() {
		var err error
		batch, err = b.BatchEvents(t.Context(), group, limit)
		ok(t, "BatchEvents", err)
	})
	return batch
}

func liveRead(t *testing.T, h Harness) {
	for _, opt := range []Options{{}, {Bytes: true}} {
		f := h.Open(t, opt)
		events := orders(9)
		events[1].Key, events[1].Headers = text("k"), outbox.Headers(`{"a": "b"}`)
		f.Insert(t, events...)
		leased, refused, marked := claim(t, f.Buffer, 3), claim(t, f.Buffer, 3), claim(t, f.Buffer, 3)
		refuse(t, f.Buffer, refused)
		ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), marked, marked.IDs()[:1]))
		for _, want := range []*buffer.Lease{leased, refused, marked} {
			for _, from := range []buffer.Buffer{f.Buffer, f.Second(t)} {
				got := readBatch(t, f, from, want.GroupID, 10)
				if got == nil {
					t.Fatalf("BatchEvents: no batch %s", want.GroupID)
				}
				equal(t, "pipeline", got.Pipeline, f.Pipeline)
				equal(t, "PayloadIsJSON", got.PayloadIsJSON, !opt.Bytes)
				if d := cmp.Diff(want.Events, got.Events, cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("what a claim took (-) and what BatchEvents read (+):\n%s", d)
				}
			}
			equal(t, "events of a limit", readBatch(t, f, f.Buffer, want.GroupID, 2).IDs(), want.IDs()[:2])
		}
		if got := readBatch(t, f, f.Buffer, buffer.NewGroupID(), 10); got != nil {
			t.Fatalf("BatchEvents: events %v of a batch that is not there", got.IDs())
		}
		settle(t, f.Buffer, leased, delivered())
		if got := readBatch(t, f, f.Buffer, leased.GroupID, 10); got != nil {
			t.Fatalf("BatchEvents: events %v of a batch that is finished", got.IDs())
		}
		bury(t, f, "refused", orders(1)...)
		if got := readBatch(t, f, f.Buffer, claim(t, f.Queue(t), 10).GroupID, 10); got != nil {
			t.Fatalf("BatchEvents: events %v of a hook", got.IDs())
		}
	}
}

func liveRetried(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	n.Insert(t, orders(1)...)
	elsewhere := claim(t, n.Buffer, 1)
	refuse(t, n.Buffer, elsewhere)
	bury(t, f, "no such tenant", orders(1)...)
	queue := f.Queue(t)
	hook := claim(t, queue, 10)
	outage(t, queue, hook, "", lease)
	f.Insert(t, orders(3)...)
	one, other, leased := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1), claim(t, f.Buffer, 1)
	refuse(t, f.Buffer, one)
	refuse(t, f.Buffer, other)
	second, request := f.Second(t), buffer.NewRetryRequest()
	for _, not := range []uuid.UUID{leased.GroupID, elsewhere.GroupID, buffer.NewGroupID()} {
		untouched(t, f, "a retry of what does not wait", func() {
			fails(t, "RetryBatch", second.RetryBatch(t.Context(), not, request), buffer.ErrNotWaiting)
		})
	}
	ok(t, "RetryBatch", second.RetryBatch(t.Context(), one.GroupID, request))
	got, err := f.Buffer.RetryRequest(t.Context())
	ok(t, "RetryRequest", err)
	equal(t, "the request that another process sees", got, request)
	equal(t, "batch taken over", takeOver(t, f.Buffer).GroupID, one.GroupID)
	takeOverNone(t, f.Buffer)
	ok(t, "RetryBatch", second.RetryBatch(t.Context(), hook.GroupID, request))
	equal(t, "batch of the hook taken over", takeOver(t, queue).GroupID, hook.GroupID)
}

func liveDivided(t *testing.T, h Harness) {
	for name, c := range map[string]struct {
		attempts, outages, unfinished int
		address                       *string
		doubled                       bool
		want                          []int // outages and unfinished leases of the halves
	}{
		"refused":        {attempts: 3, want: []int{0, 0}},
		"after outages":  {attempts: 1, outages: 4, address: text(""), doubled: true, want: []int{4, 0}},
		"maybe sent":     {unfinished: 1, doubled: true, want: []int{1, 1}},
		"of a suspect":   {attempts: 2, unfinished: 6, doubled: true, want: []int{1, 2}},
		"was fresh once": {doubled: true, want: []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			f := h.Open(t, Options{})
			ids := f.Insert(t, orders(5)...)
			batch := claim(t, f.Buffer, 10)
			o := retry(batch, lease)
			o.Attempts, o.Outages, o.UnfinishedLeases, o.Address, o.Error = c.attempts, c.outages, c.unfinished, c.address, "503"
			settle(t, f.Buffer, batch, o)
			second := f.Second(t)
			if c.outages+c.unfinished > 0 {
				untouched(t, f, "a division without consent", func() {
					fails(t, "DivideBatch", second.DivideBatch(t.Context(), batch.GroupID, false), buffer.ErrMaybeSent)
				})
			}
			ok(t, "DivideBatch", second.DivideBatch(t.Context(), batch.GroupID, c.doubled))
			fails(t, "DivideBatch of a batch that is gone", second.DivideBatch(t.Context(), batch.GroupID, c.doubled), buffer.ErrNotWaiting)
			rows := f.Ledger(t)
			equal(t, "halves", len(rows), 2)
			for _, row := range rows {
				equal(t, "a half", []any{row.State, row.LeaseNo, row.Attempts, row.Outages, row.UnfinishedLeases, row.Origins, row.Address},
					[]any{"waiting", int64(0), c.attempts, c.want[0], c.want[1], []uuid.UUID{batch.GroupID}, (*string)(nil)})
				equal(t, "its error", row.Error, "divided by an operator; 503")
			}
			var sizes []int
			var got []int64
			for range 2 {
				half := takeOver(t, f.Buffer)
				sizes, got = append(sizes, half.Len()), append(got, half.IDs()...)
				settle(t, f.Buffer, half, delivered())
			}
			slices.Sort(sizes)
			slices.Sort(got)
			equal(t, "sizes", sizes, []int{2, 3})
			equal(t, "events", got, ids)
			// The owner of before has lost it.
			fails(t, "Settle", f.Buffer.Settle(t.Context(), batch, []buffer.Outcome{delivered()}), buffer.ErrLeaseLost)
			empty(t, f)
		})
	}
}

func liveNotDivided(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "no such tenant", orders(2)...)
	queue := f.Queue(t)
	hook := claim(t, queue, 10)
	refuse(t, queue, hook)
	f.Insert(t, orders(9)...)
	leased, marked, single, fresh := claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 1), claim(t, f.Buffer, 2)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), marked, marked.IDs()))
	refuse(t, f.Buffer, single)
	settle(t, f.Buffer, fresh, retry(fresh, lease))
	f.Exec(t, "UPDATE outbox_batches SET lease_no = 0 WHERE group_id = '"+fresh.GroupID.String()+"'")
	shrunk := claim(t, f.Buffer, 2)
	refuse(t, f.Buffer, shrunk)
	second := f.Second(t)
	divide := func(b *buffer.Lease) error { return second.DivideBatch(t.Context(), b.GroupID, true) }
	for name, b := range map[string]*buffer.Lease{"leased": leased, "delivered": marked, "of one event": single, "of a hook": hook, "not sent yet": fresh} {
		untouched(t, f, "a division of a batch that is "+name, func() {
			err := divide(b)
			if err == nil || errors.Is(err, buffer.ErrMaybeSent) || errors.Is(err, buffer.ErrNotWaiting) != (b == leased || b == marked) {
				t.Fatalf("DivideBatch of a batch that is %s: %v", name, err)
			}
		})
	}
	// The application has deleted an event of it meanwhile: it waits as before.
	before := ledgerOf(t, f, shrunk.GroupID)
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, shrunk.IDs()[1]))
	ok(t, "DivideBatch", divide(shrunk))
	after := ledgerOf(t, f, shrunk.GroupID)
	about(t, "due", after.DueIn, before.DueIn)
	before.DueIn, after.DueIn, before.Owner, after.Owner = 0, 0, "", ""
	before.LeaseNo++
	equal(t, "the batch that waits again", after, before)
}

// liveRaces: whatever an operator divides while relays take over and settle, each event is delivered once.
func liveRaces(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	const events = 60
	f.Insert(t, orders(events)...)
	for range events / 10 {
		b := claim(t, f.Buffer, 10)
		o := retry(b, 0)
		o.Attempts = 1
		settle(t, f.Buffer, b, o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var (
		work, dividing sync.WaitGroup
		delivered      = make([]int, 2)
		stop           = make(chan struct{})
		divided        atomic.Int64
		buffers        = []buffer.Buffer{f.Buffer, f.Second(t)}
		operator       = f.Second(t)
	)
	dividing.Go(func() {
		for {
			all, _, err := operator.ListBatches(ctx, 100)
			if err != nil {
				t.Errorf("ListBatches: %v", err)
				return
			}
			for _, one := range all {
				if err := operator.DivideBatch(ctx, one.GroupID, true); err == nil {
					divided.Add(1)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	for i, b := range buffers {
		work.Go(func() {
			for turn := 0; ctx.Err() == nil; turn++ {
				batch, err := b.TakeOver(ctx, lease, buffer.DueRetry)
				if err != nil {
					t.Errorf("TakeOver: %v", err)
					return
				}
				if batch == nil {
					left, _, err := b.ListBatches(ctx, 1)
					if err != nil || len(left) == 0 {
						return
					}
					continue
				}
				o := buffer.Outcome{Verdict: buffer.Delivered}
				if turn%3 == 0 || divided.Load() < 3 { // once more
					o = buffer.Outcome{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: batch.Attempts + 1}
				} else {
					delivered[i] += batch.Len()
				}
				if err := b.Settle(ctx, batch, []buffer.Outcome{o}); err != nil {
					t.Errorf("Settle: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
	close(stop)
	dividing.Wait()
	equal(t, "events delivered", delivered[0]+delivered[1], events)
	empty(t, f)
}
