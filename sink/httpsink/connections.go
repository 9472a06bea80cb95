package httpsink

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// connections are those the transport has open, so that Close can end them:
// Transport.CloseIdleConnections leaves an HTTP/2 connection open whose last
// request it has not quite tidied away yet.
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

// ReadFrom implements io.ReaderFrom: net/http hands the body over with it, all but what
// fits into its buffer beside the head. A body of ours lies in memory and is written as
// it is, where io.Copy would copy it, 32 KB a write. It is as long as it was said to be.
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

// Close is called more than once, by the transport and by closeAll.
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
