package natssink_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// ways counts what is published on a subject: fast batches that were begun, and events
// that went one by one.
type ways struct {
	fast, alone atomic.Int64
	sub         *nats.Subscription
}

func watch(t *testing.T, client *nats.Conn, subject string) *ways {
	t.Helper()
	w := &ways{}
	sub, err := client.Subscribe(subject, func(m *nats.Msg) {
		switch {
		case strings.HasSuffix(m.Reply, ".1.0.$FI"):
			w.fast.Add(1)
		case !strings.HasSuffix(m.Reply, ".$FI"):
			w.alone.Add(1)
		}
	})
	ok(t, err)
	ok(t, sub.SetPendingLimits(-1, -1))
	ok(t, client.Flush())
	w.sub = sub
	return w
}

// began waits until so many fast batches were begun.
func (w *ways) began(t *testing.T, fast int64) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if f := w.fast.Load(); f != fast {
			return fmt.Errorf("%d fast batches, %d were expected", f, fast)
		}
		return nil
	})
}

// saw waits until so much was published, and since the last call.
func (w *ways) saw(t *testing.T, fast, alone int64) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if f, a := w.fast.Load(), w.alone.Load(); f != fast || a != alone {
			return fmt.Errorf("%d fast batches and %d events alone, %d and %d were expected", f, a, fast, alone)
		}
		return nil
	})
	w.fast.Store(0)
	w.alone.Store(0)
}

func many(n int, topics ...string) *buffer.Batch {
	all := make([]string, n)
	for i := range all {
		all[i] = topics[i%len(topics)]
	}
	return batch(all...)
}

// upTo is the ids from 1 to n but for those.
func upTo(n int, but ...int) string {
	var all []string
	for i := 1; i <= n; i++ {
		if !slices.Contains(but, i) {
			all = append(all, strconv.Itoa(i))
		}
	}
	return strings.Join(all, " ")
}

var allowed = jetstream.StreamConfig{AllowBatchPublish: true}

func TestFastBatch(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	w := watch(t, o.client, "orders.>")
	const n = 2500 // more than may be under way at once
	ok(t, o.sink.Send(within(t, patience), many(n, "orders.a", "orders.b.c")))
	w.saw(t, 1, 0)
	expect(t, "stored", o.ids(t), upTo(n))
	ok(t, o.sink.Send(within(t, patience), batch("orders.a", "orders.b"))) // known, and too few
	w.saw(t, 0, 2)
}

// TestWhatMayHaveBeenSentBefore goes one by one, and is stored once.
func TestWhatMayHaveBeenSentBefore(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	w := watch(t, o.client, "orders.>")
	whole := many(10, "orders.a")
	ok(t, o.sink.Send(within(t, patience), whole))
	w.saw(t, 1, 0)
	for _, again := range []func(*buffer.Batch){
		func(b *buffer.Batch) { b.FirstSend = false }, func(b *buffer.Batch) { b.FirstSend = false }, func(b *buffer.Batch) { b.FirstSend = false },
		func(b *buffer.Batch) { b.Origins = append(b.Origins, whole.GroupID) },
	} {
		b := many(10, "orders.a")
		again(b)
		ok(t, o.sink.Send(within(t, patience), b))
		w.saw(t, 0, 10)
	}
	expect(t, "stored", o.ids(t), upTo(10))
	if n := o.sink.Duplicates(); n != 0 {
		t.Errorf("%d duplicates were counted", n)
	}
}

// TestEventsThatGiveOrders go one by one: in a batch the stream may understand them in
// another way.
func TestEventsThatGiveOrders(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	w := watch(t, o.client, "orders.>")
	b := many(5, "orders.a")
	b.Events[2].Headers = outbox.NewHeaders(map[string]string{"Nats-Expected-Last-Msg-Id": "nobody's"})
	expect(t, "verdicts", verdicts(t, o.sink.Send(within(t, patience), b), 5), "ok ok refused ok ok")
	w.saw(t, 1, 1)
	if got := o.stream.CachedInfo().State.LastSeq; got != 0 {
		t.Errorf("the stream began with %d events", got)
	}
}

func TestSeveralStreams(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	plain := addStream(t, o.client, jetstream.StreamConfig{Name: "PLAIN", Subjects: []string{"plain.*"}})
	other := addStream(t, o.client, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.*.x", "more"}, AllowBatchPublish: true})
	w, x := watch(t, o.client, "orders.>"), watch(t, o.client, "other.*.x")
	topics := []string{"orders.a", "other.a.x", "plain.a", "more", "orders.b", "nowhere", "other.b.x", "orders.c", "other.c"}
	err := o.sink.Send(within(t, patience), batch(topics...))
	expect(t, "verdicts", verdicts(t, err, 9), "ok ok ok ok ok outage ok ok outage")
	expect(t, "orders", o.ids(t), "1 5 8")
	expect(t, "other", ids(stored(t, other)), "2 4 7")
	expect(t, "plain", ids(stored(t, plain)), "3")
	w.saw(t, 1, 0)
	x.saw(t, 1, 0)
}

// TestOrderIsKeptAcrossStreams: events of a key that go to two streams wait for each
// other, so they do not go in fast batches.
func TestOrderIsKeptAcrossStreams(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	addStream(t, o.client, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}, AllowBatchPublish: true})
	s := open(t, natssink.Config{URL: o.url, Ordered: true})
	w := watch(t, o.client, "orders.>")
	words := slices.Repeat([]string{"orders.x/a", "other/a"}, 5)
	ok(t, s.Send(within(t, patience), keyedBatch(words...)))
	w.saw(t, 0, 5)
	b := keyedBatch(slices.Repeat([]string{"orders.x/a"}, 5)...)
	for i := range b.Events {
		b.Events[i].ID += 100
	}
	ok(t, s.Send(within(t, patience), b))
	w.saw(t, 1, 0)
}

// TestOneBadEvent: wherever it is, and whoever refuses it how, the others arrive, once
// and in order.
func TestOneBadEvent(t *testing.T) {
	t.Parallel()
	const n = 150 // more than may be under way before the stream has answered
	for _, c := range []struct {
		name   string
		stream jetstream.StreamConfig
		spoil  func(e *outbox.Event)
		want   string
	}{
		{"too large for the stream", jetstream.StreamConfig{MaxMsgSize: 1000}, func(e *outbox.Event) { e.Payload = bytes.Repeat([]byte("7"), 1000) }, "dead"},
		{
			"its subject is full",
			jetstream.StreamConfig{MaxMsgsPerSubject: n, DiscardNewPerSubject: true, Discard: jetstream.DiscardNew},
			func(e *outbox.Event) { e.Topic = "orders.full" }, "outage",
		},
		{"no header", jetstream.StreamConfig{}, func(e *outbox.Event) { e.Headers = outbox.NewHeaders(map[string]string{"a": "b\nc"}) }, "dead"},
	} {
		for _, at := range []int{0, n / 2, n - 1} {
			for _, ordered := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/ordered=%v", c.name, at, ordered), func(t *testing.T) {
					t.Parallel()
					config := c.stream
					config.AllowBatchPublish = true
					o := openOrders(t, config)
					full := many(n, "orders.full")
					for i := range full.Events {
						full.Events[i].ID += 1000
					}
					s := open(t, natssink.Config{URL: o.url, Ordered: ordered})
					ok(t, s.Send(within(t, patience), full))
					w := watch(t, o.client, "orders.>")
					b := many(n, "orders.a")
					for i := range b.Events {
						key := strconv.Itoa(i % 7)
						b.Events[i].Key = &key
					}
					c.spoil(&b.Events[at])
					want := slices.Repeat([]string{"ok"}, n)
					want[at] = c.want
					if ordered && c.want == "outage" {
						for i := at + 7; i < n; i += 7 {
							want[i] = "outage" // behind it
						}
					}
					var lost []int
					for i := range want {
						if want[i] != "ok" {
							lost = append(lost, i+1)
						}
					}
					expect(t, "verdicts", verdicts(t, s.Send(within(t, soon), b), n), strings.Join(want, " "))
					w.began(t, 1)
					got := stored(t, o.stream)[n:]
					if ordered {
						// Each key's are in order; keys may overtake each other.
						slices.SortStableFunc(got, func(a, b sinktest.Arrival) int { return strings.Compare(*a.Key, *b.Key) })
						last := map[string]int{}
						for _, a := range got {
							id, err := strconv.Atoi(a.ID)
							ok(t, err)
							if id < last[*a.Key] {
								t.Errorf("event %d came behind event %d of its key", id, last[*a.Key])
							}
							last[*a.Key] = id
						}
						slices.SortFunc(got, func(a, b sinktest.Arrival) int {
							x, _ := strconv.Atoi(a.ID)
							y, _ := strconv.Atoi(b.ID)
							return x - y
						})
					}
					expect(t, "stored", ids(got), upTo(n, lost...))
					if d := s.Duplicates(); d != 0 {
						t.Errorf("%d duplicates were counted", d)
					}
				})
			}
		}
	}
}

func TestFastStreamIsFull(t *testing.T) {
	t.Parallel()
	o := openOrders(t, jetstream.StreamConfig{AllowBatchPublish: true, MaxMsgs: 1100, Discard: jetstream.DiscardNew})
	b := many(1500, "orders.a")
	err := o.sink.Send(within(t, patience), b)
	expect(t, "verdicts", verdicts(t, err, 1500), strings.Repeat("ok ", 1100)+strings.TrimSpace(strings.Repeat("outage ", 400)))
	expect(t, "stored", o.ids(t), upTo(1100))
	says(t, err, "maximum messages exceeded")
}

// TestStreamChanges: what was learnt of a stream is wrong from one batch to the next.
func TestStreamChanges(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	js, err := jetstream.New(o.client)
	ok(t, err)
	w := watch(t, o.client, "orders.>")
	from := 0
	next := func() *buffer.Batch {
		b := many(10, "orders.a")
		for i := range b.Events {
			b.Events[i].ID += int64(from)
		}
		from += 10
		return b
	}
	// fastAgain sends until a batch goes the fast way.
	fastAgain := func() {
		w := watch(t, o.client, "orders.>")
		defer func() { ok(t, w.sub.Unsubscribe()) }()
		testserver.Eventually(t, func() error {
			w.fast.Store(0)
			ok(t, o.sink.Send(within(t, patience), next()))
			ok(t, o.client.Flush())
			if w.fast.Load() == 0 {
				return errors.New("it went one by one")
			}
			return nil
		})
	}
	ok(t, o.sink.Send(within(t, patience), next()))
	w.saw(t, 1, 0)

	config := o.stream.CachedInfo().Config
	config.AllowBatchPublish = false
	_, err = js.UpdateStream(t.Context(), config)
	ok(t, err)
	ok(t, o.sink.Send(within(t, patience), next()))
	w.saw(t, 1, 10) // tried, and refused
	for range 3 {
		ok(t, o.sink.Send(within(t, patience), next()))
		w.saw(t, 0, 10) // not tried again
	}
	expect(t, "stored", o.ids(t), upTo(50))

	ok(t, w.sub.Unsubscribe()) // or there would be somebody who does not answer
	ok(t, o.client.Flush())
	ok(t, js.DeleteStream(t.Context(), "ORDERS"))
	err = o.sink.Send(within(t, soon), next())
	expect(t, "verdicts", verdicts(t, err, 10), strings.TrimSpace(strings.Repeat("outage ", 10)))
	says(t, err, "nats stream add")
	config.AllowBatchPublish = true
	o.stream = addStream(t, o.client, config)
	fastAgain()

	// Made anew in between: sequences begin again, and that is no sign of duplicates.
	for range 2 {
		ok(t, js.DeleteStream(t.Context(), "ORDERS"))
		o.stream = addStream(t, o.client, config)
		fastAgain()
	}
	if n := o.sink.Duplicates(); n != 0 {
		t.Errorf("%d duplicates were counted", n)
	}

	config.Sealed = true
	_, err = js.UpdateStream(t.Context(), config)
	ok(t, err)
	err = o.sink.Send(within(t, soon), next())
	expect(t, "verdicts of a sealed stream", verdicts(t, err, 10), strings.TrimSpace(strings.Repeat("outage ", 10)))
	says(t, err, "sealed")
}

// TestDuplicatesInAFastBatch: the stream does not tell which events it knew, but how many
// it stored.
func TestDuplicatesInAFastBatch(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	w := watch(t, o.client, "orders.>")
	ok(t, o.sink.Send(within(t, patience), many(10, "orders.a")))
	w.saw(t, 1, 0)
	ok(t, o.sink.Send(within(t, patience), many(15, "orders.a")))
	w.saw(t, 1, 0)
	if n := o.sink.Duplicates(); n != 10 {
		t.Errorf("%d duplicates were counted, ten were expected", n)
	}
	ok(t, o.sink.Send(within(t, patience), many(15, "orders.a"))) // all are known: each one's own ack is asked for
	w.saw(t, 1, 15)
	if n := o.sink.Duplicates(); n != 25 {
		t.Errorf("%d duplicates were counted, 25 were expected", n)
	}
	expect(t, "stored", o.ids(t), upTo(15))
}

// TestStreamMadeAnew: its sequences begin again, which is no sign of duplicates.
func TestStreamMadeAnew(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	js, err := jetstream.New(o.client)
	ok(t, err)
	ok(t, o.sink.Send(within(t, patience), many(3, "orders.a")))
	ok(t, js.DeleteStream(t.Context(), "ORDERS"))
	o.stream = addStream(t, o.client, o.stream.CachedInfo().Config)
	ok(t, o.sink.Send(within(t, patience), many(10, "orders.a")))
	expect(t, "stored", o.ids(t), upTo(10))
	if n := o.sink.Duplicates(); n != 0 {
		t.Errorf("%d duplicates were counted", n)
	}
}

// TestManySendersAtOnce: batches of several workers on one connection do not mix up.
func TestManySendersAtOnce(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed)
	const senders, batches, size = 8, 5, 300
	var g errgroup.Group
	for sender := range senders {
		g.Go(func() error {
			for n := range batches {
				b := many(size, fmt.Sprintf("orders.%d.%d", sender, n))
				for i := range b.Events {
					b.Events[i].ID += int64((sender*batches + n) * size)
				}
				if err := o.sink.Send(within(t, patience), b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ok(t, g.Wait())
	got := stored(t, o.stream)
	last := map[string]int{}
	seen := map[string]bool{}
	for _, a := range got {
		id, err := strconv.Atoi(a.ID)
		ok(t, err)
		if seen[a.ID] || id < last[a.Address] {
			t.Errorf("event %d came twice, or behind event %d of its batch", id, last[a.Address])
		}
		seen[a.ID], last[a.Address] = true, id
	}
	if len(got) != senders*batches*size {
		t.Errorf("%d events are stored", len(got))
	}
	if n := o.sink.Duplicates(); n != 0 {
		t.Errorf("%d duplicates were counted", n)
	}
}

// TestTooManyBatches: what the server has no room for goes one by one.
func TestTooManyBatches(t *testing.T) {
	t.Parallel()
	o := openOrders(t, allowed, func(o *server.Options) { o.JetStreamLimits.MaxBatchInflightPerStream = 1 })
	const senders, size = 6, 300
	begin := make(chan struct{})
	var g errgroup.Group
	for sender := range senders {
		g.Go(func() error {
			b := many(size, "orders.a")
			for i := range b.Events {
				b.Events[i].ID += int64(sender * size)
			}
			<-begin
			return o.sink.Send(within(t, patience), b)
		})
	}
	close(begin)
	ok(t, g.Wait())
	once(t, stored(t, o.stream), senders*size)
}

// TestNoLeaveToAskForStreams: then all go one by one.
func TestNoLeaveToAskForStreams(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, restricted([]string{"orders.>"}, []string{"_INBOX.>"})).URL
	client := connect(t, as("all:pw", url))
	stream := addStream(t, client, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowBatchPublish: true})
	w := watch(t, client, "orders.>")
	s := open(t, natssink.Config{URL: as("relay:pw", url)})
	ok(t, s.Send(within(t, soon), many(10, "orders.a")))
	w.saw(t, 0, 10)
	expect(t, "stored", ids(stored(t, stream)), upTo(10))
}
