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
	// refusedBatches and refusedEvents are of how many batches, and of how many events of each, the topics are read.
	refusedBatches, refusedEvents = 5, 100
	// maxShownTopics is how many topics are named.
	maxShownTopics = 3
)

// refusedTopics remembers which topics the events have that a sink refuses while it refuses everything. It is safe for concurrent use.
type refusedTopics struct {
	mu  sync.Mutex
	all map[seriesKey]refusedTopic
}

type refusedTopic struct {
	text string
	next time.Time // when they are read again
}

func (t *refusedTopics) get(key seriesKey) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[key].text
}

// keep forgets what is not refused any more, and returns the first sink that is due.
func (t *refusedTopics) keep(refusing []seriesKey, now time.Time) (due seriesKey, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.all {
		if !slices.Contains(refusing, key) {
			delete(t.all, key)
		}
	}
	for _, key := range refusing {
		if !now.Before(t.all[key].next) {
			return key, true
		}
	}
	return due, false
}

func (t *refusedTopics) set(key seriesKey, one refusedTopic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[seriesKey]refusedTopic{}
	}
	t.all[key] = one
}

// readRefusedTopics looks at what waits for a sink that refuses everything: for one at a time, since the figures of all pipelines wait for it.
func (s *Console) readRefusedTopics(ctx context.Context) {
	var refusing []seriesKey
	of := map[seriesKey]admin.Pipeline{}
	for _, p := range s.config.Source.Pipelines() {
		for _, n := range p.NotReady() {
			if n.Class == buffer.NotReadyRefusing && n.Kind != buffer.KindSome && p.Batches != nil {
				key := seriesKey{n.Pipeline, n.Sink}
				refusing, of[key] = append(refusing, key), p
			}
		}
	}
	key, due := s.refusedTopics.keep(refusing, time.Now())
	if !due {
		return
	}
	p, began := of[key], time.Now()
	limited, cancel := context.WithTimeout(ctx, deadCauseTimeout)
	topics, events := readTopics(limited, p.Batches, key.sink)
	cancel()
	s.refusedTopics.set(key, refusedTopic{s.config.Redact(refusedText(topics, events)), time.Now().Add(max(deadCauseEvery, deadCauseShare*time.Since(began)))})
}

// readTopics returns the topics of the newest batches that a sink refused, sorted, and how many events were looked at.
func readTopics(ctx context.Context, batches buffer.LiveBatches, sink string) (topics []string, events int) {
	live, _, err := batches.ListBatches(ctx, maxBatches)
	if err != nil {
		return nil, 0
	}
	left := refusedBatches
	for i := range live {
		b := &live[i]
		if left == 0 {
			break
		}
		if b.Hook || b.Error == "" || b.Sink != sink && (sink != "" || b.Sink != "default") {
			continue
		}
		lease, err := batches.BatchEvents(ctx, b.GroupID, refusedEvents)
		if err != nil || lease == nil || lease.NotRead != nil {
			continue
		}
		left--
		for k := range lease.Events {
			events++
			if topic := lease.Events[k].Topic; !slices.Contains(topics, topic) {
				topics = append(topics, topic)
			}
		}
	}
	slices.Sort(topics)
	return topics, events
}

// refusedText says which topics some refused events have.
func refusedText(topics []string, events int) string {
	if events == 0 {
		return ""
	}
	of := fmt.Sprintf("%d refused events that wait were looked at: they", events)
	if events == 1 {
		of = "1 refused event that waits was looked at: it"
	}
	names := make([]string, 0, maxShownTopics)
	for _, topic := range topics[:min(len(topics), maxShownTopics)] {
		names = append(names, visible([]byte(shorten(topic, maxShownTopic))))
	}
	switch last := len(names) - 1; {
	case len(topics) == 1 && events == 1:
		return of + " is of topic " + names[0] + "."
	case len(topics) == 1:
		return of + " are all of topic " + names[0] + "."
	case len(topics) > maxShownTopics:
		return fmt.Sprintf("%s are of %d topics.", of, len(topics))
	default:
		return of + " are of topics " + strings.Join(names[:last], ", ") + " and " + names[last] + "."
	}
}
