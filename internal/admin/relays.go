package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// RelayReport is a process that works, or worked, on a pipeline.
type RelayReport struct {
	// Owner names the process as in the ledger: host/pid/pipeline.
	Owner string `json:"owner"`
	// Sink is one of several sinks; absent for a single one, and for what claims for several.
	Sink    string `json:"sink,omitempty"`
	Version string `json:"version"`
	// Running is false for one that stopped, or whose report is overdue: it reports every 10 s.
	Running bool `json:"running"`
	// Stopped is true for one that ended in order; one that is neither running nor stopped was killed, hangs, or cannot reach the database.
	Stopped bool `json:"stopped,omitempty"`
	// SeenSeconds is how long ago it reported, UptimeSeconds how long before that it started.
	SeenSeconds   float64 `json:"seen_seconds"`
	UptimeSeconds float64 `json:"uptime_seconds"`
	// Delivered and Dead count events since it started.
	Delivered int64 `json:"delivered"`
	Dead      int64 `json:"dead"`
	// Latencies are those of the delivered ones.
	Latencies buffer.Latencies `json:"-"`
	// NotReady is why it makes no progress.
	NotReady string `json:"not_ready,omitempty"`
	// NotReadyClass is database, sink, stalled or refusing, as in /readyz, and NotReadySeconds how long it has been so.
	NotReadyClass string `json:"not_ready_class,omitempty"`
	// NotReadyKind is finer than the class, such as full or access of a sink.
	NotReadyKind    string  `json:"not_ready_kind,omitempty"`
	NotReadySeconds float64 `json:"not_ready_seconds,omitempty"`
	// Notices are what else operators should know of it, also while it makes progress. Of one that ended they are answers of the last hour to events that count as delivered.
	Notices []string `json:"notices,omitempty"`
}

// Deliveries is how fast events are delivered.
type Deliveries struct {
	// LastMinute counts the events that the running relays delivered in the minute before their last report, a few seconds ago. Of a relay that stopped within the
	// last minute it has the share that is left of its minute.
	LastMinute int64 `json:"last_minute"`
	// SecondsAgo is how long ago the last event was delivered; absent if no relay of the last day has delivered one.
	SecondsAgo *float64 `json:"seconds_ago,omitempty"`
}

// Ago formats when the last event was delivered; "-" if that is not known.
func (d Deliveries) Ago() string {
	if d.SecondsAgo == nil {
		return "-"
	}
	return Age(time.Duration(*d.SecondsAgo * float64(time.Second)))
}

// deliveries adds up those to one sink, or to all of them.
func deliveries(relays []buffer.Relay, of func(sink string) bool) (d Deliveries) {
	for i := range relays {
		r := &relays[i]
		if !of(r.Sink) {
			continue
		}
		switch left := time.Minute - r.Seen; {
		case r.Runs():
			d.LastMinute += r.LastMinute
		case left > 0:
			d.LastMinute += int64(float64(r.LastMinute) * float64(left) / float64(time.Minute))
		}
		if ago := r.LastDelivery.Round(time.Millisecond).Seconds(); r.LastDelivery >= 0 && (d.SecondsAgo == nil || ago < *d.SecondsAgo) {
			d.SecondsAgo = &ago
		}
	}
	return d
}

func relayReports(all []buffer.Relay, redact func(string) string) (reports []RelayReport) {
	for i := range all {
		r := &all[i]
		one := RelayReport{
			Owner: r.Owner, Sink: r.Sink, Version: r.Version, Running: r.Runs(), Stopped: r.Stopped, Delivered: r.Delivered, Dead: r.Dead, Latencies: r.Latencies,
			SeenSeconds: r.Seen.Round(time.Millisecond).Seconds(), UptimeSeconds: r.Uptime.Round(time.Millisecond).Seconds(),
		}
		said := r.Answers
		if one.Running {
			said = strings.Trim(r.Notice+"\n"+said, "\n")
			one.NotReady, one.NotReadyClass, one.NotReadyKind = redact(r.NotReady), r.NotReadyClass, r.NotReadyKind
			one.NotReadySeconds = r.NotReadyFor.Round(time.Millisecond).Seconds()
		}
		if said != "" {
			one.Notices = strings.Split(redact(said), "\n")
		}
		reports = append(reports, one)
	}
	return reports
}

// inWords are the kinds and classes of reasons, for one that a line of waiting batches quotes already. Which events a sink refuses stands in the reason only.
var inWords = map[string]string{
	buffer.KindFull: "the sink is full", buffer.KindAccess: "the sink does not accept the credentials", buffer.NotReadySink: "the sink is unavailable",
	buffer.KindLocked: "a table is locked", buffer.NotReadyDatabase: "the database fails", buffer.NotReadyStalled: "nothing is delivered",
}

// relayProblems says that no relay runs, or why those that run make no progress, and for how long: each reason once. A reason that batches
// wait for is left to their line. ended is what they say of relays that did not stop in order.
func relayProblems(s *buffer.Status, sinks []string, redact func(string) string) (problems []string, ended Ended) {
	relays := s.Relays
	notReady, running := NotReady(relays, sinks, func(r *buffer.Relay) string {
		reason := redact(r.NotReady)
		if words := cmp.Or(inWords[r.NotReadyKind], inWords[r.NotReadyClass]); words != "" {
			if quoted := waitsFor(s, r.Sink, r.NotReady); quoted != "" {
				reason = cmp.Or(withoutQuote(reason, redact(quoted), r.NotReadyClass), words)
			}
		}
		return reason
	})
	for i := range notReady {
		n := &notReady[i]
		has := " has"
		if len(n.Relays) > 1 {
			has = " have"
		}
		problems = append(problems, n.Name()+has+" not been ready for "+Age(n.Longest())+": "+n.Reason)
	}
	gone := Gone(relays)
	addGone := func() {
		if len(gone) > 0 {
			ended = Ended{GoneNames(gone), GoneText(gone, relays)}
			problems = append(problems, ended.Text)
		}
	}
	if running > 0 {
		addGone()
		return problems, ended
	}
	text, fix := "no relay runs", ". > relay run -c relay.yaml"
	if len(relays) > 0 { // the one that was seen last comes first
		last := &relays[0]
		for i := range relays {
			if relays[i].Seen < last.Seen {
				last = &relays[i]
			}
		}
		switch name := process(last.Owner); {
		case last.Stopped:
			text += fmt.Sprintf("; %s stopped %s ago", name, Age(last.Seen))
		case len(gone) <= 1:
			text = fmt.Sprintf("no relay has reported for %s; %s did not stop in order: it was killed, or it runs and hangs, or cannot reach the database", Age(last.Seen), name)
		default: // the names are those of all pipelines
			text = "no relay has reported for " + Age(last.Seen)
		}
		if !last.Stopped {
			fix += "; stop one that still runs before: it reads its secrets at its start"
		}
		if !last.Stopped && len(gone) <= 1 {
			return []string{text + fix}, Ended{}
		}
	}
	problems = []string{text + fix}
	addGone()
	return problems, ended
}

// Ended says which relays did not stop in order. Those of one process say it in each of its pipelines.
type Ended struct {
	// Names are those of the processes; equal if they are the same processes. "" if there are none.
	Names string
	// Text is one of the relay problems.
	Text string
}

// Unready are running relays that make no progress at one sink, all for one reason.
type Unready struct {
	Relays []*buffer.Relay // at least one
	Reason string
}

// NotReady returns the running relays that make no progress, together for each sink and reason, and how many run. sinks are the names of several
// configured sinks; nil for a single one. reason returns the reason of a relay as it is shown.
func NotReady(relays []buffer.Relay, sinks []string, reason func(*buffer.Relay) string) (notReady []Unready, running int) {
	for i := range relays {
		r := &relays[i]
		if !serves(r, sinks) {
			continue
		}
		running++
		if r.NotReady == "" {
			continue
		}
		why := reason(r)
		at := slices.IndexFunc(notReady, func(n Unready) bool { return n.Relays[0].Sink == r.Sink && n.Reason == why })
		if at < 0 {
			at = len(notReady)
			notReady = append(notReady, Unready{Reason: why})
		}
		notReady[at].Relays = append(notReady[at].Relays, r)
	}
	return notReady, running
}

// Name names the processes, and the sink if there are several.
func (n *Unready) Name() string { return relayNames(n.Relays) }

// Longest is how long the first of them has made no progress.
func (n *Unready) Longest() (longest time.Duration) {
	for _, r := range n.Relays {
		longest = max(longest, r.NotReadyFor)
	}
	return longest
}

// Seen is how long ago the last of them reported.
func (n *Unready) Seen() time.Duration {
	return slices.MinFunc(n.Relays, func(a, b *buffer.Relay) int { return cmp.Compare(a.Seen, b.Seen) }).Seen
}

// relayNames names the processes of relays that say the same, and their sink if there are several.
func relayNames(relays []*buffer.Relay) string {
	names := make([]string, len(relays))
	for i, r := range relays {
		names[i] = process(r.Owner)
		if !r.Runs() {
			names[i] += " (ended)"
		}
	}
	sink := relays[0].Sink
	switch {
	case len(names) > 1 && sink != "":
		return Count(int64(len(names))) + " relays (" + listed(names) + "), sink " + sink + ","
	case len(names) > 1:
		return Count(int64(len(names))) + " relays (" + listed(names) + ")"
	case sink != "":
		return "relay " + names[0] + ", sink " + sink
	}
	return "relay " + names[0]
}

// listed joins the first names, and says how many more there are.
func listed(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("and %s more", Count(int64(more))))
	}
	return strings.Join(names, ", ")
}

// withoutQuote returns what a reason says besides what it quotes last; "" if that is its class alone. How many sends in a row delivered nothing does not matter.
func withoutQuote(reason, quoted, class string) string {
	before, _, _ := strings.Cut(reason, quoted)
	before = strings.TrimRight(before, ": ")
	if before == class || class == buffer.NotReadySink && strings.HasSuffix(before, ", the last") {
		return ""
	}
	return before
}

// waitsFor returns the error that batches of a sink wait for and that a reason quotes; "" if there is none.
func waitsFor(s *buffer.Status, sink, reason string) string {
	waits := s.Waits
	for i := range s.Sinks {
		if s.Sinks[i].Name == sink {
			waits = s.Sinks[i].Waits
		}
	}
	for _, w := range waits {
		if w.Error != "" && strings.Contains(reason, w.Error) {
			return w.Error
		}
	}
	return ""
}

// process is an owner without its pipeline: host/pid.
func process(owner string) string {
	if parts := strings.SplitN(owner, "/", 3); len(parts) == 3 {
		return parts[0] + "/" + parts[1]
	}
	return owner
}

// tries reports whether a relay runs that tries a sink for which batches wait every few seconds.
func tries(relays []buffer.Relay, sink string) bool {
	return slices.ContainsFunc(relays, func(r buffer.Relay) bool { return r.Sink == sink && r.Runs() && r.Probes })
}
