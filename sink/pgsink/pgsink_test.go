package pgsink_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/pgsink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var keeps = sinktest.Keeps{
	Topic: true, Key: true, Headers: true, HeadersText: true, CreatedAt: true, AnyText: true, LineBreaks: true,
}

func TestConformance_JSON(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Open: opener("json"), OpenBroken: openBroken, Keeps: keeps, OnceOnly: true})
}

func TestConformance_Bytes(t *testing.T) {
	bytes := keeps
	bytes.Bytes = true
	sinktest.Run(t, sinktest.Harness{Open: opener("bytea"), OpenBroken: openBroken, Keeps: bytes, OnceOnly: true})
}

func BenchmarkSend(b *testing.B) {
	for _, payload := range []string{"json", "jsonb", "bytea"} {
		b.Run(payload, func(b *testing.B) { sinktest.Bench(b, sinktest.Harness{Open: opener(payload), Keeps: keeps}) })
	}
}

// inbox is an inbox in a database of its own.
type inbox struct {
	t   testing.TB
	url string
	db  *pgx.Conn
}

// newInbox makes an inbox as relay schema prints it, with a payload of that type and a place for dead letters.
func newInbox(t testing.TB, payload string) *inbox {
	t.Helper()
	i := &inbox{t: t, url: testserver.Postgres(t)}
	i.db = connectTo(t, i.url)
	i.exec(strings.ReplaceAll(pgsink.Schema("inbox"), "payload      json ", "payload "+payload+" "))
	i.exec("ALTER TABLE inbox ADD COLUMN dead_letter json")
	return i
}

func connectTo(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (i *inbox) exec(sql string) {
	i.t.Helper()
	_, err := i.db.Exec(i.t.Context(), sql)
	testkit.NoError(i.t, err)
}

// sinkURL is the URL of the table, with more parameters.
func (i *inbox) sinkURL(more ...string) string { return withTable(i.url, more...) }

func withTable(url string, more ...string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + strings.Join(append([]string{"table=inbox"}, more...), "&")
}

func open(t testing.TB, url string) *pgsink.Sink {
	t.Helper()
	s, err := pgsink.New(pgsink.Config{URL: url})
	testkit.NoError(t, err)
	return s
}

// closing is open for a test, which closes the sink.
func closing(t testing.TB, url string) *pgsink.Sink {
	t.Helper()
	s := open(t, url)
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	return s
}

func opener(payload string) func(testing.TB) sinktest.Destination {
	return func(t testing.TB) sinktest.Destination {
		i := newInbox(t, payload)
		g := newGate(t, i.url)
		return sinktest.Destination{
			Connect:  func(t testing.TB) sink.Sink { return open(t, withTable(g.url)) },
			Arrivals: func(t testing.TB) []sinktest.Arrival { return i.arrivals(t) },
			Stop:     func(testing.TB) { g.stop() },
			Start:    g.start,
		}
	}
}

func (i *inbox) arrivals(t testing.TB) (all []sinktest.Arrival) {
	t.Helper()
	rows, err := i.db.Query(t.Context(), `SELECT event_id, topic, key, payload, headers::text, created_at, coalesce(dead_letter::text, '') FROM inbox ORDER BY seq`)
	testkit.NoError(t, err)
	for rows.Next() {
		var (
			a       sinktest.Arrival
			headers *string
		)
		testkit.NoError(t, rows.Scan(&a.ID, &a.Topic, &a.Key, &a.Payload, &headers, &a.CreatedAt, &a.DeadLetter))
		if headers != nil {
			a.Headers = outbox.Headers(*headers)
		}
		all = append(all, a)
	}
	testkit.NoError(t, rows.Err())
	return all
}

func openBroken(t testing.TB) sink.Sink {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	testkit.NoError(t, l.Close())
	return open(t, "postgres://relay@"+l.Addr().String()+"/app?table=inbox")
}

// gate is a TCP proxy in front of a server, at one address.
type gate struct {
	url, address, server string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	wait     sync.WaitGroup
}

func newGate(t testing.TB, url string) *gate {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	testkit.NoError(t, err)
	g := &gate{address: "127.0.0.1:0", server: net.JoinHostPort(c.Host, port(c.Port))}
	g.start(t)
	g.url = strings.Replace(url, g.server, g.address, 1)
	t.Cleanup(g.stop)
	return g
}

func port(p uint16) string { return (&net.TCPAddr{Port: int(p)}).String()[1:] }

func (g *gate) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", g.address)
	testkit.NoError(t, err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener, g.address, g.conns = l, l.Addr().String(), map[net.Conn]bool{}
	g.wait.Go(func() { g.accept(l) })
}

func (g *gate) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.DialTimeout("tcp", g.server, 10*time.Second)
		if err != nil {
			client.Close()
			continue
		}
		g.mu.Lock()
		if g.listener != l {
			g.mu.Unlock()
			client.Close()
			server.Close()
			return
		}
		g.conns[client], g.conns[server] = true, true
		g.wait.Go(func() { pipe(client, server) })
		g.wait.Go(func() { pipe(server, client) })
		g.mu.Unlock()
	}
}

func pipe(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if _, wrong := to.Write(buffer[:n]); err != nil || wrong != nil {
			return
		}
	}
}

func (g *gate) stop() {
	g.mu.Lock()
	if g.listener != nil {
		g.listener.Close()
		g.listener = nil
	}
	for c := range g.conns {
		c.Close()
	}
	g.mu.Unlock()
	g.wait.Wait()
}
