package preview

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Pipeline is an open pipeline, running or not, that previews events. Its methods are safe for concurrent use.
type Pipeline struct{ runtime *config.Runtime }

// Of returns the previews of an open pipeline.
func Of(r *config.Runtime) Pipeline { return Pipeline{r} }

// Name is the pipeline's name.
func (p Pipeline) Name() string { return p.runtime.Name() }

// Sinks are the names of several sinks; nil for a single one.
func (p Pipeline) Sinks() (names []string) {
	for _, s := range p.runtime.Sinks {
		if s.Config.SinkName != "" {
			names = append(names, s.Config.SinkName)
		}
	}
	return names
}

// Example is an event that a sink takes, for an answer where there is no event.
func (p Pipeline) Example(name string) (outbox.Event, error) {
	s, err := p.sink(name)
	if err != nil {
		return outbox.Event{}, err
	}
	topic := "example"
	if len(s.Config.Match) > 0 {
		topic = strings.NewReplacer("*", topic, "#", topic, ">", topic).Replace(s.Config.Match[0])
	}
	return outbox.Event{ID: 1, Topic: topic, Payload: []byte("{}"), CreatedAt: time.Now()}, nil
}

// Keys are the columns of a custom table that identify an event; "" is none.
func (p Pipeline) Keys() []string {
	custom := p.runtime.Sinks[0].Config.Source.Custom
	return []string{custom.ID, custom.Cursor}
}

// sink finds a sink by its name; "" is the only one, or the first.
func (p Pipeline) sink(name string) (config.RuntimeSink, error) {
	for _, s := range p.runtime.Sinks {
		if name == "" || s.Config.SinkName == name {
			return s, nil
		}
	}
	return config.RuntimeSink{}, fmt.Errorf("pipeline %s has no sink %q", p.Name(), name)
}

// Next is [Next] for a sink.
func (p Pipeline) Next(ctx context.Context, name string, limit int) (Result, error) {
	s, err := p.sink(name)
	if err != nil {
		return Result{}, err
	}
	return Next(ctx, p.runtime.Buffer, s, limit)
}

// Batch is [Batch] for a sink.
func (p Pipeline) Batch(ctx context.Context, name string, groupID uuid.UUID, limit int) (Result, []outbox.Event, error) {
	s, err := p.sink(name)
	if err != nil {
		return Result{}, nil, err
	}
	return Batch(ctx, p.runtime.Buffer, s, groupID, limit)
}

// Events is [Events] for a sink.
func (p Pipeline) Events(ctx context.Context, name string, events []outbox.Event) (Result, error) {
	s, err := p.sink(name)
	if err != nil {
		return Result{}, err
	}
	return Events(ctx, s, events)
}

// Answer is [Answer] for a sink.
func (p Pipeline) Answer(ctx context.Context, name string, limit int, events []outbox.Event, a sink.Answer) (Answered, error) {
	s, err := p.sink(name)
	if err != nil {
		return Answered{}, err
	}
	return Answer(ctx, p.runtime.Buffer, s, limit, events, a)
}
