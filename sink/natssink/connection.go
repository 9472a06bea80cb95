package natssink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink/internal/fastbatch"
)

// connection is a connection to NATS and the events that wait for answers on it. It is used until it breaks;
// the next Send makes another one.
type connection struct {
	nc     *nats.Conn
	inbox  string        // answers come to <inbox><inflight.no>.<index>; "" without JetStream
	closed chan struct{} // is closed after nats.go's last callback
	fast   *fastbatch.Client

	mu       sync.Mutex
	inflight map[uint64]*inflight
	last     uint64 // inflight.no
	streams  streamCache
	// denied is the last permission violation that handleError has handled; deniedChanged is closed when it
	// changes.
	denied        error
	deniedChanged chan struct{}
}

// Conn returns the sink's connection and connects if necessary.
func (s *Sink) Conn(ctx context.Context) (*nats.Conn, error) {
	c, err := s.connection(ctx)
	if err != nil {
		return nil, err
	}
	return c.nc, nil
}

// connection returns the sink's connection, and makes one if there is none. Callers that wait while another
// one connects share its error, so that a server that does not answer costs one time-out, not one each.
func (s *Sink) connection(ctx context.Context) (*connection, error) {
	if c := s.current.Load(); c != nil && c.nc.IsConnected() {
		return c, nil
	}
	began := time.Now()
	if err := s.connecting.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.connecting.Release(1)
	c := s.current.Load()
	if c != nil && c.nc.IsConnected() {
		return c, nil
	}
	if s.failedAt.After(began) {
		return nil, s.failure
	}
	if c != nil {
		s.discovered = c.nc.DiscoveredServers()
		c.close()
	}
	c, err := dial(ctx, s.options, s.discovered, !s.core)
	if err != nil {
		s.failure, s.failedAt = fmt.Errorf("connecting to NATS: %w", explain(err)), time.Now()
		return nil, s.failure
	}
	s.current.Store(c)
	return c, nil
}

// isAccess reports whether the server does not accept the credentials, or their rights.
func isAccess(err error) bool {
	for _, access := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation} {
		if errors.Is(err, access) {
			return true
		}
	}
	return false
}

// explain adds to the error of a connection what may be wrong. With TLS 1.3 a server rejects a client's certificate after the handshake; the
// client may then see a closed connection only.
func explain(err error) error {
	if isAccess(err) {
		return sink.Access(err)
	}
	remote, closed := errors.AsType[*net.OpError](err)
	if errors.Is(err, nats.ErrNoInfoReceived) || closed && remote.Op == "read" && remote.Timeout() {
		return fmt.Errorf("%w; is it NATS? The server accepts connections, and does not greet as NATS does", err)
	}
	if errors.Is(err, nats.ErrTLS) && (closed || errors.Is(err, io.EOF)) {
		return fmt.Errorf("%w; the server may require a client certificate: check tls.cert and tls.key", err)
	}
	return sink.ExplainTLS(err)
}

// dial connects to one of the servers in opts, or of more. acks asks for PubAcks. The error contains no
// password.
func dial(ctx context.Context, opts []nats.Option, more []string, acks bool) (*connection, error) {
	c := &connection{closed: make(chan struct{}), inflight: map[uint64]*inflight{}, deniedChanged: make(chan struct{})}
	if acks {
		c.inbox = nats.NewInbox() + "."
	}
	nc, err := nats.Connect("", append(slices.Clip(opts),
		func(o *nats.Options) error { o.Servers = append(slices.Clip(o.Servers), more...); return nil },
		nats.SetCustomDialer(dialer{ctx}),
		nats.ErrorHandler(c.handleError),
		nats.ClosedHandler(c.handleClosed))...)
	if err != nil {
		return nil, err
	}
	c.nc = nc
	if acks {
		c.fast = fastbatch.NewClient(nc, c.inbox)
		err = c.subscribe(ctx)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// dialer stops dialling when the context ends.
type dialer struct{ ctx context.Context } //nolint:containedctx // nats.CustomDialer takes none

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(d.ctx, network, address)
}

// subscribe subscribes to the answers, and checks that the user may.
func (c *connection) subscribe(ctx context.Context) error {
	sub, err := c.nc.Subscribe(c.inbox+">", c.handleAnswer)
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil { // no answer may be dropped
		return err
	}
	err = c.flush(ctx)
	if violation := c.nc.LastError(); errors.Is(violation, nats.ErrPermissionViolation) {
		return fmt.Errorf("cannot receive PubAcks; allow the user to subscribe to _INBOX.>: %w", violation)
	}
	return err
}

// flush returns when the server has handled everything that was published.
func (c *connection) flush(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute) // nats.go requires a deadline
		defer cancel()
	}
	return c.nc.FlushWithContext(ctx)
}

// close closes the connection and waits for its goroutines' last callback.
func (c *connection) close() {
	c.nc.Close()
	<-c.closed
}

func (c *connection) handleClosed(nc *nats.Conn) {
	reason := nc.LastError()
	if reason == nil {
		reason = nats.ErrConnectionClosed
	}
	if isAccess(reason) {
		reason = sink.Access(reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.inflight {
		f.resolveAll(sink.Unavailable(fmt.Errorf("connection lost: %w", reason)))
	}
	close(c.closed)
}

// handleError handles permission violations: the server gives no other answer to a publish that is not
// allowed. Every other error closes the connection.
func (c *connection) handleError(nc *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	subject := deniedSubject(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox != "" && subject == c.inbox+">" { // no answer will ever come
		nc.Close()
	}
	for _, f := range c.inflight {
		f.resolveSubject(subject, sink.Unavailable(sink.Access(err)))
	}
	c.denied = err
	close(c.deniedChanged)
	c.deniedChanged = make(chan struct{})
}

// deniedSubject is the subject that a permission violation names. The protocol has it in the error's text
// only.
func deniedSubject(err error) string {
	text := err.Error()
	literal, _ := strconv.QuotedPrefix(text[max(0, strings.IndexByte(text, '"')):])
	subject, _ := strconv.Unquote(literal) // "" if there is none
	return subject
}

// awaitViolations returns when handleError has handled every permission violation that the server sent before
// its last PONG. nats.go records a violation at once and calls handleError later, in order.
func (c *connection) awaitViolations(ctx context.Context) error {
	last := c.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) {
		return nil
	}
	for {
		c.mu.Lock()
		handled, changed := errors.Is(c.denied, last), c.deniedChanged
		c.mu.Unlock()
		if handled {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return nats.ErrConnectionClosed
		case <-changed:
		}
	}
}

// handleAnswer is called by one goroutine, for one answer after the other.
func (c *connection) handleAnswer(m *nats.Msg) {
	if fastbatch.IsReply(m.Subject) {
		c.fast.HandleReply(m)
		return
	}
	number, index, _ := strings.Cut(strings.TrimPrefix(m.Subject, c.inbox), ".")
	no, errNo := strconv.ParseUint(number, 36, 64)
	i, errIndex := strconv.ParseUint(index, 36, 31)
	if errNo != nil || errIndex != nil {
		return // not an answer to a publish
	}
	result := classifyAck(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.inflight[no]
	if !ok || int(i) >= len(f.results) {
		return // too late
	}
	f.resolve(int(i), result)
}

// ask makes a request to the server. A server does not answer a request that the user may not make; ask then
// returns early, with an error that wraps nats.ErrPermissionViolation.
func (c *connection) ask(ctx context.Context, subject string, request func(context.Context) error) error {
	answered, finish := context.WithCancel(ctx)
	defer finish()
	f := c.register([]string{subject}, make([]error, 1), finish)
	err := request(answered)
	results := c.complete(f, nil)
	if errors.Is(results[0], nats.ErrPermissionViolation) {
		return results[0]
	}
	return err
}
