package routing

import (
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Configure notes whether a registered sink is one of the configured ones, by its name or a former one, and what that takes.
func Configure(s *buffer.RegisteredSink, configured []buffer.Route) {
	i := slices.IndexFunc(configured, func(r buffer.Route) bool { return r.Sink == s.Name })
	if i < 0 {
		i = slices.IndexFunc(configured, func(r buffer.Route) bool { return slices.Contains(s.Formerly, r.Sink) })
	}
	if s.Configured = i >= 0; s.Configured {
		s.ConfiguredMatch = configured[i].Match
	}
}
