package pipeline_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/pipeline"
)

// wire is a TCP proxy in front of a server that does harm to what goes through.
type wire struct {
	to       string
	listener net.Listener
	// harm is asked once a connection, n from 1, and returns what looks at each
	// piece that passes, up (to the server) or down: how much of it may still
	// pass before the connection is cut, -1 for all of it and no cut, silence for
	// nothing of it and no cut either, halfClosed for the end of this way alone.
	harm  func(n int64) func(up bool, piece []byte) int
	conns atomic.Int64
	cuts  atomic.Int64
	open  sync.WaitGroup
}

// newWire puts a proxy in front of a database and returns the URL through it.
// TLS is off, so that the proxy sees what passes.
func newWire(t testing.TB, databaseURL string, harm func(n int64) func(up bool, piece []byte) int) (*wire, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	testkit.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	w := &wire{to: u.Host, listener: listener, harm: harm}
	ctx, cancel := context.WithCancel(context.Background())
	w.open.Go(func() { w.accept(ctx) })
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, listener.Close())
		w.open.Wait()
	})
	u.Host = listener.Addr().String()
	u.RawQuery = "sslmode=disable"
	return w, u.String()
}

func (w *wire) accept(ctx context.Context) {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.open.Go(func() { w.serve(ctx, client) })
	}
}

// serve carries one connection until either side, or the harm, ends it.
func (w *wire) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.to)
	if err != nil {
		return
	}
	defer server.Close()
	harm := w.harm(w.conns.Add(1))
	var (
		ways  sync.WaitGroup
		mu    sync.Mutex // harm sees one piece at a time
		carry = func(up bool, from, to net.Conn) {
			defer from.Close()
			defer to.Close()
			piece := make([]byte, 32<<10)
			for {
				n, err := from.Read(piece)
				mu.Lock()
				pass := harm(up, piece[:n])
				mu.Unlock()
				switch {
				case pass == halfClosed && err == nil:
					w.cuts.Add(1)
					if tcp, ok := to.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
						return
					}
					<-ctx.Done() // the other way stays open until a peer closes it
					return
				case pass == silence && err == nil:
					n = 0
				case pass >= 0 && pass < n:
					w.cuts.Add(1)
					n, err = pass, io.EOF
				}
				if _, writeErr := to.Write(piece[:n]); err != nil || writeErr != nil {
					return
				}
			}
		}
	)
	defer context.AfterFunc(ctx, func() {
		client.Close()
		server.Close()
	})()
	ways.Go(func() { carry(true, client, server) })
	ways.Go(func() { carry(false, server, client) })
	ways.Wait()
}

// cutAfter cuts a connection when so many bytes have gone one way.
func cutAfter(up bool, after int) func(bool, []byte) int {
	return func(goesUp bool, piece []byte) int {
		if goesUp != up {
			return -1
		}
		if after < len(piece) {
			return after
		}
		after -= len(piece)
		return -1
	}
}

// silence: the connection stays open, and nothing passes.
const silence = -2

// halfClosed: one direction ends, the other stays open.
const halfClosed = -3

// halfCloseAfter lets so many bytes go one way; then that way is at its end.
func halfCloseAfter(up bool, after int) func(bool, []byte) int {
	return func(goesUp bool, piece []byte) int {
		if goesUp != up {
			return -1
		}
		if after -= len(piece); after < 0 {
			return halfClosed
		}
		return -1
	}
}

// fallSilentAfter lets so many bytes go one way; then the connection hangs, without
// an error.
func fallSilentAfter(up bool, after int) func(bool, []byte) int {
	return func(goesUp bool, piece []byte) int {
		if goesUp == up {
			after -= len(piece)
		}
		if after < 0 {
			return silence
		}
		return -1
	}
}

// harmless lets everything pass.
func harmless(bool, []byte) int { return -1 }

// The line is cut anywhere, mostly in the middle of something, again and again
// while the relay drains: nothing is lost and nothing comes twice.
func TestConnection_CutAnywhere(t *testing.T) {
	t.Parallel()
	const seed = 20260102
	chance := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // to be the same each time
	var mu sync.Mutex
	testWire(t, 20, func(n int64) func(bool, []byte) int {
		if n > 50 { // and then it holds
			return harmless
		}
		mu.Lock()
		defer mu.Unlock()
		return cutAfter(chance.IntN(2) == 0, 1000+chance.IntN(40_000))
	})
}

// One direction of a connection ends, the other stays open: either the server or
// the relay receives nothing more.
func TestConnection_HalfClosed(t *testing.T) {
	t.Parallel()
	testWire(t, 12, func(n int64) func(bool, []byte) int {
		if n > 24 {
			return harmless
		}
		return halfCloseAfter(n%2 == 0, 2000+700*int(n))
	})
}

// The server's answer to COMMIT never comes: what was claimed, settled or marked
// may have happened or not.
func TestSettle_CommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	testWire(t, 20, func(n int64) func(bool, []byte) int {
		if n > 40 {
			return harmless
		}
		commits := 0
		return func(up bool, piece []byte) int {
			if !up && bytes.Contains(piece, []byte("COMMIT\x00")) {
				if commits++; commits == 2+int(n)%5 {
					return 0
				}
			}
			return -1
		}
	})
}

// The COMMIT itself never arrives.
func TestSettle_CommitNeverArrives(t *testing.T) {
	t.Parallel()
	testWire(t, 20, func(n int64) func(bool, []byte) int {
		if n > 40 {
			return harmless
		}
		commits := 0
		return func(up bool, piece []byte) int {
			if at := bytes.Index(piece, []byte("COMMIT\x00")); up && at >= 0 {
				if commits++; commits == 2+int(n)%5 {
					return at
				}
			}
			return -1
		}
	})
}

// Connections that hang without an error, in the middle of a claim or of a settle: our
// own clocks end the waiting, and the server does not keep rows locked for one that
// will not come back.
func TestConnection_Hangs(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	const hanging = 4
	var silent atomic.Int64
	w, through := newWire(t, d.url, func(n int64) func(bool, []byte) int {
		if n > hanging {
			return harmless
		}
		hang := fallSilentAfter(n%2 == 0, 3000+1500*int(n))
		said := false
		return func(up bool, piece []byte) int {
			pass := hang(up, piece)
			if pass == silence && !said {
				said = true
				silent.Add(1)
			}
			return pass
		}
	})
	ids := d.insert(t, "orders", 10_000)
	start(t, bufferAt(t, through, "relay"), to, func(c *pipeline.Config) {
		c.BatchSize = 50
		c.Lease = 1500 * time.Millisecond
	})
	until := time.NewTimer(3 * time.Minute)
	defer until.Stop()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		left := queryValue[int](t, d, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)")
		if left == 0 {
			break
		}
		select {
		case <-until.C:
			t.Fatalf("%d rows are left, %d connections of %d fell silent", left, silent.Load(), w.conns.Load())
		case <-again.C:
		}
	}
	if silent.Load() < 2 {
		t.Errorf("%d connections fell silent; want more", silent.Load())
	}
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// testWire drains through a wire that does harm, which has to cut so often.
func testWire(t *testing.T, cuts int64, harm func(n int64) func(bool, []byte) int) {
	t.Helper()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	w, through := newWire(t, d.url, harm)
	ids := d.insert(t, "orders", 10_000)
	stop := make(chan struct{})
	var more []int64
	var producing sync.WaitGroup
	producing.Go(func() { // until the faults end
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			next, err := d.transaction(t.Context(), "orders", 200, true)
			if err != nil {
				t.Error(err)
				return
			}
			more = append(more, next...)
		}
	})
	start(t, bufferAt(t, through, "relay"), to, func(c *pipeline.Config) {
		c.BatchSize = 50
		c.Lease = 1500 * time.Millisecond // what a cut left claimed comes back soon
	})
	testserver.Eventually(t, func() error {
		if n := w.cuts.Load(); n < cuts {
			return fmt.Errorf("the connections were cut %d times; want %d", n, cuts)
		}
		return nil
	})
	close(stop)
	producing.Wait()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), append(ids, more...))
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), 0)
}
