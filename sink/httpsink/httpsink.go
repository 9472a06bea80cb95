// Package httpsink sends a batch as one HTTP request.
//
// The body is {"pipeline": "...", "group_id": "...", "events": [ENVELOPE, ...]} or,
// as NDJSON, one envelope a line; see [sink.AppendEnvelope]. Idempotency-Key is
// the group_id, so a server can tell a batch that is sent again.
//
// The status alone decides. 2xx: delivered. 3xx (redirects are not followed), 401,
// 403, 404, 405, 407, 408, 421, 425, 429 and 5xx, and no answer at all: an
// outage, for as long as Retry-After says if it is given. Any other 4xx: the
// batch as a whole is refused for good.
package httpsink

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Sink sends batches over HTTP/1.1 or HTTP/2. It is safe for concurrent use.
type Sink struct {
	target
	method    string
	format    string
	header    http.Header
	hostName  string // in place of the URL's; "" for none
	timeout   time.Duration
	redactor  redactor
	transport *http.Transport
	conns     *connections
}

// The transport's times. Requests as a whole are bounded by Config.Timeout.
const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
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
	conns := &connections{open: map[*connection]struct{}{}}
	s := &Sink{
		conns: conns, target: to, method: c.Method, format: c.Format, timeout: c.Timeout,
		redactor: newRedactor(to, c.Headers),
		transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         conns.dial,
			TLSClientConfig:     tlsConfig,
			TLSHandshakeTimeout: dialTimeout,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 100, // a pipeline has no more workers than that
			IdleConnTimeout:     idleTimeout,
		},
	}
	s.setHeader(c)
	return s, nil
}

func (s *Sink) setHeader(c Config) {
	contentType := "application/json"
	if c.Format == NDJSON {
		contentType = "application/x-ndjson"
	}
	s.header = http.Header{"Content-Type": {contentType}, "User-Agent": {"relay"}}
	if s.user != nil {
		password, _ := s.user.Password()
		r := http.Request{Header: s.header}
		r.SetBasicAuth(s.user.Username(), password)
	}
	for name, value := range c.Headers {
		if strings.EqualFold(name, "Host") {
			s.hostName = value
			continue
		}
		s.header.Set(name, value)
	}
}

// Send sends the batch as one request before ctx's deadline. It returns a
// *sink.DivideError, before anything is sent, when the events have more than one
// URL; a *sink.BatchError for events that have none, or whose headers are not
// JSON; otherwise what the answer's status means for the batch as a whole.
func (s *Sink) Send(ctx context.Context, b *outbox.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	groups, refused := s.template.GroupByAddress(b)
	if len(groups) > 1 {
		return divide(groups, refused)
	}
	for _, g := range groups {
		misled := checkPath(g.Address)
		for _, i := range g.Indexes {
			err := misled
			if err == nil {
				err = sink.CheckHeaders(&b.Events[i])
			}
			if err != nil {
				refused = append(refused, sink.EventError{Index: i, Err: err})
			}
		}
	}
	if len(refused) < len(b.Events) {
		if err := s.post(ctx, groups[0].Address, b, refused); err != nil {
			err = fmt.Errorf("%s %s://%s: %w", s.method, s.scheme, s.host, err)
			if errors.Is(err, errAddress) && !s.template.Fixed() {
				return awayAt(b, err)
			}
			return err
		}
	}
	if len(refused) > 0 {
		return &sink.BatchError{Events: refused}
	}
	return nil
}

// divide asks for parts of one URL each.
func divide(groups []sink.Group, refused []sink.EventError) error {
	if len(refused) > 0 {
		var none sink.Group
		for _, e := range refused {
			none.Indexes = append(none.Indexes, e.Index)
		}
		groups = append(groups, none)
	}
	return &sink.DivideError{Groups: groups}
}

// checkPath refuses an address that a topic or key of ".." would lead elsewhere.
func checkPath(address string) error {
	path, _, _ := strings.Cut(address, "?")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return sink.Permanent(fmt.Errorf("its topic or key makes %q a part of the URL's path", segment))
		}
	}
	return nil
}

func names(refused []sink.EventError, index int) bool {
	return slices.ContainsFunc(refused, func(e sink.EventError) bool { return e.Index == index })
}

// post sends all events but the refused ones.
func (s *Sink) post(ctx context.Context, address string, b *outbox.Batch, refused []sink.EventError) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, s.method, address, bytes.NewReader(s.body(b, refused)))
	if err != nil {
		return s.redactor.failed(err)
	}
	req.Header, req.Host = s.header.Clone(), s.hostName
	if _, overruled := req.Header[headerIdempotency]; !overruled {
		// It also lets net/http send the request again when the server has just
		// closed the connection it went out on.
		req.Header.Set(headerIdempotency, b.GroupID.String())
	}
	// The transport, and not a Client, which would follow redirects.
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		return s.redactor.failed(err)
	}
	return s.redactor.read(resp).verdict()
}

const headerIdempotency = "Idempotency-Key"

// body is a new slice each time: net/http may still read it after it has returned
// the answer.
func (s *Sink) body(b *outbox.Batch, refused []sink.EventError) []byte {
	size := 128
	for i := range b.Events {
		e := &b.Events[i]
		size += 128 + len(e.Topic) + len(e.Payload) + len(e.Headers)
		if e.Key != nil {
			size += len(*e.Key)
		}
	}
	body := make([]byte, 0, size)
	if s.format == NDJSON {
		for i := range b.Events {
			if !names(refused, i) {
				body = sink.AppendLine(body, &b.Events[i], b.PayloadIsJSON)
			}
		}
		return body
	}
	body = append(body, `{"pipeline":`...)
	body = sink.AppendJSONString(body, b.Pipeline)
	body = append(body, `,"group_id":"`...)
	body = append(body, b.GroupID.String()...)
	body = append(body, `","events":[`...)
	comma := false
	for i := range b.Events {
		if names(refused, i) {
			continue
		}
		if comma {
			body = append(body, ',')
		}
		comma = true
		body = sink.AppendEnvelope(body, &b.Events[i], b.PayloadIsJSON)
	}
	return append(body, "]}"...)
}

// Check connects to the server, or to the proxy in front of it, and shakes hands.
// It sends no request, for any could mean something. The error wraps
// sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.shakeHands(ctx); err != nil {
		return fmt.Errorf("connecting to %s://%s: %w", s.scheme, s.host, s.redactor.failed(err))
	}
	return nil
}

func (s *Sink) shakeHands(ctx context.Context) error {
	proxy, err := s.transport.Proxy(&http.Request{URL: &url.URL{Scheme: s.scheme, Host: s.host}})
	if err != nil {
		return err
	}
	host := s.host
	if proxy != nil {
		host = withPort(proxy)
	}
	conn, err := s.transport.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	if proxy == nil && s.scheme == "https" {
		config := s.transport.TLSClientConfig.Clone()
		if config.ServerName == "" {
			if config.ServerName, _, err = net.SplitHostPort(host); err != nil {
				return errors.Join(err, conn.Close())
			}
		}
		shaken := tls.Client(conn, config)
		if err := shaken.HandshakeContext(ctx); err != nil {
			return errors.Join(err, conn.Close())
		}
		conn = shaken
	}
	return conn.Close()
}

// Close closes the connections.
func (s *Sink) Close() error {
	s.transport.CloseIdleConnections()
	return s.conns.closeAll()
}

// awayAt tells an outage of the batch's URL, while others may work: it is told of
// the events, so that it stops nobody else's.
func awayAt(b *outbox.Batch, err error) error {
	events := make([]sink.EventError, len(b.Events))
	for i := range events {
		events[i] = sink.EventError{Index: i, Err: err}
	}
	return sink.Unavailable(&sink.BatchError{Events: events})
}
