package natssink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
)

// Check connects. With JetStream it also checks that JetStream is enabled and, if all events have one
// subject, that a stream takes it; a user who may not ask passes. The error wraps sink.ErrUnavailable.
func (s *Sink) Check(ctx context.Context) error {
	if err := s.check(ctx); err != nil {
		return sink.Unavailable(err)
	}
	return nil
}

func (s *Sink) check(ctx context.Context) error {
	c, err := s.connection(ctx)
	if err != nil {
		return err
	}
	if err := c.flush(ctx); err != nil {
		return fmt.Errorf("NATS does not answer: %w", err)
	}
	if s.core {
		return nil
	}
	return s.checkJetStream(ctx, c)
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
	if err != nil && !errors.Is(err, nats.ErrPermissionViolation) {
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
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("subject %q: %w; run: nats stream add NAME --subjects '%s'", subject, errNoStream, subject)
	case errors.Is(err, nats.ErrPermissionViolation):
		return nil
	}
	return err
}

// Warnings implements sink.Warner. It checks that the streams of this sink's subjects acknowledge, that they keep
// what they acknowledged, and that their duplicate windows are as long as an event may be resent.
func (s *Sink) Warnings(ctx context.Context) []string {
	if s.core {
		return s.OfflineWarnings()
	}
	var streams []*jetstream.StreamInfo
	c, err := s.connection(ctx)
	if err == nil {
		streams, err = c.listStreams(ctx, s.subject)
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		return []string{fmt.Sprintf("cannot check the streams' storage and duplicate windows (an event may be resent for %v): "+
			"the user may not publish to %s; grant that permission", s.resend, streamListSubject)}
	case err != nil:
		return []string{fmt.Sprintf("cannot check the streams' storage and duplicate windows: %v", err)}
	case len(streams) == 0 && s.subject.Fixed():
		return []string{fmt.Sprintf("no stream takes subject %q, so its events wait; run: nats stream add NAME --subjects '%s'%s",
			s.subject, s.subject, s.windowFlags(0))}
	}
	var warnings []string
	for _, info := range streams {
		c := &info.Config
		if c.NoAck {
			warnings = append(warnings, fmt.Sprintf("stream %s sends no acknowledgements, so none of its events counts as delivered; run: nats stream edit %s --ack",
				c.Name, c.Name))
		}
		warnings = append(warnings, durabilityWarnings(c)...)
		if c.Duplicates < s.resend {
			warnings = append(warnings, fmt.Sprintf("the duplicate window of stream %s is %v, but an event may be resent for %v and then be stored twice; "+
				"run: nats stream edit %s%s", c.Name, c.Duplicates, s.resend, c.Name, s.windowFlags(c.MaxAge)))
		}
	}
	return warnings
}

// windowFlags are the flags of the nats command that set the duplicate window. A stream cannot remember ids
// for longer than it keeps events.
func (s *Sink) windowFlags(maxAge time.Duration) string {
	switch {
	case s.resend == 0:
		return ""
	case maxAge > 0 && maxAge < s.resend:
		return fmt.Sprintf(" --max-age %v --dupe-window %v", s.resend, s.resend)
	}
	return fmt.Sprintf(" --dupe-window %v", s.resend)
}
