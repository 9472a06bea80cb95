package preview

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// The errors of an answer; compare with errors.Is.
var (
	// ErrNoAnswers: no program reads what the sink answers, because it is not an HTTP API.
	ErrNoAnswers = errors.New("has no answers that a program reads")
	// ErrNoEvents: all events of the buffer are claimed, or there are none.
	ErrNoEvents = errors.New("the buffer has no events that are not claimed yet")
)

// Answered is what a sink makes of an answer to a request.
type Answered struct {
	// Events are how many events were answered, Others the topics of those that are not for this one of several sinks.
	Events int
	Others []string
	// Fates say what happens to each event. nil: all share Err, which Whole explains.
	Fates []Fate
	Err   error
}

// Fate is what happens to one event.
type Fate struct {
	Event string
	// Err is why it was not delivered; nil: it was.
	Err error
}

// Word says what happens to the event.
func (f Fate) Word() string {
	switch {
	case f.Err == nil:
		return "delivered"
	case errors.Is(f.Err, sink.ErrUnavailable):
		return "waits (an outage)"
	case errors.Is(f.Err, sink.ErrPermanent):
		return "rejected for good"
	}
	return "rejected, sent again"
}

// ProgramFailed reports whether sink.request or sink.results failed.
func (a *Answered) ProgramFailed() bool { return errors.Is(a.Err, sink.ErrProgram) }

// Whole says what happens to the events together, before Err.
func (a *Answered) Whole() string {
	switch {
	case a.ProgramFailed() && !errors.Is(a.Err, sink.ErrMaybeAccepted):
		return "sink.request fails, so nothing would be sent:"
	case a.ProgramFailed():
		return "A program fails, so nobody knows what was accepted. The events wait, and are sent again:"
	case errors.Is(a.Err, sink.ErrUnavailable):
		return "The events wait, and are sent again: an outage."
	case a.Events > 1:
		return "The batch is rejected as a whole. It is halved until each rejected event is alone:"
	}
	return "The event is rejected:"
}

// Answer finds out what an answer means for events, or for the next ones of the buffer if events is nil. It takes those of one request.
func Answer(ctx context.Context, from Source, s config.RuntimeSink, limit int, events []outbox.Event, answer sink.Answer) (result Answered, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	to, ok := s.Sink.(sink.AnswerPreviewer)
	if !ok {
		return result, fmt.Errorf("%s %w", s.Config.Sink.URL, ErrNoAnswers)
	}
	patterns, err := buffer.ParsePatterns(s.Config.Match)
	if err != nil {
		return result, err
	}
	lease := &buffer.Lease{Batch: buffer.Batch{Pipeline: s.Config.Name, Events: events}}
	if events == nil {
		lease, err = from.Peek(ctx, limit)
		switch {
		case err != nil:
			return result, err
		case lease == nil:
			return result, ErrNoEvents
		case lease.ProjectErr != nil:
			return result, fmt.Errorf("source.project fails: %w", lease.ProjectErr)
		}
	}
	sent, others := split(patterns, lease.Events)
	result.Others = others
	if len(sent) == 0 {
		return result, errors.New("none of the events is for this sink")
	}
	sent = sent[:min(len(sent), s.Config.BatchSize)] // those of one request
	b := batchOf(lease, sent)
	result.Events, result.Err = len(sent), to.PreviewAnswer(ctx, b, answer)
	batchErr, named := errors.AsType[*sink.BatchError](result.Err)
	if !named && result.Err != nil {
		return result, nil
	}
	failed := map[int]error{}
	if named {
		for _, e := range batchErr.Events {
			failed[e.Index] = e.Err
		}
	}
	for i := range b.Events {
		result.Fates = append(result.Fates, Fate{b.Events[i].Identity(), failed[i]})
	}
	return result, nil
}
