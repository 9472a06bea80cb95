package redissink

import (
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Mode is what becomes of an event in Redis.
type Mode string

// The modes.
const (
	Stream  Mode = "stream"  // an entry of a stream, at most once
	List    Mode = "list"    // RPUSH of its JSON envelope, at least once
	Publish Mode = "publish" // PUBLISH of its JSON envelope, to whoever listens
	Sidekiq Mode = "sidekiq" // what Sidekiq runs, at least once
	Asynq   Mode = "asynq"   // a task that asynq runs, added at most once
)

// Config says which Redis, and what an event becomes there.
type Config struct {
	// URL is where Redis is; required. User and password are part of it, percent
	// encoded:
	//
	//	redis://[user:password@]host[:6379][/db]     rediss:// is with TLS
	//	redis+cluster://[user:password@]host[:6379],host...
	//	redis+sentinel://[user:password@]host[:26379],host.../MASTER[/db]
	//
	// User and password are for the servers that hold data, not for sentinels.
	URL string
	// Mode defaults to Stream.
	Mode Mode
	// Stream, List and Channel make the address, each for its mode; all default
	// to "{topic}". See sink.ParseTemplate; other braces are a Redis hash tag.
	Stream, List, Channel string
	// Queue and Class are templates as well: the queue, "default" when "", and the class
	// that runs an event (asynq: its task's type), "{topic}" when "".
	Queue, Class string
	// MaxLen is about how many entries a stream is trimmed to after each batch,
	// never less; 0: it is not trimmed.
	MaxLen int64
	// DedupeWindow is how long a stream, or a queue of asynq's, remembers a group_id,
	// at least 1ms; 0 means 1h.
	DedupeWindow time.Duration
	// WaitReplicas is how many replicas must have a batch before it counts as
	// delivered (WAIT), for all modes but Publish.
	WaitReplicas int
	// WaitTimeout is how long to wait for them, at least 1ms; 0 means 1s.
	WaitTimeout time.Duration
	// ResendWithin is how long after it was first sent an event may be sent again;
	// Warnings compares DedupeWindow with it. 0: it does not.
	ResendWithin time.Duration
}

func (c Config) withDefaults() Config {
	if c.Mode == "" {
		c.Mode = Stream
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

// validate lists every mistake but those of the URL and the template.
func (c Config) validate() error {
	var wrong []error
	say := func(format string, a ...any) { wrong = append(wrong, fmt.Errorf(format, a...)) }
	switch c.Mode {
	case Stream, List, Sidekiq, Asynq:
	case Publish:
		if c.WaitReplicas > 0 {
			say("wait_replicas is %d, but what is published reaches no replica's memory: it goes with the other modes", c.WaitReplicas)
		}
	default:
		say("mode is %q, one of stream, list, publish, sidekiq, asynq was expected", c.Mode)
	}
	if c.MaxLen < 0 {
		say("maxlen is %d, 0 or more was expected", c.MaxLen)
	}
	if c.DedupeWindow < time.Millisecond {
		say("dedupe_window is %v, at least 1ms was expected", c.DedupeWindow)
	}
	if c.WaitReplicas < 0 {
		say("wait_replicas is %d, 0 or more was expected", c.WaitReplicas)
	}
	if c.WaitTimeout < time.Millisecond {
		say("wait_timeout is %v, at least 1ms was expected", c.WaitTimeout)
	}
	return errors.Join(wrong...)
}

// remembers tells whether what was sent is remembered, by markers.
func (m Mode) remembers() bool { return m == Stream || m == Asynq }

// queues tells whether the address is a queue, and its name to be made known first.
func (m Mode) queues() bool { return m == Sidekiq || m == Asynq }

// template is the mode's.
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
	// What is wrong with an ordinary topic's stream is wrong with the template.
	key := "k"
	stream, err := template.Address(&outbox.Event{Topic: "t", Key: &key})
	if err == nil {
		_, err = markerPrefix(stream)
	}
	if err != nil {
		err = fmt.Errorf("stream is %q: %w", c.Stream, err)
	}
	return template, err
}
