// Package preview finds out what the sinks would be sent of events, and what they make of an answer, without sending or claiming anything. Commands and the
// console show it; they remove secrets from what they show.
package preview

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const (
	// timeout is how long the preview of a sink may take.
	timeout = 30 * time.Second
	// MaxEvents is how many events a preview takes.
	MaxEvents = 1000
	// MaxExcluded is up to how many rows that are no events are counted.
	MaxExcluded = 1000
)

// Result is what would happen to events at one sink.
type Result struct {
	// Events is the number of events; 0 if none is unclaimed. Others are the topics of those that are not for this one of several sinks.
	Events int
	Others []string
	// Claimed counts the batches, and Why is the finding about those that wait for a
	// retry. Both are set if Events is 0.
	Claimed buffer.Status
	Why     string
	// Excluded counts the rows that source.where excludes, up to [MaxExcluded] + 1; set if no event is pending.
	Excluded int
	// Elsewhere reports whether events wait, and none for this one of several sinks.
	Elsewhere bool
	// ProjectErr is the error of the projection, if it failed for all events, those of ProjectFails.
	ProjectErr   error
	ProjectFails []string
	Requests     []Request
	// Unprojected have no row in the projection; Rejected would be rejected by the sink. The headers of WithoutHeaders are not sent.
	Unprojected    []string
	WithoutHeaders []string
	// UnsentColumns are columns of the table that are not sent.
	UnsentColumns []string
	// IgnoredColumns are columns of the projection that are not sent.
	IgnoredColumns []buffer.IgnoredColumn
	Rejected       []Rejection
}

// Request is a request and the ids of its events.
type Request struct {
	sink.PreparedMessage
	IDs []string
	// UnsentIDs are the ids of those that the request surely does not contain.
	UnsentIDs []string
}

// Rejection is an event that the sink would reject.
type Rejection struct {
	Event string
	Err   error
}

// Source is the part of a buffer that has the next events.
type Source interface {
	Peek(ctx context.Context, limit int) (*buffer.Lease, error)
	UnsentColumns(ctx context.Context) ([]string, error)
	IgnoredColumns(ctx context.Context) ([]buffer.IgnoredColumn, error)
	CountExcluded(ctx context.Context, limit int) (int, error)
	BatchEvents(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error)
	Status(ctx context.Context) (buffer.Status, error)
	Diagnose(ctx context.Context) []buffer.Finding
}

// previewerOf returns what prepares the requests of a sink, and the topics that it takes.
func previewerOf(s config.RuntimeSink) (previewer sink.Previewer, patterns buffer.Patterns, err error) {
	previewer, ok := s.Sink.(sink.Previewer)
	if !ok {
		return nil, patterns, fmt.Errorf("%s does not support preview", s.Config.Sink.URL)
	}
	patterns, err = buffer.ParsePatterns(s.Config.Match)
	return previewer, patterns, err
}

// Next reads the events that a claim would take, and prepares the requests of one sink.
func Next(ctx context.Context, from Source, s config.RuntimeSink, limit int) (result Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	previewer, patterns, err := previewerOf(s)
	if err != nil {
		return result, err
	}
	b, err := from.Peek(ctx, limit)
	if err != nil {
		return result, err
	}
	if b == nil {
		err = result.readClaimed(ctx, from, s.Config.SinkName)
		return result, err
	}
	if result.UnsentColumns, err = from.UnsentColumns(ctx); err != nil {
		return result, err
	}
	if result.IgnoredColumns, err = from.IgnoredColumns(ctx); err != nil {
		return result, err
	}
	err = result.read(ctx, previewer, s.Config, patterns, b)
	return result, err
}

// ErrNoBatch says that the batch is not live any more, or is one of a dead-letter hook.
var ErrNoBatch = errors.New("the batch is finished, or is one of a dead-letter hook")

// Batch reads events of a live batch, leased or not, and prepares the requests of one sink.
func Batch(ctx context.Context, from Source, s config.RuntimeSink, groupID uuid.UUID, limit int) (result Result, events []outbox.Event, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	previewer, patterns, err := previewerOf(s)
	if err != nil {
		return result, nil, err
	}
	b, err := from.BatchEvents(ctx, groupID, limit)
	switch {
	case err != nil:
		return result, nil, err
	case b == nil:
		return result, nil, ErrNoBatch
	case b.NotRead != nil:
		return result, nil, fmt.Errorf("the events of the batch cannot be read: %w", b.NotRead)
	}
	err = result.read(ctx, previewer, s.Config, patterns, b)
	return result, b.Events, err
}

// read prepares the requests of a batch that was read, and says what is not sent of it.
func (p *Result) read(ctx context.Context, previewer sink.Previewer, of *config.Pipeline, patterns buffer.Patterns, b *buffer.Lease) error {
	if p.Events = b.Len(); b.ProjectErr != nil {
		p.ProjectErr = b.ProjectErr
		for _, e := range b.AllEvents() {
			p.ProjectFails = append(p.ProjectFails, e.Identity())
		}
		return nil
	}
	for _, r := range b.Rejected {
		if id := r.Event.Identity(); errors.Is(r.Err, buffer.ErrNotProjected) {
			p.Unprojected = append(p.Unprojected, id)
		} else {
			p.Rejected = append(p.Rejected, Rejection{id, r.Err})
		}
	}
	return p.prepare(ctx, previewer, of, patterns, b)
}

// Events prepares the requests of one sink for these events, as if they were the next ones.
func Events(ctx context.Context, s config.RuntimeSink, events []outbox.Event) (result Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	previewer, patterns, err := previewerOf(s)
	if err != nil {
		return result, err
	}
	result.Events = len(events)
	err = result.prepare(ctx, previewer, s.Config, patterns, &buffer.Lease{Batch: buffer.Batch{Pipeline: s.Config.Name, Events: events}})
	return result, err
}

// prepare prepares the requests for the events of a batch that are for the sink.
func (p *Result) prepare(ctx context.Context, to sink.Previewer, of *config.Pipeline, patterns buffer.Patterns, b *buffer.Lease) error {
	sent, others := split(patterns, b.Events)
	p.Others = others
	p.WithoutHeaders = UnsentHeaders(of, sent)
	for len(sent) > 0 {
		n := min(len(sent), of.BatchSize)
		if err := p.add(ctx, to, batchOf(b, sent[:n])); err != nil {
			return err
		}
		sent = sent[n:]
	}
	return nil
}

// split returns the events that match, and the topics of the others.
func split(patterns buffer.Patterns, events []outbox.Event) (sent []outbox.Event, others []string) {
	for i := range events {
		if e := &events[i]; patterns.Match(e.Topic) {
			sent = append(sent, *e)
		} else {
			others = append(others, e.Topic)
		}
	}
	return sent, others
}

// readClaimed reads the batches that are already claimed; those of one of several sinks, if it is named.
func (p *Result) readClaimed(ctx context.Context, b Source, sink string) (err error) {
	if p.Claimed, err = b.Status(ctx); err != nil {
		return err
	}
	if p.Claimed.Pending == 0 {
		p.Excluded, err = b.CountExcluded(ctx, MaxExcluded+1)
		return err
	}
	if sink != "" {
		i := slices.IndexFunc(p.Claimed.Sinks, func(s buffer.SinkStatus) bool { return s.Name == sink })
		s := p.Claimed.Sinks[i]
		p.Claimed, p.Elsewhere = buffer.Status{Pending: s.Pending, Leased: s.Leased, Waiting: s.Waiting}, s.Pending == 0
		if len(s.Waits) > 0 {
			p.Why = s.Waits[0].Error
		}
		return nil
	}
	if p.Claimed.Waiting == 0 {
		return nil
	}
	for _, f := range b.Diagnose(ctx) {
		if f.Subject == "batches" && f.Level != buffer.LevelOK {
			p.Why = f.Text
		}
	}
	return nil
}

// batchOf returns a batch of some events of a batch, as a claim would make it.
func batchOf(b *buffer.Lease, events []outbox.Event) *buffer.Batch {
	some := b.Batch
	some.GroupID, some.Events = buffer.NewGroupID(), events
	return &some
}

// add prepares the requests of a batch.
func (p *Result) add(ctx context.Context, s sink.Previewer, b *buffer.Batch) error {
	messages, err := s.Preview(ctx, b)
	for _, m := range messages {
		r := Request{PreparedMessage: m}
		for _, i := range m.Events {
			r.IDs = append(r.IDs, b.Events[i].Identity())
		}
		for _, i := range m.Unsent {
			r.UnsentIDs = append(r.UnsentIDs, b.Events[i].Identity())
		}
		p.Requests = append(p.Requests, r)
	}
	batchErr, partial := errors.AsType[*sink.BatchError](err)
	switch {
	case err == nil:
		return nil
	case partial:
		for _, e := range batchErr.Events {
			p.Rejected = append(p.Rejected, Rejection{b.Events[e.Index].Identity(), e.Err})
		}
		return nil
	case errors.Is(err, sink.ErrUnavailable), ctx.Err() != nil:
		return err
	}
	for i := range b.Events {
		p.Rejected = append(p.Rejected, Rejection{b.Events[i].Identity(), err})
	}
	return nil
}

// UnsentHeaders returns the ids of those events for the sink whose headers its request program ignores.
func UnsentHeaders(p *config.Pipeline, events []outbox.Event) (ids []string) {
	patterns, err := buffer.ParsePatterns(p.Match)
	if err != nil || !p.Sink.IgnoresHeaders() {
		return nil
	}
	for i := range events {
		e := &events[i]
		if headers, _ := e.Headers.Map(); len(headers) > 0 && patterns.Match(e.Topic) {
			ids = append(ids, e.Identity())
		}
	}
	return ids
}
