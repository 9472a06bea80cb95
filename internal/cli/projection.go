package cli

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// unprojectable returns why nothing of a custom table is sent although its buffer can be read: its projection cannot be run. nil if it
// can be, or nobody knows.
func unprojectable(ctx context.Context, p *config.Pipeline, b buffer.Inspector) error {
	if !p.Source.Custom.Is() {
		return nil
	}
	if err := b.Check(ctx); errors.Is(err, buffer.ErrProjection) {
		return err
	}
	return nil
}
