package natssink_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// cuttableProxy forwards bytes between a client and a server. It closes the connection once,
// after so many bytes from the client or before a word from the server.
type cuttableProxy struct {
	url   string
	after atomic.Int64 // bytes from the client; 0: unlimited
	word  []byte       // the server's; not forwarded
	cut   atomic.Bool
}

func newCuttableProxy(t *testing.T, serverURL string, word string) *cuttableProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	w := &cuttableProxy{url: "nats://" + listener.Addr().String(), word: []byte(word)}
	var wait sync.WaitGroup
	t.Cleanup(func() { testkit.NoError(t, listener.Close()); wait.Wait() })
	wait.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", strings.TrimPrefix(serverURL, "nats://"))
			if err != nil {
				t.Error(err)
				return
			}
			wait.Go(func() {
				w.forward(to, client, func(p []byte) bool { return w.after.Load() > 0 && w.after.Add(-int64(len(p))) <= 0 })
			})
			wait.Go(func() {
				w.forward(client, to, func(p []byte) bool { return len(w.word) > 0 && !w.cut.Load() && bytes.Contains(p, w.word) })
			})
		}
	})
	return w
}

// forward copies until last reports true for bytes that are not to be forwarded.
func (w *cuttableProxy) forward(to io.WriteCloser, from io.ReadCloser, last func([]byte) bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if n > 0 && last(buf[:n]) {
			w.cut.Store(true)
			return
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func largeBatch(n int) *buffer.Batch {
	b := batchOf(n, "orders.a")
	for i := range b.Events {
		b.Events[i].Payload = bytes.Repeat([]byte("7"), 300)
	}
	return b
}

// No event of a batch without PubAck counts as delivered. Resent events, as a whole or in
// halves, by the same sink or another one, are stored once.
func TestConnectionLost_DuringFastBatch(t *testing.T) {
	t.Parallel()
	const n = 800
	type loss struct {
		after int64
		word  string
	}
	for _, l := range []loss{{1, ""}, {20_000, ""}, {150_000, ""}, {300_000, ""}, {0, `"type":"ack"`}, {0, `"batch":`}} {
		for _, again := range []string{"retry", "taken over", "halves"} {
			t.Run(fmt.Sprintf("%d%s/%s", l.after, l.word, again), func(t *testing.T) {
				t.Parallel()
				o := newFixture(t, fastStream)
				w := newCuttableProxy(t, o.url, l.word)
				s := open(t, natssink.Config{URL: w.url})
				testkit.NoError(t, s.Check(testkit.Timeout(t, sendTimeout))) // connects
				w.after.Store(l.after)
				b := largeBatch(n)
				err := s.Send(testkit.Timeout(t, promptTimeout), b)
				if !w.cut.Load() {
					t.Fatal("the connection was not cut")
				}
				testkit.Equal(t, "results", results(t, err, 1), "all outage")
				w.after.Store(0)
				parts := []*buffer.Batch{b}
				switch again {
				case "retry":
					b.FirstSend = false
				case "taken over":
					b.FirstSend = false
					s = open(t, natssink.Config{URL: o.url})
				case "halves":
					first, second := *b, *b
					first.Events, second.Events = b.Events[:n/2], b.Events[n/2:]
					for _, half := range []*buffer.Batch{&first, &second} {
						half.Origins = append(half.Origins, b.GroupID)
						half.GroupID = buffer.NewGroupID()
					}
					parts = []*buffer.Batch{&first, &second}
				}
				for _, part := range parts {
					testkit.NoError(t, s.Send(testkit.Timeout(t, sendTimeout), part))
				}
				testkit.Equal(t, "stored", o.ids(t), idsExcept(n))
			})
		}
	}
}

// The server restarts during concurrent Sends; each event is stored once.
func TestServerRestart_DuringSends(t *testing.T) {
	t.Parallel()
	broker := testserver.NATS(t)
	client := connect(t, broker.URL)
	stream := addStream(t, client, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowBatchPublish: true})
	s := open(t, natssink.Config{URL: broker.URL})
	const senders, batches, size = 3, 12, 400
	var sent atomic.Int64
	g, ctx := errgroup.WithContext(testkit.Timeout(t, 2*sendTimeout))
	for sender := range senders {
		g.Go(func() error {
			for n := range batches {
				b := largeBatch(size)
				for i := range b.Events {
					b.Events[i].ID += int64((sender*batches + n) * size)
				}
				for {
					err := s.Send(ctx, b)
					sent.Add(1)
					if err == nil {
						break
					}
					if !errors.Is(err, sink.ErrUnavailable) {
						if _, partly := errors.AsType[*sink.BatchError](err); !partly {
							return err
						}
					}
					b.FirstSend = false
					if ctx.Err() != nil {
						return ctx.Err()
					}
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		for n := range int64(3) {
			testkit.Eventually(t, func() error {
				if sent.Load() < 8*(n+1) {
					return errors.New("not yet")
				}
				return nil
			})
			broker.Stop()
			if err := broker.Start(); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.NoError(t, g.Wait())
	testkit.Eventually(t, func() error { return client.FlushTimeout(time.Second) })
	expectOnce(t, stored(t, stream), senders*batches*size)
}

// expectOnce fails the test unless n events are stored, each once.
func expectOnce(t *testing.T, got []sinktest.Arrival, n int) {
	t.Helper()
	seen := map[string]int{}
	for _, a := range got {
		if seen[a.ID]++; seen[a.ID] > 1 {
			t.Errorf("event %s is stored %d times", a.ID, seen[a.ID])
		}
	}
	if len(seen) != n {
		t.Errorf("%d events are stored; want %d", len(seen), n)
	}
}

// startCluster starts a cluster of three servers with JetStream.
func startCluster(t *testing.T) []*testserver.NATSServer {
	t.Helper()
	ports := make([]int, 3)
	var routes []string
	for i := range ports {
		port, err := testserver.FreePort()
		testkit.NoError(t, err)
		ports[i] = port
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	var g errgroup.Group
	servers := make([]*testserver.NATSServer, len(ports))
	for i, port := range ports {
		dir := t.TempDir()
		g.Go(func() (err error) {
			servers[i], err = testserver.StartNATS(dir, func(o *server.Options) {
				o.ServerName = fmt.Sprintf("n%d", i)
				o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}
				o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
			})
			return err
		})
	}
	err := g.Wait()
	t.Cleanup(func() {
		for _, s := range servers {
			if s != nil {
				s.Stop()
			}
		}
	})
	testkit.NoError(t, err)
	return servers
}

// A replicated stream changes its leader during fast batches; each event is stored once.
func TestLeaderChange_DuringFastBatches(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	client := connect(t, servers[0].URL)
	js, err := jetstream.New(client)
	testkit.NoError(t, err)
	var stream jetstream.Stream
	testkit.Eventually(t, func() error {
		stream, err = js.CreateStream(testkit.Timeout(t, time.Second), jetstream.StreamConfig{
			Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: 3, AllowBatchPublish: true,
		})
		return err
	})
	s := open(t, natssink.Config{URL: servers[0].URL, Ordered: true})
	const batches, size = 20, 300
	ctx := testkit.Timeout(t, 2*sendTimeout)
	var failed int
	for n := range batches {
		b := largeBatch(size)
		key := "one"
		for i := range b.Events {
			b.Events[i].ID += int64(n * size)
			b.Events[i].Key = &key
		}
		var g errgroup.Group
		if n%5 == 2 {
			g.Go(func() error {
				for {
					_, err := client.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN.ORDERS", nil)
					if !errors.Is(err, nats.ErrNoResponders) { // while the cluster elects a leader
						return err
					}
				}
			})
		}
		for {
			attempt := testkit.Timeout(t, 3*time.Second) // events that the old leader lost get no answer
			err := s.Send(attempt, b)
			if err == nil {
				break
			}
			failed++
			b.FirstSend = false
			testkit.NoError(t, ctx.Err())
		}
		testkit.NoError(t, g.Wait())
	}
	t.Logf("%d sends failed", failed)
	expectOnce(t, stored(t, stream), batches*size)
	got := strings.Fields(ids(stored(t, stream)))
	for i := range got {
		if got[i] != fmt.Sprint(i+1) {
			t.Fatalf("event %s is stored as number %d", got[i], i+1)
		}
	}
}
