package natssink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
)

// Warnings implements sink.Warner: it looks whether the streams that take this
// sink's subjects remember an event's id as long as it may be sent again, and
// whether they acknowledge.
func (s *Sink) Warnings(ctx context.Context) []string {
	if s.core {
		return nil
	}
	streams, err := s.streams(ctx)
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		return []string{fmt.Sprintf("the user has no leave to ask for the streams (to publish to %s), so nobody can tell whether their "+
			"duplicate windows are as long as an event may be sent again, %v", listStreams, s.resend)}
	case err != nil:
		return []string{fmt.Sprintf("cannot tell whether the streams' duplicate windows are long enough: %v", err)}
	case len(streams) == 0 && s.subject.Fixed():
		return []string{fmt.Sprintf("no stream takes the subject %q, so its events wait; make one: nats stream add NAME --subjects '%s'%s",
			s.subject, s.subject, s.window(0))}
	}
	var warnings []string
	for _, info := range streams {
		c := &info.Config
		if c.NoAck {
			warnings = append(warnings, fmt.Sprintf("stream %s acknowledges nothing, so no event counts as delivered there; run: nats stream edit %s --ack",
				c.Name, c.Name))
		}
		if c.Duplicates < s.resend {
			warnings = append(warnings, fmt.Sprintf("stream %s knows an event again for %v (its duplicate window), but one may be sent again up to %v "+
				"after it was first sent, and be stored twice; run: nats stream edit %s%s", c.Name, c.Duplicates, s.resend, c.Name, s.window(c.MaxAge)))
		}
	}
	return warnings
}

// window is the options of nats stream that set the duplicate window. No stream
// may keep ids longer than events.
func (s *Sink) window(maxAge time.Duration) string {
	switch {
	case s.resend == 0:
		return ""
	case maxAge > 0 && maxAge < s.resend:
		return fmt.Sprintf(" --max-age %v --dupe-window %v", s.resend, s.resend)
	}
	return fmt.Sprintf(" --dupe-window %v", s.resend)
}

const listStreams = "$JS.API.STREAM.LIST"

// streams are those that take this sink's subjects, or may. The error wraps
// nats.ErrPermissionViolation when the user may not ask.
func (s *Sink) streams(ctx context.Context) ([]*jetstream.StreamInfo, error) {
	c, err := s.connection(ctx)
	if err != nil {
		return nil, err
	}
	return c.listStreams(ctx, pattern(s.subject))
}

// listStreams lists the streams with subjects that overlap the pattern.
func (c *connection) listStreams(ctx context.Context, pattern string) ([]*jetstream.StreamInfo, error) {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, err
	}
	var streams []*jetstream.StreamInfo
	err = c.request(ctx, listStreams, func(ctx context.Context) error {
		list := js.ListStreams(ctx, jetstream.WithStreamListSubject(pattern))
		for info := range list.Info() {
			streams = append(streams, info)
		}
		return list.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return streams, nil
}

// pattern is a subject with wildcards that takes at least what the template makes.
// A topic or key may have dots in it, so from the first placeholder on there may be
// more tokens than the template has, but not fewer.
func pattern(t sink.Template) string {
	if t.Fixed() {
		return t.String()
	}
	tokens := strings.Split(t.String(), ".")
	wild := false
	for i, token := range tokens {
		wild = wild || strings.Contains(token, "{")
		switch {
		case wild && i == len(tokens)-1:
			tokens[i] = ">"
		case wild:
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}
