package httpsink

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// firewall is on the way to a server.
type firewall struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	mu   sync.Mutex
	drop chan struct{} // closed when the flows dialed until then are dropped
}

// flow passes everything on until the firewall drops it. Then nothing arrives any more, and neither end is told.
type flow struct {
	net.Conn
	dropped <-chan struct{}
}

func (f *firewall) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := f.dial(ctx, network, address)
	f.mu.Lock()
	defer f.mu.Unlock()
	return &flow{conn, f.drop}, err
}

// dropFlows drops all flows that exist.
func (f *firewall) dropFlows() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.drop)
	f.drop = make(chan struct{})
}

func (f *flow) isDropped() bool {
	select {
	case <-f.dropped:
		return true
	default:
		return false
	}
}

func (f *flow) Write(p []byte) (int, error) {
	if f.isDropped() {
		return len(p), nil
	}
	return f.Conn.Write(p)
}

func (f *flow) Read(p []byte) (int, error) {
	for {
		n, err := f.Conn.Read(p)
		if err != nil || !f.isDropped() {
			return n, err
		}
	}
}

// TestSend_DroppedFlows has open connections whose flows a firewall drops without a word. Sends must work again
// without a restart.
func TestSend_DroppedFlows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config   Config
		protocol string
		within   time.Duration // sends work again
	}{
		"HTTP/1.1":                 {Config{Timeout: 5 * time.Second}, "HTTP/1.1", 5 * time.Second},
		"HTTP/2":                   {Config{URL: "https://api.example/in", Timeout: 5 * time.Second}, "HTTP/2.0", pingAfter + pingTimeout},
		"HTTP/2, a long time-out":  {Config{URL: "https://api.example/in", Timeout: time.Hour}, "HTTP/2.0", pingAfter + pingTimeout},
		"HTTP/2, a token's server": {Config{URL: "https://api.example/in", Timeout: 5 * time.Second, OAuth2: tokenOAuth2}, "HTTP/2.0", pingAfter + pingTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, done := newBubbleSink(t, c.config, func(w http.ResponseWriter, r *http.Request) {
					if r.Proto != c.protocol {
						t.Errorf("got a request over %s; want %s", r.Proto, c.protocol)
					}
					if r.URL.Path == "/token" {
						w.Header().Set("Content-Type", "application/json")
						if _, err := w.Write([]byte(`{"access_token":"t0123456789","token_type":"Bearer","expires_in":1}`)); err != nil {
							t.Error(err)
						}
						return
					}
					<-time.After(time.Second) // over HTTP/1.1 each request needs a connection of its own
				})
				defer done()
				wall := &firewall{dial: s.transport.DialContext, drop: make(chan struct{})}
				s.transport.DialContext = wall.dialContext
				if s.tokens != nil {
					s.tokens.transport.DialContext = wall.dialContext
				}
				var group sync.WaitGroup
				for range 4 {
					group.Go(func() {
						if err := s.Send(t.Context(), oneEvent()); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				wall.dropFlows()
				for began := time.Now(); s.Send(t.Context(), oneEvent()) != nil; {
					if after := time.Since(began); after > c.within {
						t.Fatalf("after %v no send works yet; want one within %v", after, c.within)
					}
				}
			})
		})
	}
}

var tokenOAuth2 = OAuth2{TokenURL: "https://api.example/token", ClientID: "relay", ClientSecret: "client-secret"}

// TestSend_SlowResponse has a server that is silent for much longer than a ping takes, but is there.
func TestSend_SlowResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, done := newBubbleSink(t, Config{URL: "https://api.example/in", Timeout: time.Hour}, func(http.ResponseWriter, *http.Request) {
			<-time.After(50 * time.Minute)
		})
		defer done()
		if err := s.Send(t.Context(), oneEvent()); err != nil {
			t.Error(err)
		}
	})
}
