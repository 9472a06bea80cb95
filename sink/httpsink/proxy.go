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

var errProxy = errors.New("proxy: http://host:port or https://host:port was expected")

// proxyOf returns what tells a request's proxy: the one that was given, else the
// environment.
func proxyOf(text string) (func(*http.Request) (*url.URL, error), error) {
	if text == "" {
		return http.ProxyFromEnvironment, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" { // url.Parse quotes the URL
		return nil, errProxy
	}
	return http.ProxyURL(u), nil
}

// proxySecrets are those of the proxy that requests to the sink go through.
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

// shakeHands connects to the server, through the proxy where there is one.
func (s *Sink) shakeHands(ctx context.Context) error {
	proxy, err := s.proxy()
	if err != nil {
		return err
	}
	first := s.host
	if proxy != nil {
		first = withPort(proxy)
	}
	conn, err := s.transport.DialContext(ctx, "tcp", first)
	if err != nil {
		return err
	}
	whole := conn
	if proxy != nil && proxy.Scheme == "https" {
		if conn, err = s.secure(ctx, conn, first); err != nil {
			return errors.Join(err, whole.Close())
		}
	}
	if proxy != nil && s.scheme == "https" {
		if err := tunnel(ctx, conn, proxy, s.host); err != nil {
			return errors.Join(err, whole.Close())
		}
	}
	if s.scheme == "https" {
		if conn, err = s.secure(ctx, conn, s.host); err != nil {
			return errors.Join(err, whole.Close())
		}
	}
	return conn.Close()
}

// secure shakes hands with TLS.
func (s *Sink) secure(ctx context.Context, conn net.Conn, host string) (net.Conn, error) {
	config := s.transport.TLSClientConfig.Clone()
	if config.ServerName == "" {
		var err error
		if config.ServerName, _, err = net.SplitHostPort(host); err != nil {
			return nil, err
		}
	}
	shaken := tls.Client(conn, config)
	return shaken, shaken.HandshakeContext(ctx)
}

// tunnel asks the proxy for a connection to the host.
func tunnel(ctx context.Context, conn net.Conn, proxy *url.URL, host string) error {
	req := (&http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: host}, Host: host, Header: http.Header{}}).WithContext(ctx)
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // it may never answer
	// Nothing follows the answer before this side speaks, so nothing is left in the reader.
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
		return fmt.Errorf("the proxy %s answers %s", withPort(proxy), resp.Status)
	}
	return nil
}
