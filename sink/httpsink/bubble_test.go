package httpsink

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// wire is a network in memory, so that a server and its clients can run in one synctest bubble.
type wire struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.over:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.over) })
	return nil
}

func (w *wire) Addr() net.Addr { return &net.UnixAddr{Name: "wire"} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case w.conns <- server:
		return client, nil
	case <-w.over:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// newBubbleSink returns a sink whose server runs in the same bubble. done stops both.
func newBubbleSink(t *testing.T, c Config, h http.HandlerFunc) (s *Sink, done func()) {
	t.Helper()
	w := &wire{conns: make(chan net.Conn), over: make(chan struct{})}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Hour}
	ended := make(chan error, 1)
	if c.URL == "" {
		c.URL = "http://api.example/in"
	}
	serve := func() error { return server.Serve(w) }
	if strings.HasPrefix(c.URL, "https:") { // and HTTP/2
		cert, key := testkit.NewAuthority(t).Issue(t, "api.example")
		c.TLS.InsecureSkipVerify = true
		serve = func() error { return server.ServeTLS(w, cert, key) }
	}
	go func() { ended <- serve() }()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.transport.DialContext = w.dial
	s.transport.Proxy = nil
	if s.tokens != nil {
		s.tokens.transport.DialContext, s.tokens.transport.Proxy = w.dial, nil
	}
	return s, func() {
		if err := errors.Join(s.Close(), server.Shutdown(context.Background())); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}
}

func oneEvent() *buffer.Batch {
	return &buffer.Batch{
		GroupID: buffer.NewGroupID(), Pipeline: "orders", PayloadIsJSON: true, FirstSend: true,
		Events: []outbox.Event{{ID: 1, Topic: "a", Payload: []byte(`{}`)}},
	}
}

// arrivals are the times at which requests arrived.
type arrivals struct {
	mu  sync.Mutex
	all []time.Time
}

func (a *arrivals) note() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, time.Now())
}

func (a *arrivals) list() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]time.Time(nil), a.all...)
}

// maxInWindow is the most arrivals in any window of that length, wherever it begins.
func maxInWindow(all []time.Time, window time.Duration) (n int) {
	first := 0
	for i := range all {
		for all[i].Sub(all[first]) >= window {
			first++
		}
		n = max(n, i-first+1)
	}
	return n
}
