package console

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// addDead says how many dead letters there are, and whether events become some now.
func (f *pipelineFinder) addDead() {
	p := f.p
	if p.Dead == 0 {
		return
	}
	deaths := f.history.deathsAt(p.Name, p.Sinks)
	cause := f.deadCauses.get(p.Name)
	one := problem{
		Sink: deadSink(p), Title: fmt.Sprintf("%s dead letter%s", admin.Count(p.Dead), map[bool]string{true: "", false: "s"}[p.Dead == 1]), Warning: true,
		Key: keyDead, Detail: cause.text, Said: cause.error, Began: cause.began,
		Alone: "Nothing: they stay until somebody replays or discards them.", Do: doDead + replayThen, LinkText: "errors and topics",
	}
	one.Link = deadLink(p.Name, one.Sink)
	for _, of := range deaths {
		one.Deadly = one.Deadly || of.many()
		one.Now = strings.TrimSpace(one.Now + " " + of.text(of.name(p.Name)))
	}
	if deaths != nil {
		one.Alone, one.Do = aloneDying, doDying(p.Name, deaths[0].sink)
	}
	f.add(one)
}

// hasDead reports whether a pipeline, or one of its several sinks, has open dead letters.
func hasDead(p *admin.PipelineReport, sink string) bool {
	if p == nil {
		return false
	}
	return sink == "" && p.Dead > 0 || slices.ContainsFunc(p.Sinks, func(of admin.SinkReport) bool { return of.Name == sink && of.Dead > 0 })
}

// removeMany is how to remove a burst of bad events.
const removeMany = "To remove many (PostgreSQL): pause the pipeline, wait until nothing is leased, move the bad events into a table of your own in one transaction, and resume."

// The advice while events die is the same whichever relay or report says that they do.
const (
	doDead     = "See which errors and topics they have, correct the cause"
	replayThen = ", then replay them."
	aloneDying = "They stay until somebody replays or discards them. Each time the sink accepts an event, others that it refused for good, as with 400 or 422, become dead letters within seconds, whatever retry.max_attempts is."
)

// doDying is what to do while events become dead letters at a sink; "" is the only one of its pipeline.
func doDying(pipeline, sink string) string {
	what, button := "the pipeline", "Pause the pipeline"
	if sink != "" {
		what, button = "sink "+sink, "Pause sink "+sink
	}
	return fmt.Sprintf("%s: what makes these events, or the sink. Until then, or if the sink is wrong about them, pause %s (%s, on the page of %s): then no more become dead letters, and nothing else stops. Then replay them. %s", doDead, what, button, pipeline, removeMany)
}

// deadSink is the sink of all of a pipeline's dead letters; "" if they are of several, or there is a single one.
func deadSink(p *admin.PipelineReport) (name string) {
	for i := range p.Sinks {
		if one := &p.Sinks[i]; one.Dead > 0 {
			if name != "" || one.Name == buffer.Unrouted {
				return ""
			}
			name = one.Name
		}
	}
	return name
}

// merged makes one problem of a pipeline's dead letters and of what its sink says to the events that become some.
func merged(all []problem) []problem {
	at := map[string]int{}
	for i := range all {
		if all[i].Key == keyDead {
			at[all[i].Pipeline] = i
		}
	}
	isMerged := make([]bool, len(all))
	for i := range all {
		one := &all[i]
		k, found := at[one.Pipeline]
		if !found || i == k || all[k].Sink != "" && all[k].Sink != one.Sink {
			continue
		}
		dead := &all[k]
		switch {
		case one.Refuses:
			dead.Deadly = dead.Deadly || !one.Warning
			if said := causeOfText(one.Detail); dead.Said == "" || !strings.Contains(said, causeOfText(dead.Said)) {
				dead.Detail = strings.TrimSpace(dead.Detail + "\n" + one.Detail)
			}
			dead.Alone, dead.Do = aloneDying, doDying(one.Pipeline, one.Sink)
		case one.Title == titleWaits && dead.Said != "" && causeOfText(one.Said) == causeOfText(dead.Said):
			dead.Now = strings.TrimSpace(dead.Now + " " + strings.TrimSuffix(one.Detail, ": "+one.Said) + ".")
		default:
			continue
		}
		isMerged[i] = true
	}
	left := all[:0:0]
	for i := range all {
		if !isMerged[i] {
			left = append(left, all[i])
		}
	}
	return left
}
