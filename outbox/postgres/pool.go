package postgres

import (
	"fmt"

	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Pool is connections that the buffers of one database share, and one more on which their listeners listen. It is
// open while a buffer uses it.
type Pool struct {
	connections *pg.Pool
	hub         *listen.Hub
}

// NewPool prepares a pool of at most that many connections. It does not connect. The error is about the URL, and holds no
// password.
func NewPool(url string, connections int) (*Pool, error) {
	p, err := pg.NewPool(url, connections)
	if err != nil {
		return nil, fmt.Errorf("postgres buffer: %w", err)
	}
	return &Pool{p, &listen.Hub{URL: url}}, nil
}
