// Package natssink publishes events to NATS: to JetStream, where an event counts as
// delivered when a stream has acknowledged it, or to core NATS, where it does
// when the server has received it.
//
// The data is the payload's bytes. The headers are the event's own and
//
//	Nats-Msg-Id     <pipeline>:<id>, by which a stream knows an event again
//	Relay-Group-Id  the batch's group_id
//	Relay-Key       the event's key; absent when that is NULL
//
// and, of a buried event that a dead-letter hook is told of,
//
//	Nats-Msg-Id        <pipeline>:<id>:dead:<the group_id it died in>
//	Relay-ListDead-Letter  why, as JSON; see [sink.AppendDeadLetter]
//
// which an event's own headers cannot overrule. With the format cloudevents each message
// is a CloudEvent as well, in binary mode: its attributes are headers named ce-...; see
// [sink.CloudEventAttributes]. Where a stream allows it, events that
// are sent for the first time go in fast batches that it acknowledges as a whole
// (ADR-50 of nats-architecture-and-design; decision 0015 here), all others one by one. An event that a NATS header or
// subject cannot carry as it is (a line break in its key, an empty token in its
// topic) is refused for good, alone.
package natssink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Sink publishes to NATS. All Sends share one connection, which is made when it is
// first needed, and anew when it was lost.
type Sink struct {
	options []nats.Option
	core    bool
	ordered bool
	subject sink.Template
	resend  time.Duration // Config.ResendWithin
	log     *slog.Logger
	// cloudEvents is Config.Format.
	cloudEvents bool

	current    atomic.Pointer[connection]
	duplicates atomic.Int64

	// turn holds one token; who has it connects, and may touch what follows.
	turn       chan struct{}
	failure    error // why the last try failed
	failedAt   time.Time
	discovered []string // servers of the cluster that the last connection heard of
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addresser = (*Sink)(nil)
	_ sink.Warner    = (*Sink)(nil)
	_ sink.Previewer = (*Sink)(nil)
)

// New makes a sink; it does not connect yet. The error is about the
// configuration and names no secret.
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
	s := &Sink{
		options: options, core: c.Core, ordered: c.Ordered && !c.Core, subject: subject, resend: c.ResendWithin, log: c.Logger,
		cloudEvents: c.Format == cloudEvents,
		turn:        make(chan struct{}, 1),
	}
	s.turn <- struct{}{}
	return s, nil
}

// AddressOf implements sink.Addresser: the subject.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	address, err := s.subjectOf(e)
	return address, err == nil
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.subject.Fixed() }

// connection returns the connection, or makes one. Callers that come while another
// one tries get that one's error: a server that does not answer costs one
// time-out, not one each.
func (s *Sink) connection(ctx context.Context) (*connection, error) {
	if c := s.current.Load(); c != nil && c.nc.IsConnected() {
		return c, nil
	}
	came := time.Now()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.turn:
	}
	defer func() { s.turn <- struct{}{} }()
	c := s.current.Load()
	if c != nil && c.nc.IsConnected() {
		return c, nil
	}
	if s.failedAt.After(came) {
		return nil, s.failure
	}
	if c != nil {
		s.discovered = c.nc.DiscoveredServers()
		c.close()
	}
	c, err := dial(ctx, s.options, s.discovered, !s.core)
	if err != nil {
		s.failure, s.failedAt = fmt.Errorf("connecting to NATS: %w", err), time.Now()
		return nil, s.failure
	}
	s.current.Store(c)
	return c, nil
}

// Send publishes the batch's events, in order, and waits for what shows that each
// was accepted until ctx's deadline. Each event is judged alone: a
// *sink.BatchError names those that were not accepted, one error wraps
// sink.ErrUnavailable when that is an outage for all of them.
//
// Outages are: no connection, no answer in time, no stream on the subject, a
// stream that is full, sealed or offline, a lack of permission or resources. No
// answer in time on a connection that stands may be the batch's doing
// (sink.ErrMaybePoison). An event that is too large, or that NATS cannot carry, is
// refused for good.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	c, err := s.connection(ctx)
	if err != nil {
		return sink.Unavailable(err)
	}
	subjects, verdicts := make([]string, len(b.Events)), make([]error, len(b.Events))
	for i := range b.Events {
		subjects[i], verdicts[i] = s.subjectOf(&b.Events[i])
	}
	answered, finish := context.WithCancel(ctx)
	defer finish()
	groups := s.groups(ctx, c, b, subjects)
	f := c.launch(subjects, verdicts, finish)
	missing := s.publish(answered, c, f, b, groups)
	verdicts, duplicates := c.land(f, s.await(answered, c))
	for of, n := range missing {
		if s.remains(ctx, c, of) {
			duplicates += n
		}
	}
	if duplicates > 0 && first(b) {
		s.duplicates.Add(int64(duplicates))
		s.log.LogAttrs(ctx, slog.LevelError, "the stream takes new events for duplicates: their ids were used before",
			slog.String("pipeline", b.Pipeline), slog.String("group_id", b.GroupID.String()),
			slog.Int("events", duplicates), slog.Int64("first_id", b.Events[0].ID), slog.Int64("last_id", b.Events[len(b.Events)-1].ID))
	}
	err = sum(subjects, verdicts, s.subject.Fixed())
	if err != nil && slices.ContainsFunc(verdicts, func(v error) bool { return errors.Is(v, errNoStream) }) {
		c.forget() // what takes the subject may be made any time
	}
	if _, ofSubjects := errors.AsType[*sink.BatchError](err); ofSubjects && errors.Is(err, sink.ErrUnavailable) && !s.core {
		// Not one subject has a stream: it may be that JetStream is away.
		if away := s.checkJetStream(ctx, c); away != nil {
			return sink.Unavailable(away)
		}
	}
	return err
}

// publish publishes all of the flight: the groups as fast batches and what they leave
// over one by one, as everything else. missing is as publishGroups has it.
func (s *Sink) publish(answered context.Context, c *connection, f *flight, b *buffer.Batch, groups []group) (missing map[*stream]int) {
	p := s.newPublisher(b)
	if !s.ordered {
		c.publish(p, f, c.waiting(f, groups, false))
	}
	missing = c.publishGroups(answered, p, f, groups)
	switch {
	case answered.Err() != nil:
	case s.ordered:
		c.publishInOrder(answered, p, f)
	default:
		c.publish(p, f, c.waiting(f, groups, true))
	}
	return missing
}

// await waits for the answers. It returns the verdict on events that got none.
func (s *Sink) await(answered context.Context, c *connection) error {
	if !s.core {
		<-answered.Done()
		return unanswered("no PubAck came in time", answered.Err())
	}
	err := c.flush(answered)
	if err == nil {
		err = c.violationsSettled(answered)
	}
	if err != nil {
		return unanswered("the server did not confirm it", err)
	}
	return nil
}

// unanswered is an outage, and perhaps the batch's doing if the time ran out; who
// was called off while it waited says nothing of the batch.
func unanswered(what string, err error) error {
	why := fmt.Errorf("%s: %w", what, err)
	if errors.Is(err, context.DeadlineExceeded) {
		return sink.MaybePoison(why)
	}
	return sink.Unavailable(why)
}

// first tells whether none of the batch's events was ever sent before. That is not
// known of dead letters: what remembers it is their table, not the batch.
func first(b *buffer.Batch) bool {
	return b.Events[0].DeadLetter == nil && b.FirstSend && len(b.Origins) == 0
}

// Duplicates is how many events JetStream took for duplicates although they were
// sent for the first time: they are lost unless they are the same events. Each
// batch that has some is logged as an error. Of fast batches it is at least as many:
// while others write to the stream, some cannot be told.
func (s *Sink) Duplicates() int64 { return s.duplicates.Load() }

// Check connects, and with JetStream asks whether it is enabled and, where all
// events have one subject, whether a stream takes that. A user without leave to
// ask passes. The error wraps sink.ErrUnavailable.
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
		return fmt.Errorf("subject %q: %w (make one: nats stream add NAME --subjects '%s')", subject, errNoStream, subject)
	}
	return err
}

// ask makes a request to the server, which answers nothing at all when the user
// has no leave to ask: that ends the waiting, and is no error.
func (c *connection) ask(ctx context.Context, subject string, act func(context.Context) error) error {
	err := c.request(ctx, subject, act)
	if errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	return err
}

// request is ask for those to whom a lack of leave matters: the error wraps
// nats.ErrPermissionViolation then.
func (c *connection) request(ctx context.Context, subject string, act func(context.Context) error) error {
	answered, finish := context.WithCancel(ctx)
	defer finish()
	f := c.launch([]string{subject}, make([]error, 1), finish)
	err := act(answered)
	verdicts, _ := c.land(f, nil)
	if errors.Is(verdicts[0], nats.ErrPermissionViolation) {
		return verdicts[0]
	}
	return err
}

// Close ends the connection.
func (s *Sink) Close() error {
	if c := s.current.Load(); c != nil {
		c.close()
	}
	return nil
}
