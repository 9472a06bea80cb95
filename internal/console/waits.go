package console

import (
	"fmt"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// waitGroup is what waits of a pipeline, or for one of its several sinks.
type waitGroup struct {
	Sink string
	// Summary counts everything, and Lines are the reasons: together they are the batches of Summary.
	Summary string
	Lines   []string
}

// waitGroups are what waits, without what waits for nothing.
func waitGroups(p *admin.PipelineReport) (all []waitGroup) {
	add := func(sink string, waiting, pending int64, waits []admin.WaitReport, untried *admin.WaitReport) {
		if waiting == 0 && len(waits) == 0 {
			return
		}
		all = append(all, newWaitGroup(sink, waiting, pending, waits, untried))
	}
	if p.Sinks == nil {
		add("", p.Batches.Waiting, p.Pending, p.Waits, p.Untried)
	}
	for i := range p.Sinks {
		one := &p.Sinks[i]
		name := one.Name
		if name == buffer.Unrouted {
			name = "a sink"
		}
		add(name, one.Batches.Waiting, one.Pending, one.Waits, one.Untried)
	}
	return all
}

func newWaitGroup(sink string, waiting, pending int64, waits []admin.WaitReport, untried *admin.WaitReport) waitGroup {
	g := waitGroup{Sink: sink}
	left := waiting
	var events int64
	known := true // how many events are in all of them
	for _, w := range waits {
		left -= w.Batches
		events += w.Events
		g.Lines = append(g.Lines, w.Text())
	}
	if untried != nil {
		left -= untried.Batches
		events += untried.Events
		g.Lines = append(g.Lines, fmt.Sprintf("%s (%s), not tried yet: a relay has claimed the events, and sends them once it can.", batchesWait(untried.Batches), countText(int(untried.Events), "event")))
	}
	if left > 0 {
		known = false
		g.Lines = append(g.Lines, batchesWait(left)+", too: the page Batches says why.")
	}
	switch {
	case !known:
		g.Summary = fmt.Sprintf("%s. %s.", batchesWait(waiting), pendingText(pending))
	case pending > events:
		g.Summary = fmt.Sprintf("%s, with %s. %s: the others are being sent, or no relay has claimed them yet.", batchesWait(waiting), countText(int(events), "event"), pendingText(pending))
	default:
		g.Summary = fmt.Sprintf("%s, with %s.", batchesWait(waiting), countText(int(events), "event"))
	}
	return g
}

func pendingText(pending int64) string {
	return admin.Pending(pending) + map[bool]string{true: " event is pending", false: " events are pending"}[pending == 1]
}

func batchesWait(n int64) string {
	if n == 1 {
		return "1 batch waits"
	}
	return admin.Count(n) + " batches wait"
}
