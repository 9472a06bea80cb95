package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Hook is a pipeline's dead letters as the buffer of its dead-letter hook.
type Hook struct{ b *Buffer }

// Hook returns the dead letters of b's pipeline as the buffer of its hook; see
// buffertest.Hook. It shares b's connections.
func (b *Buffer) Hook() *Hook { return &Hook{b} }

func (h *Hook) Check(context.Context) error { return errors.ErrUnsupported }
func (h *Hook) Look(context.Context, int) (outbox.Backlog, error) {
	return outbox.Backlog{}, errors.ErrUnsupported
}
func (h *Hook) Claim(context.Context, int, time.Duration) (*outbox.Batch, error) {
	return nil, errors.ErrUnsupported
}
func (h *Hook) TakeOver(context.Context, time.Duration) (*outbox.Batch, error) {
	return nil, errors.ErrUnsupported
}
func (h *Hook) Renew(context.Context, *outbox.Batch, time.Duration) error {
	return errors.ErrUnsupported
}
func (h *Hook) Settle(context.Context, *outbox.Batch, []outbox.Outcome) error {
	return errors.ErrUnsupported
}
func (h *Hook) Mark(context.Context, *outbox.Batch, []int64) error { return errors.ErrUnsupported }
func (h *Hook) Away(context.Context) ([]string, error)             { return nil, errors.ErrUnsupported }
func (h *Hook) Wake(context.Context, string, int) (int, error)     { return 0, errors.ErrUnsupported }
func (h *Hook) Status(context.Context) (outbox.Status, error) {
	return outbox.Status{}, errors.ErrUnsupported
}
