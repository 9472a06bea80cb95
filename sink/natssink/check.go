package natssink

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
)

// Check connects. With JetStream it also checks that JetStream is enabled and, if all
// events have one subject, that a stream takes it; a user who may not ask passes. The
// error wraps sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	c, err := s.connection(ctx)
	if err != nil {
		return sink.Unavailable(err)
	}
	if err := c.flush(ctx); err != nil {
		return sink.Unavailable(fmt.Errorf("NATS does not answer: %w", err))
	}
	if s.core {
		return nil
	}
	if err := s.checkJetStream(ctx, c); err != nil {
		return sink.Unavailable(err)
	}
	return nil
}

func (s *Sink) checkJetStream(ctx context.Context, c *connection) error {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return err
	}
	err = c.ask(ctx, "$JS.API.INFO", func(ctx context.Context) error {
		_, err := js.AccountInfo(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	if !s.subject.Fixed() {
		return nil
	}
	subject := s.subject.String()
	err = c.ask(ctx, "$JS.API.STREAM.NAMES", func(ctx context.Context) error {
		_, err := js.StreamNameBySubject(ctx, subject)
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("subject %q: %w; run: nats stream add NAME --subjects '%s'", subject, errNoStream, subject)
	}
	return err
}
