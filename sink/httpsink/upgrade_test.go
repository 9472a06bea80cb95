package httpsink_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// upgrading is the URL of a server that answers each request with 101 and keeps the connection open.
func upgrading(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					return
				}
				_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"))
				<-ctx.Done()
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestSend_SwitchingProtocols has the status 101, whose body is the connection: no context ends a read of it.
func TestSend_SwitchingProtocols(t *testing.T) {
	t.Parallel()
	url := upgrading(t)
	for name, c := range map[string]httpsink.Config{
		"Status":  {URL: url},
		"Results": {URL: url, Results: ".body.errors"},
		"Proxy":   {URL: "http://127.0.0.1:1/", Proxy: url},
		"Tunnel":  {URL: "https://127.0.0.1:1/", Proxy: url},
		"Address": {URL: url + "/{topic}"},
		"Token":   {URL: url, OAuth2: httpsink.OAuth2{TokenURL: url, ClientID: "relay", ClientSecret: "secret"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Timeout = 5 * time.Second
			s, err := httpsink.New(c)
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, s.Close()) })
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			go func() { ended <- s.Send(ctx, batch("t")) }()
			select {
			case err := <-ended:
				if !errors.Is(err, sink.ErrUnavailable) || !strings.Contains(err.Error(), "101 Switching Protocols") {
					t.Errorf("got %v", err)
				}
				expectMaybePoison(t, err, false)
				if _, one := errors.AsType[*sink.BatchError](err); one != (name == "Address") {
					t.Errorf("got an outage of one address: %v", one)
				}
			case <-ctx.Done():
				t.Error("Send has not returned")
			}
		})
	}
}
