package postgres

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox"
)

// Peek is described by buffertest.Buffer.
func (b *Buffer) Peek(context.Context, int) (*outbox.Batch, error) {
	return nil, errors.New("peek is not there yet")
}
