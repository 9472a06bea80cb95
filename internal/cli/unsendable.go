package cli

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// unsendable returns why nothing is sent although the buffer can be read: the projection of a custom table cannot be run, or the database takes
// no writes. nil if neither is so, or nobody knows.
func unsendable(ctx context.Context, b buffer.Inspector) error {
	if err := b.Check(ctx); errors.Is(err, buffer.ErrProjection) || errors.Is(err, buffer.ErrNoWrites) {
		return err
	}
	return nil
}
