package httpsink

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// countedConn counts the writes to a connection, and their bytes.
type countedConn struct {
	net.Conn
	mu     sync.Mutex
	writes int
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// TestConnection_WritesBodyAtOnce expects two writes, the first with the head. A body that is not in memory
// must be written too.
func TestConnection_WritesBodyAtOnce(t *testing.T) {
	t.Parallel()
	got := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- body
	}))
	defer server.Close()
	sent := bytes.Repeat([]byte("0123456789"), 50_000)
	for name, c := range map[string]struct {
		body io.Reader
		most int
	}{
		"in memory": {bytes.NewReader(sent), 3},
		"elsewhere": {io.MultiReader(bytes.NewReader(sent)), 1000},
	} {
		t.Run(name, func(t *testing.T) {
			conns := &connections{}
			var to *countedConn
			transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := conns.dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				own := conn.(*connection)
				to = &countedConn{Conn: own.Conn}
				own.Conn = to
				return own, nil
			}}
			defer transport.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, c.body)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = int64(len(sent))
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(<-got, sent) {
				t.Error("another body arrived")
			}
			if to.writes > c.most {
				t.Errorf("%d writes; want at most %d", to.writes, c.most)
			}
		})
	}
}
