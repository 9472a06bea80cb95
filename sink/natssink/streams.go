package natssink

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// stream is what a connection knows of a stream. last, replaced and rests are
// guarded by the connection's mutex.
type stream struct {
	name     string
	subjects []string
	created  time.Time
	fast     bool // it takes fast batches

	last     uint64    // the highest sequence heard of
	replaced bool      // it is gone, another one has its name
	rests    time.Time // until then it is sent no fast batches
}

// knowledge is what a connection knows of the streams that take the sink's subjects.
// It is learnt when it is first wanted, and once more when it was wrong, or is of
// little use and old.
type knowledge struct {
	streams   []*stream
	bySubject map[string]*stream // what was looked up; has nil for subjects of none
	asked     time.Time
	asking    bool
	wrong     bool
}

const (
	// learnTime is how long a Send waits to learn of the streams; nothing depends on
	// it but speed.
	learnTime = 2 * time.Second
	// askAgain is after how long the streams are asked for again where not all events
	// go in fast batches.
	askAgain = 5 * time.Minute
	// correctAfter is the same where what is known has turned out to be wrong.
	correctAfter = time.Second
	// restTime is how long a stream that did not get all of a fast batch is sent none.
	restTime = 10 * time.Second
	// maxLookups bounds bySubject: a subject may have a key in it.
	maxLookups = 10_000
)

// streamsOf tells for each subject which stream to send fast batches to; nil: none.
func (s *Sink) streamsOf(ctx context.Context, c *connection, subjects []string) []*stream {
	c.mu.Lock()
	found, all := c.known.lookUp(subjects)
	ask := !all && c.known.due()
	c.known.asking = c.known.asking || ask
	c.mu.Unlock()
	if !ask {
		return found
	}
	s.learn(ctx, c)
	c.mu.Lock()
	defer c.mu.Unlock()
	found, _ = c.known.lookUp(subjects)
	return found
}

// learn asks the server for the streams; asking is set. Others send one by one as
// long as that takes.
func (s *Sink) learn(ctx context.Context, c *connection) {
	limit := learnTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	infos, err := c.listStreams(ctx, pattern(s.subject))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.learn(infos)
	c.known.wrong = errors.Is(err, context.Canceled) // the Send was, so it says nothing
}

// learn takes over what the server said.
func (k *knowledge) learn(infos []*jetstream.StreamInfo) {
	before := k.streams
	*k = knowledge{bySubject: map[string]*stream{}, asked: time.Now()}
	for _, info := range infos {
		c := &info.Config
		now := &stream{
			name: c.Name, subjects: c.Subjects, created: info.Created, last: info.State.LastSeq,
			fast: c.AllowBatchPublish && !c.NoAck && !c.Sealed,
		}
		for _, s := range before {
			if s.name == now.name && s.created.Equal(now.created) {
				now.rests, now.last = s.rests, max(s.last, now.last)
			}
		}
		k.streams = append(k.streams, now)
	}
}

func (k *knowledge) due() bool {
	switch since := time.Since(k.asked); {
	case k.asking:
		return false
	case k.wrong:
		return since >= correctAfter
	default:
		return k.asked.IsZero() || since >= askAgain
	}
}

// lookUp tells which stream to send fast batches to, by index, and whether every
// subject has one.
func (k *knowledge) lookUp(subjects []string) (found []*stream, all bool) {
	found, all = make([]*stream, len(subjects)), true
	now := time.Now()
	for i, subject := range subjects {
		if subject == "" {
			continue
		}
		s, known := k.bySubject[subject]
		if !known && k.bySubject != nil {
			s = k.find(subject)
			if len(k.bySubject) >= maxLookups {
				clear(k.bySubject)
			}
			k.bySubject[subject] = s
		}
		if s == nil || !s.fast {
			all = false
		} else if now.After(s.rests) {
			found[i] = s
		}
	}
	return found, all && !k.wrong
}

func (k *knowledge) find(subject string) *stream {
	for _, s := range k.streams {
		for _, filter := range s.subjects {
			if covers(filter, subject) {
				return s
			}
		}
	}
	return nil
}

// covers tells whether a stream's subject, which may have wildcards, takes the subject.
func covers(filter, subject string) bool {
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

// heed draws the conclusions from a fast batch that is over.
func (k *knowledge) heed(s *fastBatch) {
	api, refused := errors.AsType[*jetstream.APIError](s.why)
	switch {
	case s.stream.replaced, errors.Is(s.why, errNoStream), errors.Is(s.why, errStrangeAck), refused && api.ErrorCode == codeFastDisabled:
		k.forget()
	case errors.Is(s.why, errGap), refused && (api.ErrorCode == codeFastUnknown || api.ErrorCode == codeFastTooMany ||
		api.ErrorCode == codeFastPattern || api.ErrorCode == codeFastID):
		s.stream.rests = time.Now().Add(restTime)
	}
}

// forget is knowledge.forget, and what is wrong may be just that there is no stream.
func (c *connection) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.forget()
}

// forget has the streams asked for again, and nothing sent in fast batches until then.
func (k *knowledge) forget() {
	k.streams, k.wrong = nil, true
	clear(k.bySubject)
}

// remains tells whether a stream is still the one that it was, as far as one can
// know.
func (s *Sink) remains(ctx context.Context, c *connection, was *stream) bool {
	c.mu.Lock()
	gone := was.replaced
	c.mu.Unlock()
	if gone {
		return false
	}
	infos, err := c.listStreams(ctx, pattern(s.subject))
	if err != nil {
		return true
	}
	for _, info := range infos {
		if info.Config.Name == was.name {
			return info.Created.Equal(was.created)
		}
	}
	return false
}
