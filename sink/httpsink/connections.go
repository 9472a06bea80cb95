package httpsink

import (
	"context"
	"errors"
	"io"
	"net"
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
