package redissink

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Mode is what an event becomes in Redis.
type Mode string

// The modes.
const (
	Stream  Mode = "stream"  // an entry of a stream, at most once
	List    Mode = "list"    // RPUSH of its JSON envelope, at least once
	Publish Mode = "publish" // PUBLISH of its JSON envelope, to the current subscribers
	Sidekiq Mode = "sidekiq" // a Sidekiq job, at least once
	Asynq   Mode = "asynq"   // an asynq task, added at most once
)

// Config is the configuration of a Sink.
type Config struct {
	// URL is required. It contains user and password, percent-encoded:
	//
	//	redis://[user:password@]host[:6379][/db]
	//	redis+cluster://[user:password@]host[:6379],host...
	//	redis+sentinel://[user:password@]host[:26379],host.../MASTER[/db]
	//
	// and with TLS rediss://, rediss+cluster:// and rediss+sentinel://. User and password are for the data
	// servers, not for the sentinels.
	URL string
	// SentinelPassword is the password of the sentinels; "" means none.
	SentinelPassword string
	// TLS is for all connections, also those to sentinels. If it is not zero, they use TLS under every scheme.
	TLS sink.TLS
	// Mode defaults to Stream.
	Mode Mode
	// Stream, List and Channel are the templates of the address, each for its mode. All default to "{topic}".
	// See sink.ParseTemplate; other braces are a Redis hash tag.
	Stream, List, Channel string
	// Queue and Class are the templates of the queue, by default "default", and of the class that runs an
	// event (asynq: the task's type), by default "{topic}".
	Queue, Class string
	// Retry is what a Sidekiq job says of its retries: "true", "false", a number, or "class" for what its class says. "" means "true".
	Retry string
	// MaxLen trims a stream to about that many entries after each batch, never to fewer. 0 means no trimming.
	MaxLen int64
	// DedupeWindow is how long a stream or an asynq queue remembers a group_id, at least 1ms; 0 means 1h.
	DedupeWindow time.Duration
	// WaitReplicas is how many replicas must have a batch before it counts as delivered (WAIT). Not with
	// Publish.
	WaitReplicas int
	// WaitTimeout is how long to wait for the replicas, at least 1ms; 0 means 1s.
	WaitTimeout time.Duration
	// ResendWithin is how long after its first Send an event may be sent again. Warnings compares
	// DedupeWindow with it. 0 means no comparison.
	ResendWithin time.Duration
}

func (c Config) withDefaults() Config {
	if c.Mode == "" {
		c.Mode = Stream
	}
	if c.Retry == "" {
		c.Retry = "true"
	}
	if c.Queue == "" {
		c.Queue = "default"
	}
	for _, template := range []*string{&c.Stream, &c.List, &c.Channel, &c.Class} {
		if *template == "" {
			*template = "{topic}"
		}
	}
	if c.DedupeWindow == 0 {
		c.DedupeWindow = time.Hour
	}
	if c.WaitTimeout == 0 {
		c.WaitTimeout = time.Second
	}
	return c
}

// validate lists every error but those of the URL and the templates.
func (c Config) validate() error {
	var errs []error
	invalid := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	switch c.Mode {
	case Stream, List, Sidekiq, Asynq:
	case Publish:
		if c.WaitReplicas > 0 {
			invalid("wait_replicas is %d; expected 0 with mode publish, because replicas do not store messages", c.WaitReplicas)
		}
	default:
		invalid("mode is %q; expected stream, list, publish, sidekiq or asynq", c.Mode)
	}
	if n, err := strconv.ParseUint(c.Retry, 10, 31); !slices.Contains([]string{"true", "false", retryOfClass}, c.Retry) && (err != nil || strconv.FormatUint(n, 10) != c.Retry) {
		invalid("retry is %q; expected true, false, class or a number", c.Retry)
	}
	if c.MaxLen < 0 {
		invalid("maxlen is %d; expected 0 or more", c.MaxLen)
	}
	if c.DedupeWindow < time.Millisecond {
		invalid("dedupe_window is %v; expected at least 1ms", c.DedupeWindow)
	}
	if c.WaitReplicas < 0 {
		invalid("wait_replicas is %d; expected 0 or more", c.WaitReplicas)
	}
	if c.WaitTimeout < time.Millisecond {
		invalid("wait_timeout is %v; expected at least 1ms", c.WaitTimeout)
	}
	return errors.Join(errs...)
}

// hasMarkers reports whether markers remember which group_ids were sent.
func (m Mode) hasMarkers() bool { return m == Stream || m == Asynq }

// usesQueues reports whether the address is a queue, whose name must be registered first.
func (m Mode) usesQueues() bool { return m == Sidekiq || m == Asynq }

// template is the template of the address.
func (c Config) template() (sink.Template, error) {
	switch c.Mode {
	case List:
		return sink.ParseTemplate(c.List, true)
	case Publish:
		return sink.ParseTemplate(c.Channel, true)
	case Sidekiq, Asynq:
		return sink.ParseTemplate(c.Queue, true)
	}
	template, err := sink.ParseTemplate(c.Stream, true)
	if err != nil {
		return template, err
	}
	// An error for an ordinary topic and key is an error of the template.
	key := "k"
	stream, err := template.Address(&outbox.Event{Topic: "t", Key: &key})
	if err == nil {
		_, err = streamMarkerPrefix(stream)
	}
	if err != nil {
		err = fmt.Errorf("stream is %q: %w", c.Stream, err)
	}
	return template, err
}
