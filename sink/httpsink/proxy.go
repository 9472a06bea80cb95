package httpsink

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

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
func (s *Sink) handshake(ctx context.Context) error {
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
	conn := tcp
	if proxy != nil && proxy.Scheme == "https" {
		if conn, err = s.handshakeTLS(ctx, conn, dialHost); err != nil {
			return errors.Join(err, tcp.Close())
		}
	}
	if proxy != nil && s.scheme == "https" {
		if err := connectThrough(ctx, conn, proxy, s.host); err != nil {
			return errors.Join(err, tcp.Close())
		}
	}
	if s.scheme == "https" {
		if conn, err = s.handshakeTLS(ctx, conn, s.host); err != nil {
			return errors.Join(err, tcp.Close())
		}
	}
	return conn.Close()
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
