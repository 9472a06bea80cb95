package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/examples/ownsink/inbox"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestSink(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{
		Open: destination,
		OpenBroken: func(t testing.TB) sink.Sink {
			port, err := testserver.FreePort()
			testkit.NoError(t, err)
			return open(t, fmt.Sprintf("inbox://app@127.0.0.1:%d/db", port))
		},
		Keeps: sinktest.Keeps{
			Topic: true, Key: true, Headers: true, GroupID: true, CreatedAt: true,
			HeadersText: true, AnyText: true, Bytes: true, LineBreaks: true,
		},
		OnceOnly: true,
	})
}

func open(t testing.TB, url string) sink.Sink {
	t.Helper()
	d := sink.NewDriver("inbox")
	for _, s := range d.Settings() { // as the configuration does with defaults
		switch into := s.Into.(type) {
		case *string:
			*into = s.Default
		case *time.Duration:
			var err error
			*into, err = time.ParseDuration(s.Default)
			testkit.NoError(t, err)
		}
	}
	opened, err := d.Open(sink.Options{URL: url, Pipeline: "sinktest", Workers: 4, ResendWithin: time.Minute})
	testkit.NoError(t, err)
	return opened
}

// TestSend_Errors: data that the table refuses is rejected for good, and a table that is missing is an outage.
func TestSend_Errors(t *testing.T) {
	t.Parallel()
	d := destination(t)
	s := d.Connect(t)
	defer func() { testkit.NoError(t, s.Close()) }()
	b := &buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "p", Events: []outbox.Event{{ID: 1, Topic: "no \x00 text", Payload: []byte("{}")}}}
	if err := s.Send(t.Context(), b); !errors.Is(err, sink.ErrPermanent) || errors.Is(err, sink.ErrUnavailable) {
		t.Errorf("an event that PostgreSQL cannot store: got %v", err)
	}
	none := open(t, strings.Replace(testserver.Postgres(t), "postgres", "inbox", 1))
	defer func() { testkit.NoError(t, none.Close()) }()
	for _, err := range []error{none.Check(t.Context()), none.Send(t.Context(), b.Part(nil))} {
		if !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrPermanent) {
			t.Errorf("a database without the table: got %v", err)
		}
	}
}

// destination is a database of its own, behind a proxy that can be stopped.
func destination(t testing.TB) sinktest.Destination {
	direct := testserver.Postgres(t)
	db, err := pgx.Connect(t.Context(), direct)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	_, err = db.Exec(t.Context(), inbox.Schema)
	testkit.NoError(t, err)

	u, err := url.Parse(direct)
	testkit.NoError(t, err)
	p := &proxy{upstream: u.Host, address: "127.0.0.1:0"}
	p.start(t)
	t.Cleanup(func() { p.stop(t) })
	u.Scheme, u.Host = "inbox", p.address
	return sinktest.Destination{
		Connect:  func(t testing.TB) sink.Sink { return open(t, u.String()) },
		Arrivals: func(t testing.TB) []sinktest.Arrival { return arrivals(t, db) },
		Stop:     p.stop,
		Start:    p.start,
	}
}

func arrivals(t testing.TB, db *pgx.Conn) []sinktest.Arrival {
	t.Helper()
	rows, err := db.Query(context.WithoutCancel(t.Context()),
		"SELECT event_id, topic, key, payload, headers, created_at, group_id::text, coalesce(dead_letter, '') FROM inbox ORDER BY seq")
	testkit.NoError(t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a sinktest.Arrival, err error) {
		var headers *string
		err = row.Scan(&a.ID, &a.Topic, &a.Key, &a.Payload, &headers, &a.CreatedAt, &a.GroupID, &a.DeadLetter)
		if headers != nil {
			a.Headers = outbox.Headers(*headers)
		}
		return a, err
	})
	testkit.NoError(t, err)
	return all
}

// proxy forwards TCP connections. Stop cuts them off.
type proxy struct {
	upstream, address string

	listener net.Listener
	mu       sync.Mutex
	stopped  bool
	conns    []net.Conn
	forwards sync.WaitGroup
}

func (p *proxy) start(t testing.TB) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "tcp", p.address)
	testkit.NoError(t, err)
	p.listener, p.address, p.stopped = l, l.Addr().String(), false
	p.forwards.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.upstream)
			if err != nil {
				_ = client.Close() // the client sees it
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			if p.stopped {
				_, _ = client.Close(), server.Close()
			}
			p.mu.Unlock()
			for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
				p.forwards.Go(func() {
					_, _ = io.Copy(ends[0], ends[1]) // ends with either of them
					_, _ = ends[0].Close(), ends[1].Close()
				})
			}
		}
	})
}

func (p *proxy) stop(testing.TB) {
	_ = p.listener.Close() // maybe for the second time
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns, p.stopped = nil, true
	p.mu.Unlock()
	p.forwards.Wait()
}
