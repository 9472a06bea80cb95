package routing

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestDivide: every event is in one delivery of each sink that takes it, and in no other.
func TestDivide(t *testing.T) {
	t.Parallel()
	patterns := []string{"a", "a.*", "a.#", "*.b", "#"}
	rapid.Check(t, func(t *rapid.T) {
		var routes []buffer.Route
		for i := range rapid.IntRange(0, 4).Draw(t, "sinks") {
			routes = append(routes, buffer.Route{
				Sink: fmt.Sprint("s", i), BatchSize: rapid.IntRange(1, 5).Draw(t, "batch size"),
				Match: rapid.SliceOfN(rapid.SampledFrom(patterns), 1, 3).Draw(t, "match"),
			})
		}
		table, err := NewTable(routes)
		if err != nil {
			t.Fatal(err)
		}
		events := make([]outbox.Event, rapid.IntRange(0, 20).Draw(t, "events"))
		for i := range events {
			events[i] = outbox.Event{
				ID: int64(i + 1), Topic: rapid.SampledFrom([]string{"a", "a.b", "c.b", "a.b.c", "x"}).Draw(t, "topic"),
				CreatedAt: time.Unix(int64(rapid.IntRange(0, 100).Draw(t, "created_at")), 0),
			}
		}
		deliveries, unmatched := table.Divide(events)
		for _, e := range events {
			takers := table.takers(e.Topic)
			if slices.Contains(unmatched, e.ID) != (len(takers) == 0) {
				t.Fatalf("event %d of topic %s is unmatched: %v, takers %v", e.ID, e.Topic, unmatched, takers)
			}
			for i, r := range routes {
				n := 0
				for _, d := range deliveries {
					if d.Sink == r.Sink && slices.Contains(d.IDs, e.ID) {
						n++
						if len(takers) > 1 && !d.Shared {
							t.Fatalf("event %d is shared, its delivery is not", e.ID)
						}
						if e.CreatedAt.Before(d.OldestAt) {
							t.Fatalf("event %d is older than its delivery says", e.ID)
						}
					}
				}
				if want := slices.Contains(takers, i); n > 1 || (n == 1) != want {
					t.Fatalf("event %d of topic %s is in %d deliveries of sink %s", e.ID, e.Topic, n, r.Sink)
				}
			}
		}
		groups := map[string]bool{}
		for _, d := range deliveries {
			i := slices.IndexFunc(routes, func(r buffer.Route) bool { return r.Sink == d.Sink })
			if len(d.IDs) == 0 || len(d.IDs) > routes[i].BatchSize || !slices.IsSorted(d.IDs) || groups[d.GroupID.String()] {
				t.Fatalf("a delivery of sink %s with batch size %d has ids %v", d.Sink, routes[i].BatchSize, d.IDs)
			}
			groups[d.GroupID.String()] = true
		}
	})
}
