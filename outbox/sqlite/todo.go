package sqlite

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox"
)

// Away is described by buffertest.Buffer.
func (b *Buffer) Away(context.Context) ([]string, error) { return nil, errors.ErrUnsupported }

// Wake is described by buffertest.Buffer.
func (b *Buffer) Wake(context.Context, string, int) (int, error) { return 0, errors.ErrUnsupported }

// Dead is described by buffertest.Buffer.
func (b *Buffer) Dead(context.Context, outbox.DeadFilter, *outbox.DeadKey, int) ([]outbox.Event, error) {
	return nil, errors.ErrUnsupported
}

// CountDead is described by buffertest.Buffer.
func (b *Buffer) CountDead(context.Context, outbox.DeadFilter) (outbox.DeadCount, error) {
	return outbox.DeadCount{}, errors.ErrUnsupported
}

// Replay is described by buffertest.Buffer.
func (b *Buffer) Replay(context.Context, outbox.DeadFilter, int) (int, error) {
	return 0, errors.ErrUnsupported
}

// Discard is described by buffertest.Buffer.
func (b *Buffer) Discard(context.Context, outbox.DeadFilter, int) (int, error) {
	return 0, errors.ErrUnsupported
}

// Audit is described by buffertest.Buffer.
func (b *Buffer) Audit(context.Context) (outbox.Audit, error) {
	return outbox.Audit{}, errors.ErrUnsupported
}

// Repair is described by buffertest.Buffer.
func (b *Buffer) Repair(context.Context) (outbox.Repair, error) {
	return outbox.Repair{}, errors.ErrUnsupported
}
