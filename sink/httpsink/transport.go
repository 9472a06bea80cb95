package httpsink

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
)

// connections are the open connections of the transport. Close needs them, because
// Transport.CloseIdleConnections leaves an HTTP/2 connection open shortly after its last request.
type connections struct {
	mu   sync.Mutex
	open map[*connection]struct{}
}

type connection struct {
	net.Conn
	of *connections
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := &connection{raw, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = struct{}{}
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

// Close can be called more than once.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *connections) closeAll() error {
	c.mu.Lock()
	open := c.open
	c.open = map[*connection]struct{}{}
	c.mu.Unlock()
	var errs []error
	for conn := range open {
		if err := conn.Conn.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// TLS says which servers to trust and which certificate to present.
type TLS struct {
	// CA is a PEM file with the authorities to trust; "" means the system's.
	CA string
	// Cert and Key are PEM files with the client's certificate; "" means none.
	Cert, Key string
	// ServerName must be in the server's certificate; "" means the URL's host.
	ServerName string
	// InsecureSkipVerify trusts every server.
	InsecureSkipVerify bool
}

func (t TLS) client() (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca cannot be read: %w", withoutPath(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("tls.ca contains no certificate; expected a PEM file with certificates")
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("tls.cert or tls.key is missing; expected both or none")
	}
	if t.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert and tls.key cannot be read: %w", withoutPath(err))
		}
		c.Certificates = []tls.Certificate{certificate}
	}
	return c, nil
}

// withoutPath removes a file's name from an error: it may be the key itself, given instead of a file.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%w; expected the name of a file", pathErr.Err)
	}
	return err
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
	proxy, err := s.proxy()
	if err != nil || proxy == nil || proxy.User == nil {
		return nil
	}
	return userSecrets(proxy.User)
}

func (s *Sink) proxy() (*url.URL, error) {
	return s.transport.Proxy(&http.Request{URL: &url.URL{Scheme: s.scheme, Host: s.host}})
}

// handshake connects to the server, through the proxy if there is one, and closes the connection.
func (s *Sink) handshake(ctx context.Context) (err error) {
	proxy, err := s.proxy()
	if err != nil {
		return err
	}
	dialHost := s.host
	if proxy != nil {
		dialHost = withPort(proxy)
	}
	tcp, err := s.transport.DialContext(ctx, "tcp", dialHost)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tcp.Close()) }()
	conn := tcp
	if proxy != nil && proxy.Scheme == "https" {
		if conn, err = s.handshakeTLS(ctx, conn, dialHost); err != nil {
			return err
		}
	}
	if proxy != nil && s.scheme == "https" {
		if err := connectThrough(ctx, conn, proxy, s.host); err != nil {
			return err
		}
	}
	if s.scheme == "https" {
		_, err = s.handshakeTLS(ctx, conn, s.host)
	}
	return err
}

func (s *Sink) handshakeTLS(ctx context.Context, conn net.Conn, host string) (net.Conn, error) {
	config := s.transport.TLSClientConfig.Clone()
	if config.ServerName == "" {
		var err error
		if config.ServerName, _, err = net.SplitHostPort(host); err != nil {
			return nil, err
		}
	}
	secured := tls.Client(conn, config)
	return secured, secured.HandshakeContext(ctx)
}

// connectThrough asks the proxy for a connection to the host.
func connectThrough(ctx context.Context, conn net.Conn, proxy *url.URL, host string) error {
	req := (&http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: host}, Host: host, Header: http.Header{}}).WithContext(ctx)
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // the proxy may never respond
	// The server sends nothing before the client does, so the reader buffers only the response.
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("the proxy %s: %w", withPort(proxy), err)
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy %s responded with %s", withPort(proxy), resp.Status)
	}
	return nil
}
