// Package redissink sends batches to Redis: to streams, each event at most once
// and each batch all or nothing (stream.lua says how), to lists, to channels, or to the
// queues of Sidekiq and of asynq, each in its own format.
//
// A batch costs one round trip to each server that it goes to: all its addresses
// travel in one pipeline, and every reply is read and judged by itself. So an
// address that is of the wrong type holds up no other. Queues cost a second round trip
// before that: their names are made known first.
//
// A Redis user needs, for streams, the keys themselves and those of the markers
// ({STREAM}:relay:*) with +ping +evalsha +eval +mget +set +xadd +xrevrange +xdel
// +xtrim; for lists +ping +rpush; for channels +ping +publish; for Sidekiq the keys
// queues and queue:* with +ping +sadd +lpush; for asynq the keys asynq:* with +ping
// +evalsha +eval +mget +set +exists +hset +del +lpush +lpop +sadd. Further +wait where
// replicas are waited for, +select for a database other than 0, +cluster|slots in
// a cluster, and +info +config|get for Warnings.
package redissink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Sink is Redis as a sink. It is safe for concurrent use.
type Sink struct {
	cfg     Config
	address sink.Template
	class   sink.Template // of Sidekiq and asynq
	sent    string        // what a marker says of a group_id that was sent
	servers servers
	secret  secret
}

var (
	_ sink.Sink      = (*Sink)(nil)
	_ sink.Addresser = (*Sink)(nil)
	_ sink.Fencer    = (*Sink)(nil)
	_ sink.Warner    = (*Sink)(nil)
	_ sink.Previewer = (*Sink)(nil)
)

// New makes a Sink; it connects when it is first used. The error lists every
// mistake in cfg, and nothing of the URL.
func New(cfg Config) (*Sink, error) {
	cfg = cfg.withDefaults()
	a, errURL := parseURL(cfg.URL)
	template, errTemplate := cfg.template()
	class, errClass := sink.ParseTemplate(cfg.Class, false)
	if errClass != nil {
		errClass = fmt.Errorf("class: %w", errClass)
	}
	if err := errors.Join(errURL, cfg.validate(), errTemplate, errClass); err != nil {
		return nil, err
	}
	return &Sink{
		cfg: cfg, address: template, class: class, sent: "sent " + template.String(),
		servers: a.connect(), secret: secret(a.password),
	}, nil
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.address.Fixed() }

// AddressOf implements sink.Addresser: the stream, list, channel or queue.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	address, err := s.address.Address(e)
	if err == nil {
		err = s.checkAddress(address)
	}
	return address, err == nil
}

// checkAddress tells whether events can go there. The error is a refusal for good.
func (s *Sink) checkAddress(address string) error {
	switch {
	case address == "":
		return sink.Permanent(fmt.Errorf("the name of the %s is empty", s.cfg.Mode.what()))
	case s.cfg.Mode == Asynq:
		return checkQueue(address)
	case s.cfg.Mode == Stream:
		_, err := markerPrefix(address)
		return err
	}
	return nil
}

// what is the address's kind.
func (m Mode) what() string {
	if m.queues() {
		return "queue"
	}
	return string(m)
}

// Send implements sink.Sink. It is an outage when a server cannot be reached, and
// when its answer says something of itself or of a key and not of the events
// (loading, read-only, out of memory, a key of the wrong type, ...). A time-out, or a
// connection that is lost, after the commands were written may be the batch's doing
// (sink.ErrMaybePoison). An outage of nothing but single addresses comes as a *sink.BatchError also when it meets
// every event, so that it is not taken for the sink's. A batch whose bytes are too
// many for one script is to be divided (*sink.SplitError), and so is one for asynq with
// events that are refused here beside others: nothing is sent then, for the marker would
// say that they were.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if parts := divide(b); parts != nil {
		return &sink.SplitError{Groups: parts, TooLarge: true}
	}
	calls, wrong := s.calls(ctx, b)
	if s.cfg.Mode == Asynq && len(wrong) > 0 && len(calls) > 0 {
		return &sink.SplitError{Groups: refuse(b, wrong)}
	}
	if s.cfg.Mode.queues() && len(calls) > 0 {
		if err := s.announce(ctx, calls); err != nil {
			return err
		}
	}
	s.exchange(ctx, calls)

	var again []*call
	for _, c := range calls {
		if code(c.err) == "NOSCRIPT" {
			// The server was restarted or its scripts flushed. EVAL runs the
			// script and makes it known.
			c.useSource(ctx)
			again = append(again, c)
		}
	}
	s.exchange(ctx, again)
	return s.verdict(calls, wrong)
}

// verdict says what the calls mean for the batch, of which some events are wrong
// already.
func (s *Sink) verdict(calls []*call, wrong []sink.EventError) error {
	var failed []error
	events := wrong
	away, whole := true, s.address.Fixed()
	for _, c := range calls {
		if c.err == nil {
			continue
		}
		if errors.Is(c.err, sink.ErrFenced) {
			return c.err // a later owner sends all of it, whatever the address
		}
		whose, err := classify(fmt.Errorf("redis %s %q: %w", s.cfg.Mode, c.address, c.err), c.script != nil)
		err = s.secret.redact(err)
		failed = append(failed, err)
		away = away && errors.Is(err, sink.ErrUnavailable)
		whole = whole || whose == ofServer
		for _, i := range c.indexes {
			events = append(events, sink.EventError{Index: i, Err: err})
		}
	}
	slices.SortFunc(events, func(a, b sink.EventError) int { return a.Index - b.Index })
	some := &sink.BatchError{Events: events}
	switch {
	case len(events) == 0:
		return nil
	case len(wrong) > 0 || len(failed) < len(calls):
		return some
	case away && whole, len(calls) == 1 && !away:
		return failed[0] // the sink is away, or the batch was refused as a whole
	case away:
		return sink.Unavailable(some)
	}
	return some
}

// Check implements sink.Sink: every master answers a PING.
func (s *Sink) Check(ctx context.Context) error {
	err := s.servers.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		return c.Ping(ctx).Err()
	})
	if err != nil {
		return s.secret.redact(sink.Unavailable(fmt.Errorf("redis: %w", err)))
	}
	return nil
}

// Close implements sink.Sink.
func (s *Sink) Close() error { return s.servers.Close() }
