package console

import (
	"errors"
	"slices"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// addNotReady says what is not ready in this process.
func (f *finder) addNotReady() {
	for i := range f.reasons {
		n := &f.reasons[i]
		if n.Kind == buffer.KindStarting || f.notReady[n.Pipeline] && n.Class == buffer.NotReadyDatabase {
			continue
		}
		f.notReady[n.Pipeline+"/"+n.Sink] = true
		if f.isLocked(n) {
			continue
		}
		if n.Class == buffer.NotReadyDatabase {
			if why := f.databaseError(n.Err); why.command != "" {
				f.all = append(f.all, f.databaseProblem(n.Pipeline, why.text, why))
				continue
			}
		}
		f.all = append(f.all, f.notReadyProblem(n))
	}
}

// isLocked reports whether a transaction with locks is the cause of what is not ready.
func (f *finder) isLocked(n *admin.NotReadyReason) bool {
	p, table := f.reportOf(n.Pipeline), f.tableLocks[n.Pipeline] != nil
	switch {
	case n.Kind == buffer.NotReadyStalled:
		return table || p != nil && p.LockedBy != nil
	case n.Class == buffer.NotReadyDatabase:
		return table && !errors.Is(n.Err, buffer.ErrNoWrites)
	}
	return false
}

func (f *finder) notReadyProblem(n *admin.NotReadyReason) problem {
	of := problemOf(n.Kind, n.Class)
	one := problem{
		Pipeline: n.Pipeline, Sink: n.Sink, Server: f.servers[n.Pipeline+"/"+n.Sink], Title: of.title, Detail: f.config.Redact(n.Err.Error()), Alone: of.alone, Do: of.do, Cause: causeOf(n.Class),
		Link: pipelineLink(n.Pipeline) + waitsAnchor, LinkText: "what waits",
	}
	switch {
	case n.Class == buffer.NotReadyDatabase, n.Class == buffer.NotReadyStalled:
		one.Link, one.LinkText = "doctor", "what doctor finds"
	case n.Class == buffer.NotReadySink && f.othersDeliver(n.Pipeline, n.Sink):
		one.Warning, one.Title = true, one.Title+", when this relay last sent; another one delivers"
		one.Alone = "Nothing waits. This relay has sent nothing since, and tries the sink with the next events that it gets. If the sink takes them, this ends."
		one.Do = "Nothing, if the cause is corrected. If this stays while this relay gets events, the two differ: a relay reads relay.yaml and secrets at its start, so restart this one."
	}
	if n.Class == buffer.NotReadyRefusing {
		one.Now = f.refusedTopics.get(seriesKey{n.Pipeline, n.Sink})
	}
	if n.Kind == buffer.KindSome {
		one.Refuses = true
		if hasDead(f.reportOf(n.Pipeline), n.Sink) {
			one.Link, one.LinkText = deadLink(n.Pipeline, n.Sink), "which topics and errors"
		}
	}
	return one
}

// othersDeliver reports whether a relay of another process is ready to deliver to a sink, for which nothing waits.
func (f *finder) othersDeliver(pipeline, sink string) bool {
	p := f.reportOf(pipeline)
	if p == nil {
		return false
	}
	pending := p.Pending
	for k := range p.Sinks {
		if p.Sinks[k].Name == sink {
			pending = p.Sinks[k].Pending
		}
	}
	return pending == 0 && slices.ContainsFunc(p.Relays, func(r admin.RelayReport) bool {
		return r.Running && r.Sink == sink && r.NotReady == "" && !f.isThis(r.Owner)
	})
}

// addSinks says what is wrong with the sinks that events are routed to, and with batches that may have ended relays.
func (f *pipelineFinder) addSinks() {
	if f.p.Suspects != nil {
		f.add(problem{
			Title: "suspects", Detail: f.p.Suspects.Text(), Warning: true,
			Alone: "They are sent one at a time. An event that was alone in flight when a relay died, five times, becomes a dead letter.",
			Do:    "Find out why relays died: memory limits, a crash of the host.",
		})
	}
	for _, text := range f.p.SinkProblems {
		f.add(problem{Title: "sinks", Detail: text, Warning: true})
	}
}
