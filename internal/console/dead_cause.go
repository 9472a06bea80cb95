package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// deadCauseOf is how many of the newest dead letters say what a pipeline's have in common.
	deadCauseOf = 100
	// deadCauseEvery is how often they are read while there are new ones, and deadCauseShare at most the share of the time that the database takes for it: it
	// looks at all that are open.
	deadCauseEvery, deadCauseShare = 10 * time.Second, 100
	// deadCauseTimeout bounds one look; the live figures of all pipelines wait for it.
	deadCauseTimeout = time.Second
	// maxShownTopic is how many bytes of a topic a problem names.
	maxShownTopic = 100
)

// deadCauses remembers what the dead letters of each pipeline have in common. It is safe for concurrent use.
type deadCauses struct {
	mu  sync.Mutex
	all map[string]deadCause
}

type deadCause struct {
	dead int64 // how many there were
	text string
	// error is the most frequent one of the most frequent topic.
	error string
	// began is when the oldest that is open died; zero if it is not known.
	began time.Time
	next  time.Time
}

// get says what the dead letters of a pipeline have in common; its texts are "" if it is not known.
func (c *deadCauses) get(pipeline string) deadCause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[pipeline]
}

// due reports whether the dead letters of a pipeline have to be looked at.
func (c *deadCauses) due(p *admin.PipelineReport, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.all[p.Name]
	if p.Dead == 0 {
		delete(c.all, p.Name)
	}
	return p.Dead > 0 && p.Dead != known.dead && !now.Before(known.next)
}

// readDeadCauses looks at the newest dead letters of the pipelines that have others than before: at those of one pipeline at a time, since the figures of all wait
// for it.
func (s *Console) readDeadCauses(ctx context.Context, report *admin.Report) {
	var newer *admin.PipelineReport
	for i := range report.Pipelines {
		if p := &report.Pipelines[i]; s.deadCauses.due(p, time.Now()) && (newer == nil || s.deadCauses.get(newer.Name).text != "" && s.deadCauses.get(p.Name).text == "") {
			newer = p
		}
	}
	if newer == nil {
		return
	}
	for _, p := range s.config.Source.Pipelines() {
		if p.Name != newer.Name {
			continue
		}
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, deadCauseTimeout)
		events, err := p.Store.ListNewestDead(limited, buffer.DeadFilter{}, deadCauseOf)
		cancel()
		cause := deadCause{dead: newer.Dead, next: time.Now().Add(max(deadCauseEvery, deadCauseShare*time.Since(began)))}
		if err == nil {
			cause.text, cause.error = deadCauseText(events, newer.Dead)
			cause.began = s.oldestDied(ctx, &p, events)
			cause.text, cause.error = visible([]byte(s.config.Redact(cause.text))), s.config.Redact(cause.error)
		} // otherwise the page of the dead letters says it
		s.deadCauses.mu.Lock()
		s.deadCauses.all[p.Name] = cause
		s.deadCauses.mu.Unlock()
	}
}

// oldestDied is when the oldest open dead letter died. Of more than deadCauseOf that is the older one of the newest and of the one with the lowest event id.
func (s *Console) oldestDied(ctx context.Context, p *admin.Pipeline, newest []buffer.DeadEvent) (at time.Time) {
	if len(newest) == deadCauseOf {
		limited, cancel := context.WithTimeout(ctx, deadCauseTimeout)
		defer cancel()
		first, err := p.Store.ListDead(limited, buffer.DeadFilter{}, nil, 1)
		if err != nil {
			return at
		}
		newest = append(slices.Clone(newest), first...)
	}
	for i := range newest {
		if at.IsZero() || newest[i].DiedAt.Before(at) {
			at = newest[i].DiedAt
		}
	}
	return at
}

// deadCauseText says what the newest of dead letters have in common: the most frequent topic, and the most frequent error of it, which common is.
func deadCauseText(newest []buffer.DeadEvent, total int64) (text, common string) {
	topics := map[string]int{}
	top := ""
	for i := range newest {
		topic := newest[i].Topic
		if topics[topic]++; topics[topic] > topics[top] {
			top = topic
		}
	}
	var errors admin.ErrorGroups
	for i := range newest {
		if newest[i].Topic == top {
			errors.Add(&newest[i])
		}
	}
	groups := errors.Sorted()
	if len(groups) == 0 {
		return "", ""
	}
	of, n := "", topics[top]
	switch all := n == len(newest); {
	case all && total <= 1:
		of = "Topic"
	case all && total <= deadCauseOf:
		of = "All of topic"
	case all:
		of = fmt.Sprintf("The newest %d are all of topic", n)
	case total <= deadCauseOf:
		of = fmt.Sprintf("%d of topic", n)
	default:
		of = fmt.Sprintf("%d of the newest %d are of topic", n, len(newest))
	}
	text = fmt.Sprintf("%s %s: %s", of, shorten(top, maxShownTopic), shorten(strings.TrimSpace(groups[0].Error), maxShownError))
	if more := len(groups) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d other %s)", more, map[bool]string{true: "errors", false: "error"}[more > 1])
	}
	return text, groups[0].Error
}
