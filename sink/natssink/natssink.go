// Package natssink publishes events to NATS. With JetStream an event counts as delivered when a stream has
// acknowledged it; with core NATS, when the server has received it.
//
// The data is the payload's bytes. The headers are the event's own and
//
//	Nats-Msg-Id     <pipeline>:<id>:<created_at>:<the first group_id>, by which a stream detects duplicates
//	Relay-Group-Id  the batch's group_id
//	Relay-Key       the event's key; absent if the key is NULL
//
// and, for a dead letter that goes to a dead-letter hook,
//
//	Nats-Msg-Id        <pipeline>:<id>:dead:<the group_id it died in>
//	Relay-Dead-Letter  the reason, as JSON; see [sink.AppendDeadLetter]
//
// No two events share a Nats-Msg-Id, not even if a database hands out an id twice; see [sink.AppendDedupeID]. So
// an event that a stream drops as a duplicate is proven to be in the stream, and counts as delivered.
//
// An event's own headers cannot override these. With the format cloudevents each message is also a CloudEvent
// in binary mode: its attributes are headers named ce-...; see [sink.CloudEventAttributes]. An event that a
// NATS header or subject cannot carry (a line break in its key, an empty token in its topic) is refused
// permanently, alone.
//
// # A Send
//
//	build the message of an event        message.go
//	register the events as in flight     inflight.go
//	publish   events that are sent for the first time, to a stream that allows it,
//	          as fast batches            groups.go, streams.go, internal/fastbatch
//	          all others singly; with order by key one of a key at a time
//	                                     publish.go, order.go
//	receive the answers                  connection.go
//	classifyAck: each event's result     ack.go
//	combine the results into one error   ack.go
//
// Of a dead letter the event's own headers that begin with Nats- are left out. If NATS does not take it all the same, it is sent once more, reduced to what
// an operator needs to find it (deadletter.go).
package natssink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"

	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Sink publishes to NATS. All Sends share one connection, which is made by the first one and again after it
// was lost.
type Sink struct {
	options     []nats.Option
	core        bool
	ordered     bool
	subject     sink.Template
	resend      time.Duration // Config.ResendWithin
	cloudEvents bool

	current atomic.Pointer[connection]

	connecting *semaphore.Weighted // of one; it guards the fields below
	failure    error               // of the last attempt to connect
	failedAt   time.Time
	discovered []string // servers of the cluster that the last connection named
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addresser = (*Sink)(nil)
	_ sink.Warner    = (*Sink)(nil)
	_ sink.Previewer = (*Sink)(nil)

	_ sink.OfflineWarner = (*Sink)(nil)
	_ sink.Informer      = (*Sink)(nil)
)

// New returns a sink. It does not connect yet. The error is about the configuration and contains no secret.
func New(c Config) (*Sink, error) {
	c = c.withDefaults()
	options, err := c.options()
	if err != nil {
		return nil, fmt.Errorf("NATS sink: %w", err)
	}
	subject, err := sink.ParseTemplate(c.Subject, false)
	if err == nil && subject.Fixed() {
		err = checkSubject(c.Subject)
	}
	if err != nil {
		return nil, fmt.Errorf("NATS sink: subject %q: %w", c.Subject, err)
	}
	if err := c.checkFormat(); err != nil {
		return nil, fmt.Errorf("NATS sink: %w", err)
	}
	return &Sink{
		options: options, core: c.Core, ordered: c.Ordered && !c.Core, subject: subject, resend: c.ResendWithin,
		cloudEvents: c.Format == formatCloudEvents,
		connecting:  semaphore.NewWeighted(1),
	}, nil
}

// Send publishes the batch's events in order and waits until ctx's deadline for the answers. Each event has
// its own result: a *sink.BatchError names the events that were not accepted. If all of them met an outage,
// the error wraps sink.ErrUnavailable.
//
// Outages are: no connection, no answer in time, no stream on the subject, a stream that is full, sealed or
// offline, missing permissions or resources. No answer in time on a working connection may be the batch's
// fault (sink.ErrMaybePoison). An event that is too large, or that NATS cannot carry, is refused permanently.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	c, err := s.connection(ctx)
	if err != nil {
		return sink.Unavailable(err)
	}
	subjects, results := make([]string, len(b.Events)), make([]error, len(b.Events))
	for i := range b.Events {
		subjects[i], results[i] = s.subjectOf(&b.Events[i])
	}
	carrying := tracing.Carry(ctx, b)
	results = s.exchange(ctx, c, carrying, subjects, results)
	if carrying != b {
		s.sendUntraced(ctx, c, b, subjects, results)
	}
	if reduced, indexes := reduce(b, results); reduced != nil {
		s.sendInstead(ctx, c, b, reduced, indexes, subjects, results)
	}
	err = combine(subjects, results, s.subject.Fixed())
	if err != nil && slices.ContainsFunc(results, func(err error) bool { return errors.Is(err, errNoStream) }) {
		c.mu.Lock()
		c.streams.invalidate() // a stream for the subject may be created any time
		c.mu.Unlock()
	}
	if _, perSubject := errors.AsType[*sink.BatchError](err); perSubject && errors.Is(err, sink.ErrUnavailable) && !s.core {
		// No subject has a stream: perhaps JetStream as a whole is unavailable.
		if outage := s.checkJetStream(ctx, c); outage != nil {
			return sink.Unavailable(outage)
		}
	}
	return err
}

// exchange publishes the events that have no result yet, and waits for theirs.
func (s *Sink) exchange(ctx context.Context, c *connection, b *buffer.Batch, subjects []string, results []error) []error {
	answered, finish := context.WithCancel(ctx)
	defer finish()
	groups := s.groups(ctx, c, b, subjects)
	f := c.register(subjects, results, finish)
	s.publish(answered, c, f, b, groups)
	return c.complete(f, s.await(answered, c))
}

// sendUntraced sends the events that were too large again as they are, and replaces their results: the context of the send may have made
// them too large.
func (s *Sink) sendUntraced(ctx context.Context, c *connection, b *buffer.Batch, subjects []string, results []error) {
	var tooLarge []int
	for i, err := range results {
		if isTooLarge(err) {
			tooLarge = append(tooLarge, i)
		}
	}
	if tooLarge != nil {
		s.sendInstead(ctx, c, b, b.Part(tooLarge), tooLarge, subjects, results)
	}
}

// sendInstead sends others in the place of the events at these indexes, and replaces their results.
func (s *Sink) sendInstead(ctx context.Context, c *connection, b, others *buffer.Batch, indexes []int, subjects []string, results []error) {
	own, errs := make([]string, len(indexes)), make([]error, len(indexes))
	for at, i := range indexes {
		if own[at] = subjects[i]; own[at] == "" {
			own[at], errs[at] = s.reducedSubjectOf(&b.Events[i])
		}
	}
	for at, err := range s.exchange(ctx, c, others, own, errs) {
		subjects[indexes[at]], results[indexes[at]] = own[at], err
	}
}

// publish publishes the groups as fast batches, then singly the events that these leave without a result.
func (s *Sink) publish(answered context.Context, c *connection, f *inflight, b *buffer.Batch, groups map[*stream][]int) {
	p := s.newPublisher(b)
	if !s.ordered {
		c.publish(p, f, c.pendingOf(f, groups, false))
	}
	c.publishGroups(answered, p, f, groups)
	switch {
	case answered.Err() != nil:
	case s.ordered:
		c.publishInOrder(answered, p, f)
	default:
		c.publish(p, f, c.pendingOf(f, groups, true))
	}
}

// await waits for the answers. It returns the result of events that have none.
func (s *Sink) await(answered context.Context, c *connection) error {
	if !s.core {
		<-answered.Done()
		return unanswered("no PubAck came in time", answered.Err())
	}
	err := c.flush(answered)
	if err == nil {
		err = c.awaitViolations(answered)
	}
	if err != nil {
		return unanswered("the server did not confirm the event", err)
	}
	return nil
}

// unanswered is an outage. It may be the batch's fault if the time ran out, but not if the Send was
// cancelled.
func unanswered(what string, err error) error {
	err = fmt.Errorf("%s: %w", what, err)
	if errors.Is(err, context.DeadlineExceeded) {
		return sink.MaybePoison(err)
	}
	return sink.Unavailable(err)
}

// firstAttempt reports whether no event of the batch was sent before. A batch does not say so of dead
// letters.
func firstAttempt(b *buffer.Batch) bool {
	return b.DeadLetters == nil && b.FirstSend && len(b.Origins) == 0
}

// Close closes the connection.
func (s *Sink) Close() error {
	if c := s.current.Load(); c != nil {
		c.close()
	}
	return nil
}
