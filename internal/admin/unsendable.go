package admin

import (
	"context"
	"errors"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Unsendable returns why nothing is sent although the buffer can be read: the projection of a custom table cannot be run, or the database takes
// no writes. nil if neither is so, or nobody knows.
func Unsendable(ctx context.Context, b buffer.Inspector) error {
	if err := b.Check(ctx); errors.Is(err, buffer.ErrProjection) || errors.Is(err, buffer.ErrNoWrites) {
		return err
	}
	return nil
}

// unsendable is Unsendable for a pipeline of this process. It asks the database only while this process cannot use it, because the
// status is read every second.
func (p *Pipeline) unsendable(ctx context.Context) error {
	if p.Inspector == nil || !slices.ContainsFunc(p.NotReady(), func(r NotReadyReason) bool {
		return r.Class == buffer.NotReadyDatabase || r.Class == buffer.NotReadyStalled
	}) {
		return nil
	}
	return Unsendable(ctx, p.Inspector)
}
