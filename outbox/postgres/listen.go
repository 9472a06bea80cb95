package postgres

import (
	"context"
	"log/slog"

	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
)

// Listener counts the commits that notify the relay, while its Run runs.
type Listener = listen.Listener

// Listener returns a listener to the commits that insert events. If log is nil it logs to slog.Default.
func (b *Buffer) Listener(log *slog.Logger) *Listener {
	if log == nil {
		log = slog.Default()
	}
	return listen.New(listen.Config{
		DB: b.db, Hub: b.config.Pool.hub, Wake: b.config.Wake, Log: log,
		Table: func(ctx context.Context) (string, <-chan struct{}, error) {
			t, err := b.ready(ctx)
			if err != nil {
				return "", nil, err
			}
			return t.Events, t.replaced, nil
		},
	})
}
