package admin

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Notice is what relays say of themselves besides whether they make progress, or of answers of their sink.
type Notice struct {
	Relays []*buffer.Relay // at least one, all of one sink
	Text   string
}

// Notices returns the notices of the running relays, and those of answers to events that count as delivered also of the relays that ended: each once for a
// sink. sinks are the names of several configured sinks; nil for a single one.
func Notices(relays []buffer.Relay, sinks []string) (all []Notice) {
	add := func(r *buffer.Relay, lines string) {
		for text := range strings.SplitSeq(lines, "\n") {
			if text == "" {
				continue
			}
			at := slices.IndexFunc(all, func(n Notice) bool { return n.Relays[0].Sink == r.Sink && n.Text == text })
			if at < 0 {
				at = len(all)
				all = append(all, Notice{Text: text})
			}
			all[at].Relays = append(all[at].Relays, r)
		}
	}
	for i := range relays {
		r := &relays[i]
		if !configured(r, sinks) {
			continue
		}
		if r.Runs() {
			add(r, r.Notice)
		}
		add(r, r.Answers)
	}
	return all
}

// String names the relays too.
func (n Notice) String() string { return strings.TrimSuffix(relayNames(n.Relays), ",") + ": " + n.Text }

// relayNotices are the notices for people.
func relayNotices(relays []buffer.Relay, sinks []string, redact func(string) string) (texts []string) {
	for _, n := range Notices(relays, sinks) {
		texts = append(texts, redact(n.String()))
	}
	return texts
}

// configured reports whether a relay's sink, if there are several, is in the configuration.
func configured(r *buffer.Relay, sinks []string) bool {
	return r.Sink == "" || slices.Contains(sinks, r.Sink)
}

// serves reports whether a relay runs and its sink is configured.
func serves(r *buffer.Relay, sinks []string) bool { return r.Runs() && configured(r, sinks) }
