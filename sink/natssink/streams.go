package natssink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink/internal/fastbatch"
)

const streamListSubject = "$JS.API.STREAM.LIST"

// listStreams lists the streams whose subjects overlap the template's. The error wraps
// nats.ErrPermissionViolation when the user may not list them.
func (c *connection) listStreams(ctx context.Context, subject sink.Template) ([]*jetstream.StreamInfo, error) {
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, err
	}
	var streams []*jetstream.StreamInfo
	err = c.ask(ctx, streamListSubject, func(ctx context.Context) error {
		list := js.ListStreams(ctx, jetstream.WithStreamListSubject(wildcard(subject)))
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

// wildcard returns a subject that matches at least every subject of the template. A topic or key may contain
// dots, so from the first placeholder on a subject may have more tokens than the template, but not fewer.
func wildcard(t sink.Template) string {
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

// matches reports whether a stream's subject, which may have wildcards, matches the subject.
func matches(filter, subject string) bool {
	for {
		want, filters, more := strings.Cut(filter, ".")
		if want == ">" {
			return true
		}
		got, subjects, left := strings.Cut(subject, ".")
		switch {
		case want != "*" && want != got, more != left:
			return false
		case !more:
			return true
		}
		filter, subject = filters, subjects
	}
}

// stream is what a connection knows of a stream. pausedUntil is guarded by the connection's mutex.
type stream struct {
	name     string
	subjects []string
	fast     bool // it takes fast batches

	pausedUntil time.Time
}

// streamCache is what a connection knows of the streams that take the sink's subjects. The server is asked
// when a batch first needs it, and again after it proved wrong or when it is old.
type streamCache struct {
	streams   []*stream
	bySubject map[string]*stream // nil for a subject that no stream takes
	loadedAt  time.Time
	loading   bool
	stale     bool
}

const (
	// loadTimeout is how long a Send waits for the streams. Without them it publishes singly.
	loadTimeout = 2 * time.Second
	// reloadAfter is how old the streams may be while not all events go in fast batches.
	reloadAfter = 5 * time.Minute
	// reloadStaleAfter is the same after they proved wrong.
	reloadStaleAfter = time.Second
	// pauseAfterFailure is how long a stream that missed part of a fast batch gets no more of them.
	pauseAfterFailure = 10 * time.Second
	// maxLookups bounds streamCache.bySubject, because subjects may contain keys.
	maxLookups = 10_000
)

// streamsOf returns, for each subject, the stream to send fast batches to; nil: none.
func (s *Sink) streamsOf(ctx context.Context, c *connection, subjects []string) []*stream {
	c.mu.Lock()
	found, all := c.streams.lookUp(subjects)
	load := !all && c.streams.due()
	c.streams.loading = c.streams.loading || load
	c.mu.Unlock()
	if !load {
		return found
	}
	s.loadStreams(ctx, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	found, _ = c.streams.lookUp(subjects)
	return found
}

// loadStreams asks the server for the streams. The caller has set loading, so that other Sends publish singly
// meanwhile.
func (s *Sink) loadStreams(ctx context.Context, c *connection) {
	timeout := loadTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	infos, err := c.listStreams(ctx, s.subject)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams.replace(infos)
	c.streams.stale = errors.Is(err, context.Canceled) // the Send was cancelled, so the list is not the server's
}

func (k *streamCache) replace(infos []*jetstream.StreamInfo) {
	before := k.streams
	*k = streamCache{bySubject: map[string]*stream{}, loadedAt: time.Now()}
	for _, info := range infos {
		c := &info.Config
		now := &stream{
			name: c.Name, subjects: c.Subjects,
			fast: c.AllowBatchPublish && !c.NoAck && !c.Sealed,
		}
		for _, s := range before {
			if s.name == now.name {
				now.pausedUntil = s.pausedUntil
			}
		}
		k.streams = append(k.streams, now)
	}
}

// due reports whether it is time to load the streams again.
func (k *streamCache) due() bool {
	switch age := time.Since(k.loadedAt); {
	case k.loading:
		return false
	case k.stale:
		return age >= reloadStaleAfter
	default:
		return k.loadedAt.IsZero() || age >= reloadAfter
	}
}

// lookUp returns, by index, the stream to send fast batches to. all reports whether the stream of every
// subject takes fast batches.
func (k *streamCache) lookUp(subjects []string) (found []*stream, all bool) {
	found, all = make([]*stream, len(subjects)), true
	now := time.Now()
	for i, subject := range subjects {
		if subject == "" {
			continue
		}
		s, cached := k.bySubject[subject]
		if !cached && k.bySubject != nil {
			s = k.find(subject)
			if len(k.bySubject) >= maxLookups {
				clear(k.bySubject)
			}
			k.bySubject[subject] = s
		}
		if s == nil || !s.fast {
			all = false
		} else if now.After(s.pausedUntil) {
			found[i] = s
		}
	}
	return found, all && !k.stale
}

func (k *streamCache) find(subject string) *stream {
	for _, s := range k.streams {
		for _, filter := range s.subjects {
			if matches(filter, subject) {
				return s
			}
		}
	}
	return nil
}

// update draws conclusions from a fast batch that ended with err, if any.
func (k *streamCache) update(s *stream, err error) {
	switch {
	case errors.Is(err, fastbatch.ErrUnsupported):
		k.invalidate()
	case errors.Is(err, fastbatch.ErrInterrupted):
		s.pausedUntil = time.Now().Add(pauseAfterFailure)
	}
}

// invalidate has the streams loaded again. Until then nothing goes in fast batches.
func (k *streamCache) invalidate() {
	k.streams, k.stale = nil, true
	clear(k.bySubject)
}
