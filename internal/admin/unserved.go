package admin

import (
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Unserved returns the sinks that have batches although they are neither configured nor served by a relay that runs, and that no other finding names: what waits for them
// is not due, whatever it waited for before. configured are the names of several sinks; nil for a single one.
func Unserved(s *buffer.Status, configured []string) (findings []buffer.Finding) {
	for i := range s.Sinks {
		one := &s.Sinks[i]
		about := "sink " + one.Name
		if !unserved(one, s, configured) || one.Pending == 0 || slices.ContainsFunc(s.SinkFindings, func(f buffer.Finding) bool { return f.Subject == about }) {
			continue
		}
		findings = append(findings, buffer.Finding{
			Level: buffer.LevelWarning, Subject: about,
			Text: fmt.Sprintf("is not in the configuration, and no relay that runs has it: its pending events (%s) are not sent", Count(one.Pending)),
			Fix:  "configure it again; if it has another name now, add was: " + one.Name + " to that sink; or end what waits, which is then never sent: relay sinks drop " + one.Name + " -c relay.yaml",
		})
	}
	return findings
}

// unserved reports whether nobody sends to a sink.
func unserved(one *buffer.SinkStatus, s *buffer.Status, configured []string) bool {
	return one.Name != buffer.Unrouted && !one.Dropped && !slices.Contains(configured, one.Name) &&
		!slices.ContainsFunc(s.Relays, func(r buffer.Relay) bool { return r.Sink == one.Name && r.Runs() })
}
