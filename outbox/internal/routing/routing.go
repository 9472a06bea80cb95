// Package routing decides which sinks of a buffer get which events of a claim.
package routing

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Table is a buffer's routes. It is safe for concurrent use.
type Table []route

type route struct {
	buffer.Route
	topics buffer.Patterns
}

// NewTable returns the table of routes; the error is about a pattern.
func NewTable(routes []buffer.Route) (Table, error) {
	t := make(Table, len(routes))
	for i, r := range routes {
		topics, err := buffer.ParsePatterns(r.Match)
		if err != nil {
			return nil, fmt.Errorf("sink %s: %w", r.Sink, err)
		}
		t[i] = route{r, topics}
	}
	return t, nil
}

// Delivery is a batch of one sink.
type Delivery struct {
	GroupID uuid.UUID
	Sink    string
	// IDs are in ascending order, OldestAt is since when the oldest waits.
	IDs      []int64
	OldestAt time.Time
	// Shared reports whether another sink takes any of these events.
	Shared bool
	// BatchSize is how many ids a batch of the sink may have.
	BatchSize int
}

// Of returns the delivery's events, in a slice of its own.
func (d *Delivery) Of(all []outbox.Event) []outbox.Event {
	events := make([]outbox.Event, 0, len(d.IDs))
	for i := range all {
		if len(events) < len(d.IDs) && all[i].ID == d.IDs[len(events)] {
			events = append(events, all[i])
		}
	}
	return events
}

// Divide returns the deliveries of events in id order, and the ids of those that no sink takes.
func (t Table) Divide(events []outbox.Event) (deliveries []Delivery, unmatched []int64) {
	var (
		open   = make([]int, len(t)) // the delivery that a sink's next event belongs to, from 1; 0: none
		takers = map[string][]int{}  // by topic
		last   []int
	)
	for i := range events {
		e := &events[i]
		if i == 0 || e.Topic != events[i-1].Topic {
			var known bool
			if last, known = takers[e.Topic]; !known {
				last = t.takers(e.Topic)
				takers[e.Topic] = last
			}
		}
		if len(last) == 0 {
			unmatched = append(unmatched, e.ID)
		}
		for _, sink := range last {
			if n := open[sink]; n == 0 || len(deliveries[n-1].IDs) >= t[sink].BatchSize {
				deliveries = append(deliveries, Delivery{GroupID: buffer.NewGroupID(), Sink: t[sink].Sink, OldestAt: e.Waiting(), BatchSize: t[sink].BatchSize})
				open[sink] = len(deliveries)
			}
			d := &deliveries[open[sink]-1]
			d.IDs = append(d.IDs, e.ID)
			d.Shared = d.Shared || len(last) > 1
			if e.Waiting().Before(d.OldestAt) {
				d.OldestAt = e.Waiting()
			}
		}
	}
	return deliveries, unmatched
}

// takers returns the indexes of the sinks that take a topic.
func (t Table) takers(topic string) (sinks []int) {
	for i := range t {
		if t[i].topics.Match(topic) {
			sinks = append(sinks, i)
		}
	}
	return sinks
}
