package natssink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outboxrelay/relay/sink"
)

// connection is a connection to NATS and the flights that wait for answers on
// it. It is used until it breaks, and then another one is made.
type connection struct {
	nc     *nats.Conn
	inbox  string        // answers come to <inbox><flight>.<index>; "" without JetStream
	closed chan struct{} // is closed when nats.go is done with it

	mu      sync.Mutex
	flights map[uint64]*flight
	fast    map[uint64]*fastBatch
	last    uint64 // flight or fast batch
	known   knowledge
	denied  error         // the last permission violation that was dealt with
	moved   chan struct{} // is closed when denied changes
}

// dial connects to one of the servers in opts, or of more. answers says whether
// PubAcks are wanted. The error is the connection's; no password is in it.
func dial(ctx context.Context, opts []nats.Option, more []string, answers bool) (*connection, error) {
	c := &connection{closed: make(chan struct{}), flights: map[uint64]*flight{}, fast: map[uint64]*fastBatch{}, moved: make(chan struct{})}
	if answers {
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
	if answers {
		err = c.listen(ctx)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// dialer makes dialling end with the context.
type dialer struct{ ctx context.Context } //nolint:containedctx // nats.CustomDialer takes none

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(d.ctx, network, address)
}

// listen subscribes to the answers, and looks whether that is allowed.
func (c *connection) listen(ctx context.Context) error {
	sub, err := c.nc.Subscribe(c.inbox+">", c.handleAnswer)
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil { // no answer may be dropped
		return err
	}
	err = c.flush(ctx)
	if why := c.nc.LastError(); errors.Is(why, nats.ErrPermissionViolation) {
		return fmt.Errorf("PubAcks cannot be received, the user needs leave to subscribe to _INBOX.>: %w", why)
	}
	return err
}

// flush returns when the server has dealt with all that was published.
func (c *connection) flush(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute) // nats.go insists on one
		defer cancel()
	}
	return c.nc.FlushWithContext(ctx)
}

// close ends the connection and waits for its goroutines' last callback.
func (c *connection) close() {
	c.nc.Close()
	<-c.closed
}

func (c *connection) handleClosed(nc *nats.Conn) {
	reason := nc.LastError()
	if reason == nil {
		reason = nats.ErrConnectionClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flights {
		f.settleAll(sink.Unavailable(fmt.Errorf("connection lost: %w", reason)))
	}
	close(c.closed)
}

// handleError learns of permissions that are lacking: the server answers nothing
// else to what was published without leave. All other errors end the connection.
func (c *connection) handleError(nc *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	subject := quoted(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox != "" && subject == c.inbox+">" { // no answer will ever come
		nc.Close()
	}
	for _, f := range c.flights {
		f.settleSubject(subject, sink.Unavailable(err))
	}
	c.denied = err
	close(c.moved)
	c.moved = make(chan struct{})
}

// quoted is the subject that a permission violation names; the protocol has no
// other place for it.
func quoted(err error) string {
	text := err.Error()
	at := strings.IndexByte(text, '"')
	if at < 0 {
		return ""
	}
	literal, err := strconv.QuotedPrefix(text[at:])
	if err != nil {
		return ""
	}
	subject, err := strconv.Unquote(literal)
	if err != nil {
		return ""
	}
	return subject
}

// violationsSettled returns when every permission violation that the server sent
// before its last PONG has been dealt with: nats.go notes it at once, and tells
// handleError a little later, in order.
func (c *connection) violationsSettled(ctx context.Context) error {
	noted := c.nc.LastError()
	if !errors.Is(noted, nats.ErrPermissionViolation) {
		return nil
	}
	for {
		c.mu.Lock()
		done, moved := errors.Is(c.denied, noted), c.moved
		c.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return nats.ErrConnectionClosed
		case <-moved:
		}
	}
}

// handleAnswer is called by one goroutine, answer by answer.
func (c *connection) handleAnswer(m *nats.Msg) {
	if strings.HasSuffix(m.Subject, fastSuffix) {
		c.handleFastAnswer(m)
		return
	}
	number, index, ok := strings.Cut(strings.TrimPrefix(m.Subject, c.inbox), ".")
	if !ok {
		return
	}
	no, err := strconv.ParseUint(number, 36, 64)
	if err != nil {
		return
	}
	i, err := strconv.ParseUint(index, 36, 31)
	if err != nil {
		return
	}
	duplicate, verdict := judge(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.flights[no]
	if !ok || int(i) >= len(f.verdicts) {
		return // too late: nobody waits any more
	}
	if f.settle(int(i), verdict) && duplicate && !f.sent[int(i)] {
		f.duplicates++
	}
}
