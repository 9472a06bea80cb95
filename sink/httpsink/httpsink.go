// Package httpsink sends a batch as one HTTP request.
//
// The body is {"pipeline": "...", "group_id": "...", "events": [ENVELOPE, ...]}, or what
// Config.Format says; see [sink.AppendEnvelope]. A jq program, Config.Request, may make
// another one of it. Idempotency-Key is the group_id, so a server can tell a batch that
// is sent again.
//
// The status alone decides, unless another program, Config.Results, finds in an answer
// that is no outage which events failed. 2xx: delivered. 3xx (redirects are not followed), 401,
// 403, 404, 405, 407, 408, 421, 425, 429 and 5xx, and no answer at all: an
// outage, for as long as Retry-After says if it is given. Any other 4xx: the
// batch as a whole is refused for good. Config.Refused and Config.Unavailable
// overrule that.
//
// An outage may be the batch's own doing (sink.ErrMaybePoison) when it is a 5xx, or when
// the time runs out or the connection is lost after the request was written.
package httpsink

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// Sink sends batches over HTTP/1.1 or HTTP/2. It is safe for concurrent use.
type Sink struct {
	target
	method    string
	format    string
	single    bool
	gzip      bool
	request   *program // nil: none
	results   *program // nil: none
	header    http.Header
	made      []madeHeader
	hostName  string // in place of the URL's; "" for none
	timeout   time.Duration
	maxBytes  int // of a body; 0: no limit
	statuses  statuses
	redactor  redactor
	transport *http.Transport
	conns     *connections
	limiter   *limiter
	tokens    *tokens // nil: none are fetched
	signer    signer  // nil: requests are not signed
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addresser = (*Sink)(nil)
)

// The transport's times. Requests as a whole are bounded by Config.Timeout.
const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
	keepAlive   = 15 * time.Second // of TCP
)

// New makes a sink; it does not connect yet. The error is about the configuration
// and names no secret.
func New(c Config) (*Sink, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("HTTP sink: %w", err)
	}
	to, err := parseURL(c.URL)
	if err != nil {
		return nil, fmt.Errorf("HTTP sink: %w", err)
	}
	tlsConfig, err := c.TLS.client()
	if err != nil {
		return nil, fmt.Errorf("HTTP sink: %w", err)
	}
	proxy, err := proxyOf(c.Proxy)
	if err != nil {
		return nil, fmt.Errorf("HTTP sink: %w", err)
	}
	signer, err := newSigner(c.Sign)
	if err != nil {
		return nil, fmt.Errorf("HTTP sink: %w", err)
	}
	conns := &connections{open: map[*connection]struct{}{}}
	s := &Sink{
		conns: conns, target: to, method: c.Method, format: c.Format, timeout: c.Timeout,
		maxBytes: c.MaxBytes, single: c.Single, gzip: c.Gzip, statuses: statuses{refused: c.Refused, unavailable: c.Unavailable},
		limiter: newLimiter(c), signer: signer,
		transport: &http.Transport{
			Proxy:               proxy,
			DialContext:         conns.dial,
			TLSClientConfig:     tlsConfig,
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 100, // a pipeline has no more workers than that
			IdleConnTimeout:     idleTimeout,
		},
	}
	if s.request, err = compile(c.Request, CheckRequest); err != nil {
		return nil, fmt.Errorf("HTTP sink: request: %w", err)
	}
	if s.results, err = compile(c.Results, CheckResults); err != nil {
		return nil, fmt.Errorf("HTTP sink: results: %w", err)
	}
	s.redactor = newRedactor(to, c.Headers, append(c.accessSecrets(), s.proxySecrets()...)...)
	s.tokens = newTokens(c, s.transport, s.redactor)
	s.setHeader(c)
	return s, nil
}

func (s *Sink) setHeader(c Config) {
	s.header = http.Header{"Content-Type": {c.contentType()}, "User-Agent": {"relay"}}
	if s.user != nil {
		password, _ := s.user.Password()
		r := http.Request{Header: s.header}
		r.SetBasicAuth(s.user.Username(), password)
	}
	c.setAuthorization(s.header)
	for name, value := range c.Headers {
		if strings.EqualFold(name, "Host") {
			s.hostName = value
			continue
		}
		if t := headerTemplate(value); !t.Fixed() {
			s.made = append(s.made, madeHeader{http.CanonicalHeaderKey(name), t})
			continue
		}
		s.header.Set(name, value)
	}
	slices.SortFunc(s.made, func(a, b madeHeader) int { return strings.Compare(a.name, b.name) })
}

// Check connects to the server, through the proxy in front of it, and shakes hands.
// It sends the server no request, for any could mean something. The error wraps
// sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.shakeHands(ctx); err != nil {
		return fmt.Errorf("connecting to %s://%s: %w", s.scheme, s.host, s.redactor.failed(err))
	}
	return nil
}

// Close closes the connections.
func (s *Sink) Close() error {
	s.transport.CloseIdleConnections()
	s.tokens.close()
	return s.conns.closeAll()
}
