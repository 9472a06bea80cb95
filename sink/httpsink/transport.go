package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
)

// connections are the open connections of the transport. Close needs them, because
// Transport.CloseIdleConnections leaves an HTTP/2 connection open shortly after its last request.
type connections struct{ open sync.Map } // of *connection

type connection struct {
	net.Conn
	of *connections
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := &connection{raw, c}
	c.open.Store(conn, nil)
	return conn, nil
}

// ReadFrom implements io.ReaderFrom, which net/http uses for the part of the body that does not fit into its
// buffer with the head. The sink's bodies are in memory: they are written at once, while io.Copy would copy
// 32 KB at a time.
func (c *connection) ReadFrom(r io.Reader) (int64, error) {
	if part, ok := r.(*io.LimitedReader); ok {
		if body, ok := part.R.(io.WriterTo); ok {
			n, err := body.WriteTo(c.Conn)
			part.N -= n
			return n, err
		}
	}
	return io.Copy(c.Conn, r)
}

func (c *connection) Close() error {
	c.of.open.Delete(c)
	return c.Conn.Close()
}

func (c *connections) closeAll() {
	for conn := range c.open.Range {
		_ = conn.(*connection).Close()
	}
}

// upgradeHint says what to do about the status 101.
const upgradeHint = " (nobody asked for another protocol; expected the URL of an HTTP API)"

// noUpgrade closes the connection of a response with the status 101. The body of such a response is the connection
// itself, whose reads no context ends.
type noUpgrade struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t noUpgrade) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close() // the status says all
		resp.Body = http.NoBody
	}
	return resp, err
}

var errProxy = errors.New("proxy is not the URL of an HTTP proxy; expected http://host:port or https://host:port")

// proxyFunc is for http.Transport. Without a URL it uses the environment.
func proxyFunc(text string) (func(*http.Request) (*url.URL, error), error) {
	if text == "" {
		return http.ProxyFromEnvironment, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" { // url.Parse quotes the URL
		return nil, errProxy
	}
	return http.ProxyURL(u), nil
}

// proxySecrets are the credentials of the proxy that is used for the sink's host.
func (s *Sink) proxySecrets() []string {
	proxy, err := s.transport.Proxy(&http.Request{URL: &url.URL{Scheme: s.scheme, Host: s.host}})
	if err != nil || proxy == nil || proxy.User == nil {
		return nil
	}
	return userSecrets(proxy.User)
}

// connect makes a connection to the server as a request does, through the proxy if there is one, and closes it
// before the request is written.
func (s *Sink) connect(ctx context.Context) error {
	transport := s.transport.Clone() // has no connection yet
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		connected = true
		_ = got.Conn.Close() // nothing can be written any more
		cancel()             // net/http does not try again
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodHead, s.scheme+"://"+s.host, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := noUpgrade{transport}.RoundTrip(req)
	if err == nil {
		err = resp.Body.Close()
	}
	if connected {
		return nil
	}
	return err
}

// checkTunnel names the proxy that refuses a connection to the server.
func checkTunnel(_ context.Context, proxy *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy %s responded with %s", withPort(proxy), resp.Status)
	}
	return nil
}
