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

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// publishCounter counts the fast batches that were begun on a subject and the events that
// were published singly.
type publishCounter struct {
	fast, single atomic.Int64
	sub          *nats.Subscription
}

func countPublishes(t *testing.T, client *nats.Conn, subject string) *publishCounter {
	t.Helper()
	w := &publishCounter{}
	sub, err := client.Subscribe(subject, func(m *nats.Msg) {
		switch {
		case strings.HasSuffix(m.Reply, ".1.0.$FI"):
			w.fast.Add(1)
		case !strings.HasSuffix(m.Reply, ".$FI"):
			w.single.Add(1)
		}
	})
	testkit.NoError(t, err)
	testkit.NoError(t, sub.SetPendingLimits(-1, -1))
	testkit.NoError(t, client.Flush())
	w.sub = sub
	return w
}

// expectFast waits until that many fast batches were begun.
func (w *publishCounter) expectFast(t *testing.T, fast int64) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if f := w.fast.Load(); f != fast {
			return fmt.Errorf("%d fast batches; want %d", f, fast)
		}
		return nil
	})
}

// expect waits until that many publishes were counted, then starts again at zero.
func (w *publishCounter) expect(t *testing.T, fast, single int64) {
	t.Helper()
	testkit.Eventually(t, func() error {
		if f, a := w.fast.Load(), w.single.Load(); f != fast || a != single {
			return fmt.Errorf("%d fast batches and %d single events; want %d and %d", f, a, fast, single)
		}
		return nil
	})
	w.fast.Store(0)
	w.single.Store(0)
}

func batchOf(n int, topics ...string) *buffer.Batch {
	all := make([]string, n)
	for i := range all {
		all[i] = topics[i%len(topics)]
	}
	return batch(all...)
}

// idsExcept lists the ids from 1 to n without some.
func idsExcept(n int, without ...int) string {
	var all []string
	for i := 1; i <= n; i++ {
		if !slices.Contains(without, i) {
			all = append(all, strconv.Itoa(i))
		}
	}
	return strings.Join(all, " ")
}

var fastStream = jetstream.StreamConfig{AllowBatchPublish: true}

func TestFastBatch_Stores(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	w := countPublishes(t, o.client, "orders.>")
	const n = 2500 // more than the window
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batchOf(n, "orders.a", "orders.b.c")))
	w.expect(t, 1, 0)
	testkit.Equal(t, "stored", o.ids(t), idsExcept(n))
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batch("orders.a", "orders.b"))) // known, and too few for a fast batch
	w.expect(t, 0, 2)
}

// Events that may have been sent before go singly, and are stored once.
func TestFastBatch_ResentEventsGoSingly(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	w := countPublishes(t, o.client, "orders.>")
	whole := batchOf(10, "orders.a")
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), whole))
	w.expect(t, 1, 0)
	for _, again := range []func(*buffer.Batch){
		func(b *buffer.Batch) { b.FirstSend = false },
		func(b *buffer.Batch) { b.Origins = append(b.Origins, whole.GroupID) },
	} {
		b := batchOf(10, "orders.a")
		b.GroupID, b.Events = whole.GroupID, whole.Events
		again(b)
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b))
		w.expect(t, 0, 10)
	}
	testkit.Equal(t, "stored", o.ids(t), idsExcept(10))
}

// Events with Nats- headers go singly, because the headers may mean something else in a batch.
func TestFastBatch_ServerHeadersGoSingly(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	w := countPublishes(t, o.client, "orders.>")
	b := batchOf(5, "orders.a")
	b.Events[2].Headers = outbox.NewHeaders(map[string]string{"Nats-Expected-Last-Msg-Id": "unknown"})
	testkit.Equal(t, "results", results(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b), 5), "ok ok rejected ok ok")
	w.expect(t, 1, 1)
	if got := o.stream.CachedInfo().State.LastSeq; got != 0 {
		t.Errorf("the stream had %d events at the start", got)
	}
}

func TestFastBatch_SeveralStreams(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	plain := addStream(t, o.client, jetstream.StreamConfig{Name: "PLAIN", Subjects: []string{"plain.*"}})
	other := addStream(t, o.client, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.*.x", "more"}, AllowBatchPublish: true})
	w, x := countPublishes(t, o.client, "orders.>"), countPublishes(t, o.client, "other.*.x")
	topics := []string{"orders.a", "other.a.x", "plain.a", "more", "orders.b", "nowhere", "other.b.x", "orders.c", "other.c"}
	err := o.sink.Send(testkit.Timeout(t, sendTimeout), batch(topics...))
	testkit.Equal(t, "results", results(t, err, 9), "ok ok ok ok ok outage ok ok outage")
	testkit.Equal(t, "orders", o.ids(t), "1 5 8")
	testkit.Equal(t, "other", ids(stored(t, other)), "2 4 7")
	testkit.Equal(t, "plain", ids(stored(t, plain)), "3")
	w.expect(t, 1, 0)
	x.expect(t, 1, 0)
}

// Events of one key that go to two streams wait for each other, so they go singly.
func TestOrdered_SeveralStreamsGoSingly(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	addStream(t, o.client, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}, AllowBatchPublish: true})
	s := open(t, natssink.Config{URL: o.url, Ordered: true})
	w := countPublishes(t, o.client, "orders.>")
	words := slices.Repeat([]string{"orders.x/a", "other/a"}, 5)
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), keyedBatch(words...)))
	w.expect(t, 0, 5)
	b := keyedBatch(slices.Repeat([]string{"orders.x/a"}, 5)...)
	for i := range b.Events {
		b.Events[i].ID += 100
	}
	testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), b))
	w.expect(t, 1, 0)
}

// Wherever a bad event is, and however it is rejected, the others are stored once and in order.
func TestFastBatch_OneBadEvent(t *testing.T) {
	t.Parallel()
	const n = 150 // more than the initial window
	for _, c := range []struct {
		name       string
		stream     jetstream.StreamConfig
		breakEvent func(e *outbox.Event)
		want       string
	}{
		{"too large for the stream", jetstream.StreamConfig{MaxMsgSize: 1000}, func(e *outbox.Event) { e.Payload = bytes.Repeat([]byte("7"), 1000) }, "permanent"},
		{
			"subject full",
			jetstream.StreamConfig{MaxMsgsPerSubject: n, DiscardNewPerSubject: true, Discard: jetstream.DiscardNew},
			func(e *outbox.Event) { e.Topic = "orders.full" }, "outage",
		},
		{"invalid header", jetstream.StreamConfig{}, func(e *outbox.Event) { e.Headers = outbox.NewHeaders(map[string]string{"a": "b\nc"}) }, "permanent"},
	} {
		for _, at := range []int{0, n / 2, n - 1} {
			for _, ordered := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/ordered=%v", c.name, at, ordered), func(t *testing.T) {
					t.Parallel()
					config := c.stream
					config.AllowBatchPublish = true
					o := newFixture(t, config)
					full := batchOf(n, "orders.full")
					for i := range full.Events {
						full.Events[i].ID += 1000
					}
					s := open(t, natssink.Config{URL: o.url, Ordered: ordered})
					testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), full))
					w := countPublishes(t, o.client, "orders.>")
					b := batchOf(n, "orders.a")
					for i := range b.Events {
						key := strconv.Itoa(i % 7)
						b.Events[i].Key = &key
					}
					c.breakEvent(&b.Events[at])
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
					testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, promptTimeout), b), n), strings.Join(want, " "))
					w.expectFast(t, 1)
					got := stored(t, o.stream)[n:]
					if ordered {
						// Only events of one key are in order.
						slices.SortStableFunc(got, func(a, b sinktest.Arrival) int { return strings.Compare(*a.Key, *b.Key) })
						last := map[string]int{}
						for _, a := range got {
							id, err := strconv.Atoi(a.ID)
							testkit.NoError(t, err)
							if id < last[*a.Key] {
								t.Errorf("event %d is stored after event %d of its key", id, last[*a.Key])
							}
							last[*a.Key] = id
						}
						slices.SortFunc(got, func(a, b sinktest.Arrival) int {
							x, _ := strconv.Atoi(a.ID)
							y, _ := strconv.Atoi(b.ID)
							return x - y
						})
					}
					testkit.Equal(t, "stored", ids(got), idsExcept(n, lost...))
				})
			}
		}
	}
}

func TestFastBatch_StreamFull(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: true, MaxMsgs: 1100, Discard: jetstream.DiscardNew})
	b := batchOf(1500, "orders.a")
	err := o.sink.Send(testkit.Timeout(t, sendTimeout), b)
	testkit.Equal(t, "results", results(t, err, 1500), strings.Repeat("ok ", 1100)+strings.TrimSpace(strings.Repeat("outage ", 400)))
	testkit.Equal(t, "stored", o.ids(t), idsExcept(1100))
	testkit.ErrorContains(t, err, "maximum messages exceeded")
}

// What the connection knows of a stream becomes wrong between two batches.
func TestFastBatch_StreamReconfigured(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	js, err := jetstream.New(o.client)
	testkit.NoError(t, err)
	w := countPublishes(t, o.client, "orders.>")
	from := 0
	next := func() *buffer.Batch {
		b := batchOf(10, "orders.a")
		for i := range b.Events {
			b.Events[i].ID += int64(from)
		}
		from += 10
		return b
	}
	// fastAgain sends until a batch is published as a fast batch.
	fastAgain := func() {
		w := countPublishes(t, o.client, "orders.>")
		defer func() { testkit.NoError(t, w.sub.Unsubscribe()) }()
		testkit.Eventually(t, func() error {
			w.fast.Store(0)
			testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), next()))
			testkit.NoError(t, o.client.Flush())
			if w.fast.Load() == 0 {
				return errors.New("the batch went singly")
			}
			return nil
		})
	}
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), next()))
	w.expect(t, 1, 0)

	config := o.stream.CachedInfo().Config
	config.AllowBatchPublish = false
	_, err = js.UpdateStream(t.Context(), config)
	testkit.NoError(t, err)
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), next()))
	w.expect(t, 1, 10) // tried, and refused
	for range 3 {
		testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), next()))
		w.expect(t, 0, 10) // not tried again
	}
	testkit.Equal(t, "stored", o.ids(t), idsExcept(50))

	testkit.NoError(t, w.sub.Unsubscribe()) // otherwise it would be a responder that does not answer
	testkit.NoError(t, o.client.Flush())
	testkit.NoError(t, js.DeleteStream(t.Context(), "ORDERS"))
	err = o.sink.Send(testkit.Timeout(t, promptTimeout), next())
	testkit.Equal(t, "results", results(t, err, 10), strings.TrimSpace(strings.Repeat("outage ", 10)))
	testkit.ErrorContains(t, err, "nats stream add")
	config.AllowBatchPublish = true
	o.stream = addStream(t, o.client, config)
	fastAgain()

	for range 2 {
		testkit.NoError(t, js.DeleteStream(t.Context(), "ORDERS"))
		o.stream = addStream(t, o.client, config)
		fastAgain()
	}

	config.Sealed = true
	_, err = js.UpdateStream(t.Context(), config)
	testkit.NoError(t, err)
	err = o.sink.Send(testkit.Timeout(t, promptTimeout), next())
	testkit.Equal(t, "results of a sealed stream", results(t, err, 10), strings.TrimSpace(strings.Repeat("outage ", 10)))
	testkit.ErrorContains(t, err, "sealed")
}

// A fast batch whose events the stream has already: all of them are published again singly, because the PubAck of a
// replicated stream also counts events that may yet be lost with its leader.
func TestFastBatch_Known(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	w := countPublishes(t, o.client, "orders.>")
	b := batchOf(15, "orders.a")
	part := *b
	part.Events = b.Events[:10]
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), &part))
	w.expect(t, 1, 0)
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b)) // the stream knows some
	w.expect(t, 1, 0)
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), b)) // all
	w.expect(t, 1, 15)
	testkit.Equal(t, "stored", o.ids(t), idsExcept(15))
}

// A recreated stream takes fast batches at once.
func TestFastBatch_StreamRecreated(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	js, err := jetstream.New(o.client)
	testkit.NoError(t, err)
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batchOf(3, "orders.a")))
	testkit.NoError(t, js.DeleteStream(t.Context(), "ORDERS"))
	o.stream = addStream(t, o.client, o.stream.CachedInfo().Config)
	testkit.NoError(t, o.sink.Send(testkit.Timeout(t, sendTimeout), batchOf(10, "orders.a")))
	testkit.Equal(t, "stored", o.ids(t), idsExcept(10))
}

func TestFastBatch_ConcurrentSends(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream)
	const senders, batches, size = 8, 5, 300
	var g errgroup.Group
	for sender := range senders {
		g.Go(func() error {
			for n := range batches {
				b := batchOf(size, fmt.Sprintf("orders.%d.%d", sender, n))
				for i := range b.Events {
					b.Events[i].ID += int64((sender*batches + n) * size)
				}
				if err := o.sink.Send(testkit.Timeout(t, sendTimeout), b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	testkit.NoError(t, g.Wait())
	got := stored(t, o.stream)
	last := map[string]int{}
	seen := map[string]bool{}
	for _, a := range got {
		id, err := strconv.Atoi(a.ID)
		testkit.NoError(t, err)
		if seen[a.ID] || id < last[a.Address] {
			t.Errorf("event %d is stored twice, or after event %d of its batch", id, last[a.Address])
		}
		seen[a.ID], last[a.Address] = true, id
	}
	if len(got) != senders*batches*size {
		t.Errorf("%d events are stored; want %d", len(got), senders*batches*size)
	}
}

// Batches beyond the server's limit go singly.
func TestFastBatch_ServerLimit(t *testing.T) {
	t.Parallel()
	o := newFixture(t, fastStream, func(o *server.Options) { o.JetStreamLimits.MaxBatchInflightPerStream = 1 })
	const senders, size = 6, 300
	begin := make(chan struct{})
	var g errgroup.Group
	for sender := range senders {
		g.Go(func() error {
			b := batchOf(size, "orders.a")
			for i := range b.Events {
				b.Events[i].ID += int64(sender * size)
			}
			<-begin
			return o.sink.Send(testkit.Timeout(t, sendTimeout), b)
		})
	}
	close(begin)
	testkit.NoError(t, g.Wait())
	expectOnce(t, stored(t, o.stream), senders*size)
}

// Without permission to list the streams all events go singly.
func TestFastBatch_MayNotListStreams(t *testing.T) {
	t.Parallel()
	url := testserver.NATS(t, withPermissions([]string{"orders.>"}, []string{"_INBOX.>"})).URL
	client := connect(t, asUser("all:pw", url))
	stream := addStream(t, client, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowBatchPublish: true})
	w := countPublishes(t, client, "orders.>")
	s := open(t, natssink.Config{URL: asUser("relay:pw", url)})
	testkit.NoError(t, s.Send(testkit.Timeout(t, promptTimeout), batchOf(10, "orders.a")))
	w.expect(t, 0, 10)
	testkit.Equal(t, "stored", ids(stored(t, stream)), idsExcept(10))
}
