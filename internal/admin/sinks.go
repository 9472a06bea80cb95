package admin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// SinkReport is the status of one of several sinks.
type SinkReport struct {
	Name string `json:"name"`
	// State says in words what the sink does: paused 3m, no relay, sink down 3m, sink full 3m, no access 3m, refusing 3m, db error 3m, table locked 3m, stalled 3m, some stuck 3m, asked to wait 28m, trying sink, idle, sending, due, retries in 2m 3s, deleting, dropped, not in the configuration. That of [buffer.Unrouted]
	// is not routed yet, stands still 1m, kept until a sink takes them, or no sink takes them.
	State string `json:"state"`
	// Pending events are those that the sink does not have.
	Pending int64 `json:"pending"`
	// OldestPendingSeconds is the age of the oldest of them: 0 if there is none, null if nothing says it.
	OldestPendingSeconds *float64 `json:"oldest_pending_seconds"`
	Batches              Batches  `json:"batches"`
	Dead                 int64    `json:"dead"`
	// Deliveries is how fast events are delivered to the sink.
	Deliveries Deliveries `json:"deliveries"`
	// Pausable is false for one that is dropped, or is no sink.
	Pausable bool `json:"-"`
	// NextTryInSeconds is until the first waiting batch is due, 0 if one is due; nil if none waits.
	NextTryInSeconds *float64 `json:"next_try_in_seconds,omitempty"`
	// Waits are why batches wait, the most frequent reasons first.
	Waits []WaitReport `json:"waits,omitempty"`
	// Untried are batches that wait and were not tried yet; nil if there are none.
	Untried *WaitReport `json:"-"`
}

// sinkReports returns the reports of several sinks. It leaves out what is not routed yet if nothing waits for it.
func sinkReports(configured []string, all []buffer.SinkStatus, of *buffer.Status, redact func(string) string) (reports []SinkReport) {
	relays := of.Relays
	for i := range all {
		s := &all[i]
		if s.Name == buffer.Unrouted && s.Pending+s.Leased+s.Waiting+s.Delivered+s.Dead == 0 {
			continue
		}
		one := SinkReport{
			Name: s.Name, State: sinkState(s, slices.Contains(configured, s.Name), relays), Deliveries: deliveries(relays, func(sink string) bool { return sink == s.Name }), Pending: s.Pending, OldestPendingSeconds: oldestSeconds(s.OldestPending, s.AgeUnknown),
			Batches: Batches{Leased: s.Leased, Waiting: s.Waiting, Delivered: s.Delivered}, Dead: s.Dead, Waits: waitReports(s.Waits, tries(relays, s.Name), redact), Untried: untried(s.Waits),
		}
		if unserved(s, of, configured) {
			one.Waits, one.Untried = nil, nil // why they waited while a relay sent them
		}
		one.Pausable = s.Name != buffer.Unrouted && !s.Dropped
		if paused := pausedState(of.Pauses, s.Name); paused != "" && one.Pausable {
			one.State = paused
		}
		if s.Waiting > 0 && !kept(s) {
			next := s.Next.Round(time.Millisecond).Seconds()
			one.NextTryInSeconds = &next
		}
		reports = append(reports, one)
	}
	return reports
}

// kept reports whether all batches wait for a change of the sinks: they are due at no time.
func kept(s *buffer.SinkStatus) bool { return s.Waiting > 0 && s.Due == 0 && s.Next == 0 }

func sinkState(s *buffer.SinkStatus, configured bool, relays []buffer.Relay) string {
	switch {
	case s.Name == buffer.Unrouted && s.Pending+s.Delivered == 0:
		return "no sink takes them"
	case s.Name == buffer.Unrouted && kept(s):
		return "kept until a sink takes them"
	case s.Name == buffer.Unrouted:
		if still := undeliveredFor(s.OldestPending, relays); still >= buffer.LockAge {
			return standsStill + " " + roughly(still)
		}
		return "not routed yet"
	case s.Dropped:
		return "dropped"
	case !configured:
		return "not in the configuration"
	}
	return batchesState(s.Leased, s.Waiting, s.Delivered, s.Due, s.Next, s.Waits, relays, s.Name)
}

// pipelineState is the state of a pipeline with a single sink.
func pipelineState(s *buffer.Status) string {
	var (
		due  int64
		next time.Duration
	)
	for i, w := range s.Waits {
		if w.First <= 0 {
			due++
		}
		if i == 0 || w.First < next {
			next = w.First
		}
	}
	if s.Waits == nil {
		due = s.Waiting
	}
	state := batchesState(s.Leased, s.Waiting, s.Delivered, due, next, s.Waits, s.Relays, "")
	if still := unclaimedFor(s); still > 0 && (state == "idle" || state == "sending") {
		return standsStill + " " + roughly(still)
	}
	return state
}

// standsStill is the state of a pipeline while events wait and nothing is claimed.
const standsStill = "stands still"

// unclaimedFor is for how long events have waited at least without that any was claimed or delivered; 0 if it is less than [buffer.LockAge], or unknown.
func unclaimedFor(s *buffer.Status) time.Duration {
	if s.Pending == 0 || s.Leased+s.Waiting+s.Delivered > 0 {
		return 0
	}
	still := undeliveredFor(s.OldestPending, s.Relays)
	if still < buffer.LockAge {
		return 0
	}
	return still
}

// undeliveredFor is for how long an event of such an age has waited without that a running relay delivered any.
func undeliveredFor(oldest time.Duration, relays []buffer.Relay) time.Duration {
	for i := range relays {
		switch r := &relays[i]; {
		case !r.Runs():
		case r.LastDelivery >= 0:
			oldest = min(oldest, r.LastDelivery)
		default:
			oldest = min(oldest, r.Uptime)
		}
	}
	return oldest
}

// noRelay is the state of a sink while no relay runs that serves it.
const noRelay = "no relay"

// states are what a sink does while none of its relays is ready, by the class of the reason.
var states = map[string]string{
	buffer.NotReadySink: "sink down", buffer.NotReadyRefusing: "refusing", buffer.NotReadyDatabase: "db error", buffer.NotReadyStalled: "stalled",
}

// kindStates are those of kinds that have words of their own.
var kindStates = map[string]string{buffer.KindFull: "sink full", buffer.KindAccess: "no access", buffer.KindLocked: "table locked"}

// batchesState says in words what happens to the batches of a sink, which wait for these reasons.
func batchesState(leased, waiting, delivered, due int64, next time.Duration, waits []buffer.Wait, relays []buffer.Relay, sink string) string {
	runs := func(r buffer.Relay) bool { return r.Sink == sink && r.Runs() }
	sends := func(r buffer.Relay) bool { return runs(r) && r.LastMinute > 0 }
	var notReady *buffer.Relay // for the longest
	ready := false
	for i := range relays {
		switch r := &relays[i]; {
		case !runs(*r):
		case states[r.NotReadyClass] == "":
			ready = true
		case notReady == nil || r.NotReadyFor > notReady.NotReadyFor:
			notReady = r
		}
	}
	switch {
	case !ready && notReady == nil:
		return noRelay
	case !ready && notReady.NotReadyClass == buffer.NotReadyStalled && deliversMeanwhile(notReady):
		return "some stuck " + roughly(notReady.NotReadyFor)
	case !ready && notReady.NotReadyClass == buffer.NotReadySink && due == 0 && next > 0 && len(waits) > 0 && !slices.ContainsFunc(waits, func(w buffer.Wait) bool { return w.Early }):
		return "asked to wait " + roughly(next) // it is not probed
	case !ready:
		return cmp.Or(kindStates[notReady.NotReadyKind], states[notReady.NotReadyClass]) + " " + roughly(notReady.NotReadyFor)
	case waiting > 0 && due == 0 && leased == 0 && len(waits) > 0 && tries(relays, sink) && !slices.ContainsFunc(waits, func(w buffer.Wait) bool { return !w.Early }):
		return "trying sink"
	case waiting > 0 && due == 0 && leased == 0:
		return "retries in " + Age(next)
	case leased > 0 || slices.ContainsFunc(relays, sends):
		return "sending"
	case waiting > 0:
		return "due"
	case delivered > 0:
		return "deleting"
	}
	return "idle"
}

// deliversMeanwhile reports whether a relay has delivered events since it is not ready.
func deliversMeanwhile(r *buffer.Relay) bool {
	return r.LastDelivery >= 0 && r.LastDelivery < r.NotReadyFor
}

// claimingStopped says that nothing more is claimed because so many batches wait; "" otherwise. With several sinks, each of them must have
// so many.
func claimingStopped(maxWaiting int, sinks []string, s *buffer.Status) string {
	if sinks == nil {
		if waiting := s.Waiting + s.Delivered; waiting >= int64(maxWaiting) {
			return fmt.Sprintf("nothing more is claimed: %s batches wait for a retry or a delete, max_waiting is %s", Count(waiting), Count(int64(maxWaiting)))
		}
		return ""
	}
	for i := range s.Sinks {
		if one := &s.Sinks[i]; slices.Contains(sinks, one.Name) && one.Waiting+one.Delivered < int64(maxWaiting) {
			return ""
		}
	}
	return fmt.Sprintf("nothing more is claimed: at every sink %s or more batches wait for a retry or a delete (max_waiting)", Count(int64(maxWaiting)))
}

// NotReadyReason is why a pipeline, or one of its sinks, is not ready.
type NotReadyReason struct {
	Pipeline string
	// Sink is one of several sinks; "" for the pipeline.
	Sink string
	// Class says it without a word about events: database, sink, stalled or refusing.
	Class string
	// Kind is finer than the class, or the same; see buffer.KindStuck.
	Kind string
	Err  error
}

// NotReady returns everything that is not ready.
func (p *Pipeline) NotReady() (all []NotReadyReason) {
	add := func(sink string, r Readiness) {
		if err := r.Ready(); err != nil {
			all = append(all, NotReadyReason{p.Name, sink, classOf(err), kindOf(err), err})
		}
	}
	if p.Sinks == nil {
		add("", p.Health)
		return all
	}
	add("", p.Router)
	for _, s := range p.Sinks {
		add(s.Name, s.Health)
	}
	return all
}

// classOf is the class of why something is not ready.
func classOf(err error) string {
	if c, ok := errors.AsType[classified](err); ok {
		return c.Class()
	}
	return "stalled"
}

// kindOf is the kind of why something is not ready.
func kindOf(err error) string {
	if c, ok := errors.AsType[classified](err); ok {
		return c.Kind()
	}
	return "stalled"
}

// sinkNames are the names of the configured sinks; nil for a single one.
func (p *Pipeline) sinkNames() []string {
	var names []string
	for _, s := range p.Sinks {
		names = append(names, s.Name)
	}
	return names
}
