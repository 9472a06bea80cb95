package admin

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Notice is what a running relay says of itself besides whether it makes progress.
type Notice struct {
	Relay *buffer.Relay
	Text  string
}

// Notices returns the notices of the running relays, each once for a sink. sinks are the names of several configured sinks; nil for a single
// one.
func Notices(relays []buffer.Relay, sinks []string) (all []Notice) {
	for i := range relays {
		r := &relays[i]
		if r.Notice == "" || !serves(r, sinks) {
			continue
		}
		for text := range strings.SplitSeq(r.Notice, "\n") {
			if !slices.ContainsFunc(all, func(n Notice) bool { return n.Relay.Sink == r.Sink && n.Text == text }) {
				all = append(all, Notice{r, text})
			}
		}
	}
	return all
}

// String names the relay too.
func (n Notice) String() string { return RelayName(n.Relay) + ": " + n.Text }

// relayNotices are the notices for people.
func relayNotices(relays []buffer.Relay, sinks []string, redact func(string) string) (texts []string) {
	for _, n := range Notices(relays, sinks) {
		texts = append(texts, redact(n.String()))
	}
	return texts
}

// serves reports whether a relay runs and its sink, if there are several, is configured.
func serves(r *buffer.Relay, sinks []string) bool {
	return r.Runs() && (r.Sink == "" || slices.Contains(sinks, r.Sink))
}
