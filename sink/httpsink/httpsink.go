package httpsink

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/internal/jq"
	"github.com/outboxrelay/relay/sink"
)

// Sink sends batches over HTTP/1.1 or HTTP/2. It is safe for concurrent use.
type Sink struct {
	target
	cfg     Config
	request *jq.Program // may be nil
	results *jq.Program // may be nil
	// resultsReadEvents reports whether results may read the events.
	resultsReadEvents bool
	// resultsReadStatus reports whether results read the status: then they know that they speak of a 4xx.
	resultsReadStatus bool
	hasWorked         atomic.Bool // request has made a body
	header            http.Header // the same for all requests
	templated         []templatedHeader
	hostName          string // overrides the URL's host in the request; may be ""
	redactor          *redactor
	odd               odd
	probes            probes
	transport         *http.Transport
	connections       *connections
	limiter           *limiter
	tokens            *tokens // nil without OAuth2
	signers           signers // nil if requests are not signed
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addresser = (*Sink)(nil)
	_ sink.Preparer  = (*Sink)(nil)
	_ sink.Noticer   = (*Sink)(nil)
)

// The transport's times. Config.Timeout bounds a request as a whole.
const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
)

// A connection whose peer is silent is probed, and closed if the peer does not answer: a firewall may have dropped the flow
// without a word. TCP probes idle connections only. HTTP/2 needs pings of its own, because it sends all requests over one
// connection, which is never idle then.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

const (
	pingAfter   = 15 * time.Second // without a frame from the server
	pingTimeout = 10 * time.Second
)

// New returns a sink that is not connected yet. The error is about the configuration and contains no
// secret.
func New(c Config) (*Sink, error) {
	s, err := newSink(c.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("HTTP sink: %w", err)
	}
	return s, nil
}

func newSink(c Config) (*Sink, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	target, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	proxy, err := proxyFunc(c.Proxy)
	if err != nil {
		return nil, err
	}
	signers, err := newSigners(c.Sign)
	if err != nil {
		return nil, err
	}
	conns := &connections{}
	s := &Sink{
		cfg: c, connections: conns, target: target,
		limiter: newLimiter(c), signers: signers,
		transport: &http.Transport{
			Proxy:               proxy,
			DialContext:         conns.dial,
			TLSClientConfig:     tlsConfig,
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 100, // a pipeline has no more workers
			IdleConnTimeout:     idleTimeout,
			HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},

			OnProxyConnectResponse: checkTunnel,
		},
	}
	if s.request, err = compile(c.Request, c.ProgramSecrets); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if s.results, err = compile(c.Results, c.ProgramSecrets); err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	s.resultsReadStatus = s.results != nil && jq.ReadsStatus(s.results.Query)
	s.resultsReadEvents = s.results != nil && !ignoresEvents(s.results.Query)
	s.redactor = newRedactor(target, c.Headers, slices.Concat(c.accessSecrets(), s.proxySecrets(), slices.Collect(maps.Values(c.ProgramSecrets)), c.Secrets)...)
	s.tokens = newTokens(c, s.transport, s.redactor)
	s.setHeader(c)
	return s, nil
}

func (s *Sink) setHeader(c Config) {
	s.header = http.Header{"User-Agent": {"relay"}}
	if c.Format != CloudEventsBinary { // each event has its own
		s.header.Set(headerContentType, c.contentType())
	}
	if s.user != nil {
		c.Basic.User = s.user.Username()
		c.Basic.Password, _ = s.user.Password()
	}
	c.setAuthorization(s.header)
	for name, value := range c.Headers {
		if strings.EqualFold(name, "Host") {
			s.hostName = value
			continue
		}
		if t := headerTemplate(value); !t.Fixed() {
			s.templated = append(s.templated, templatedHeader{http.CanonicalHeaderKey(name), t})
			continue
		}
		s.header.Set(name, value)
	}
	slices.SortFunc(s.templated, func(a, b templatedHeader) int { return strings.Compare(a.name, b.name) })
}

// Check connects to the server, through the proxy if there is one, and completes the TLS handshake.
// It sends the server no request, because any request might have an effect. The error wraps
// sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := s.connect(ctx); err != nil {
		return fmt.Errorf("connecting to %s://%s: %w", s.scheme, s.host, s.redactor.outage(err))
	}
	return nil
}

// Close closes the connections, and ends the processes of the programs if no other sink uses them.
func (s *Sink) Close() error {
	s.probes.close()
	s.request.Close()
	s.results.Close()
	s.transport.CloseIdleConnections()
	s.tokens.close()
	s.connections.closeAll()
	return nil
}
