package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/outboxrelay/relay/sink"
)

// PanicError is a panic of a sink or a buffer, in the goroutine that called it. Nothing recovers the panic of a
// goroutine that a driver started: that one ends the process.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Guard returns what f returns, or its panic as a *PanicError.
func Guard(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{value, debug.Stack()}
		}
	}()
	return f()
}

// LogPanic writes the stack of a panic to the log; of other errors, nothing.
func LogPanic(ctx context.Context, log *slog.Logger, doing string, err error, attrs ...any) {
	if p, ok := errors.AsType[*PanicError](err); ok {
		log.ErrorContext(ctx, doing+" panicked", append(attrs, "error", p, "stack", string(p.Stack))...)
	}
}

// guardSend makes the panic of a sink an outage that the batch may have caused, like an HTTP status 500: if it keeps
// hitting this batch while others are accepted, that is a rejection of the batch.
func (w *Worker) guardSend(ctx context.Context, groupID string, send func() error) error {
	err := Guard(send)
	LogPanic(ctx, w.config.Log, "the sink", err, "group_id", groupID)
	if _, ok := errors.AsType[*PanicError](err); ok {
		return sink.MaybePoison(err)
	}
	return err
}
