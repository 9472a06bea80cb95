// Package redissink sends batches to Redis: to streams, lists, channels, or the queues of Sidekiq and asynq
// in their own formats. A batch enters a stream or an asynq queue as a whole or not at all, and each event at
// most once; stream.lua, asynq.lua and markers.lua say how.
//
// A batch costs one round trip to each server: its commands for all addresses go in one pipeline, and each
// reply decides about its own events. So an address of the wrong type does not hold up the others. Queues
// cost one round trip more, because their names are registered first.
//
// # A Send
//
//	split a batch that is too large for one script         split.go
//	build a command for each address                       args.go, sidekiq.go, asynq.go, markers.go
//	register the names of queues                           queues.go
//	exchange: one pipeline to each server                  call.go, servers.go
//	read each reply; classify: an outage or a rejection    call.go, errors.go
//	combine the results into one error                     redissink.go
//
// # Permissions
//
// A Redis user needs +ping and
//
//	streams   the streams and {STREAM}:relay:*, +evalsha +eval +mget +set +xadd
//	          +xrevrange +xdel +xtrim
//	lists     the lists, +rpush
//	channels  the channels, +publish
//	Sidekiq   queues and queue:*, +sadd +lpush
//	asynq     asynq:*, +evalsha +eval +mget +set +exists +hget +hset +del +lpush +lpop +sadd
//
// and +wait with WaitReplicas (Sidekiq and asynq: +sunionstore, too), +select with a database other than 0, +cluster|slots in a cluster, +info and
// +config|get for Warnings.
package redissink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Sink is Redis as a sink. It is safe for concurrent use.
type Sink struct {
	cfg       Config
	address   sink.Template
	class     sink.Template // of Sidekiq and asynq
	sent      string        // the marker of a group_id that was sent
	servers   servers
	failsOver bool // sentinels or a cluster
	secrets   secrets
}

var (
	_ sink.Sink          = (*Sink)(nil)
	_ sink.Addresser     = (*Sink)(nil)
	_ sink.Fencer        = (*Sink)(nil)
	_ sink.Warner        = (*Sink)(nil)
	_ sink.Informer      = (*Sink)(nil)
	_ sink.Previewer     = (*Sink)(nil)
	_ sink.OfflineWarner = (*Sink)(nil)
)

// New returns a sink, which connects when it is first used. The error lists everything that is invalid in
// cfg, and quotes nothing of the URL.
func New(cfg Config) (*Sink, error) {
	cfg = cfg.withDefaults()
	a, errURL := parseURL(cfg.URL)
	template, errTemplate := cfg.template()
	class, errClass := sink.ParseTemplate(cfg.Class, false)
	if errClass != nil {
		errClass = fmt.Errorf("class: %w", errClass)
	}
	var errSentinel error
	if cfg.SentinelPassword != "" && errURL == nil && a.topology != sentinel {
		errSentinel = errors.New("sentinel_password is used without sentinels; expected redis+sentinel:// in url")
	}
	dial, errTLS := cfg.dialer(a)
	if err := errors.Join(errURL, cfg.validate(), errTemplate, errClass, errSentinel, errTLS); err != nil {
		return nil, err
	}
	return &Sink{
		cfg: cfg, address: template, class: class, sent: "sent " + template.String(),
		servers: cfg.connect(a, dial), failsOver: a.topology != single,
		secrets: secrets{a.password, cfg.SentinelPassword},
	}, nil
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.address.Fixed() }

// AddressOf implements sink.Addresser: the stream, list, channel or queue.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	address, err := s.address.Address(e)
	if err == nil {
		_, err = s.markerPrefix(address)
	}
	return address, err == nil
}

// addressKind is the kind of address, for people.
func (m Mode) addressKind() string {
	if m.usesQueues() {
		return "queue"
	}
	return string(m)
}

// Send implements sink.Sink. An outage is a server that cannot be reached, or a reply that is about the
// server or a key and not about the events (loading, read-only, out of memory, a key of the wrong type...).
// If the connection is lost or times out after the first command was written, the batch may be at fault
// (sink.ErrMaybePoison). An outage of single addresses is a *sink.BatchError even if it affects every event,
// so that it does not count as the sink's.
//
// Send asks for a split (*sink.SplitError), and sends nothing, if the batch is too large for one script, or
// if it goes to asynq and only some of its events can be tasks: the marker would say that the others were
// sent, too.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if parts := split(b); parts != nil {
		return &sink.SplitError{Groups: parts, TooLarge: true}
	}
	calls, rejected := s.calls(ctx, tracing.Carry(ctx, b))
	if s.cfg.Mode == Asynq && len(rejected) > 0 && len(calls) > 0 {
		var accepted []int
		for _, c := range calls {
			accepted = append(accepted, c.indexes...)
		}
		slices.Sort(accepted)
		return sink.NewSplitError([]sink.Group{{Indexes: accepted}}, rejected, false)
	}
	if s.cfg.Mode.usesQueues() && len(calls) > 0 {
		if err := s.registerQueues(ctx, calls); err != nil {
			return err
		}
	}
	s.run(ctx, calls)
	return s.combine(calls, rejected)
}

// combine makes Send's error of the calls' errors and the events that were rejected before.
func (s *Sink) combine(calls []*call, rejected []sink.EventError) error {
	var failed []error
	events := rejected
	outage, wholeSink := true, s.address.Fixed()
	for _, c := range calls {
		if c.err == nil {
			continue
		}
		if errors.Is(c.err, sink.ErrFenced) {
			return c.err // a later owner sends all events, to all addresses
		}
		scope, err := classify(fmt.Errorf("redis %s %q: %w", s.cfg.Mode, c.address, sink.ExplainTLS(c.err)), c.script != nil)
		err = s.secrets.redact(err)
		failed = append(failed, err)
		outage = outage && errors.Is(err, sink.ErrUnavailable)
		wholeSink = wholeSink || scope == serverScope
		for _, i := range c.indexes {
			events = append(events, sink.EventError{Index: i, Err: err})
		}
	}
	slices.SortFunc(events, func(a, b sink.EventError) int { return a.Index - b.Index })
	batch := &sink.BatchError{Events: events}
	switch {
	case len(events) == 0:
		return nil
	case len(rejected) > 0 || len(failed) < len(calls):
		return batch
	case outage && wholeSink, len(calls) == 1 && !outage:
		return failed[0] // the sink is unavailable, or the batch was refused as a whole
	case outage:
		return sink.Unavailable(batch)
	}
	return batch
}

// Check implements sink.Sink: every master answers a PING.
func (s *Sink) Check(ctx context.Context) error {
	err := s.servers.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		err := c.Ping(ctx).Err()
		// A timeout may come without the address.
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && !strings.Contains(err.Error(), c.Options().Addr) {
			err = fmt.Errorf("%s: %w", c.Options().Addr, err)
		}
		return err
	})
	if err != nil {
		return s.secrets.redact(sink.Unavailable(withCause(fmt.Errorf("redis: %w", explainProtocol(sink.ExplainTLS(err))))))
	}
	return nil
}

// explainProtocol adds to an error about an answer that is not Redis's that the server may be another one.
func explainProtocol(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "redis: invalid reply"), strings.Contains(text, "redis: can't parse"):
		return fmt.Errorf("%w; is it Redis? The server answers in another protocol", err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w; is it Redis? The server closed the connection", err)
	}
	return err
}

// Close implements sink.Sink.
func (s *Sink) Close() error { return s.servers.Close() }
