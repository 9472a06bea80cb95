package routing

import (
	"cmp"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Registered is a sink of a registry; see buffer.SinkRegistry.
type Registered struct {
	Sink string
	// Match and BatchSize are its route, Formerly the names that it had before.
	Match, Formerly []string
	BatchSize       int
	// Hook reports whether the sink has a dead-letter hook of its own.
	Hook    bool
	Dropped bool
}

// Equal reports whether both are the same.
func (r *Registered) Equal(other *Registered) bool {
	return r.Sink == other.Sink && r.BatchSize == other.BatchSize && r.Hook == other.Hook && r.Dropped == other.Dropped &&
		slices.Equal(r.Match, other.Match) && slices.Equal(r.Formerly, other.Formerly)
}

// Register returns the registry, by name, after the start of a relay with these sinks. A sink that has another's former name takes its place. A
// relay that knows a sink by a former name means that sink, unless its configuration has the present one too: then it means another one.
func Register(registry []Registered, configured []buffer.Route) map[string]Registered {
	all := map[string]Registered{}
	for _, s := range registry {
		s.Match, s.Formerly = slices.Clone(s.Match), slices.Clone(s.Formerly)
		all[s.Sink] = s
	}
	for _, c := range configured {
		reuse(all, configured, c.Sink)
		if c.Was != "" {
			rename(all, c.Sink, c.Was)
		}
	}
	for _, c := range configured {
		s := all[nameOf(all, c.Sink)]
		s.Sink, s.Match, s.BatchSize, s.Hook = cmp.Or(s.Sink, c.Sink), c.Match, c.BatchSize, c.Hook
		all[s.Sink] = s
	}
	for _, c := range configured { // the single sink of before is in no registry
		if s := all[c.Sink]; c.Was != "" && s.Sink != "" && !s.Dropped && all[nameOf(all, c.Was)].Sink == "" {
			s.Formerly = append(s.Formerly, c.Was)
			all[c.Sink] = s
		}
	}
	return all
}

// nameOf returns the present name of a sink.
func nameOf(all map[string]Registered, name string) string {
	if _, known := all[name]; known {
		return name
	}
	for _, s := range all {
		if slices.Contains(s.Formerly, name) {
			return s.Sink
		}
	}
	return name
}

// reuse makes name that of a sink of its own if the configuration has it beside the present name of the sink that had it.
func reuse(all map[string]Registered, configured []buffer.Route, name string) {
	for other, s := range all {
		if other != name && slices.ContainsFunc(configured, func(c buffer.Route) bool { return c.Sink == other }) {
			s.Formerly = slices.DeleteFunc(s.Formerly, func(was string) bool { return was == name })
			all[other] = s
		}
	}
}

// rename gives a sink the place of another one. A relay may have run with the new name before its configuration said which one it was.
func rename(all map[string]Registered, to, was string) {
	old, known := all[was]
	if !known || old.Dropped {
		return
	}
	s, taken := all[to]
	switch {
	case !taken:
		s = old
		s.Sink, s.Formerly = to, append(slices.DeleteFunc(s.Formerly, func(name string) bool { return name == to }), was)
	case s.Dropped:
		return
	default:
		s.Formerly = append(append(s.Formerly, was), old.Formerly...)
	}
	delete(all, was)
	all[to] = s
}
