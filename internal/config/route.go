package config

import (
	"cmp"
	"fmt"
	"net/url"
)

// Route says from where to where the pipeline moves events, without secrets: for one of several sinks, see [Pipeline.PerSink].
func (p *Pipeline) Route() string {
	return fmt.Sprintf("%s: %s (%s) -> %s (%s)", p.FullName(), p.Source.URL, p.Source.Table, p.Sink.URL, p.Sink.AddressText())
}

// FullName is the pipeline's name, with the sink's if it has several.
func (p *Pipeline) FullName() string {
	if p.SinkName == "" {
		return p.Name
	}
	return p.Name + "/" + p.SinkName
}

// SinkNames are the names of several sinks; nil for a single one.
func (p *Pipeline) SinkNames() (names []string) {
	for i := range p.Sinks {
		names = append(names, p.Sinks[i].Name)
	}
	return names
}

// AddressText describes where in its sink a pipeline writes.
func (s *Sink) AddressText() string {
	if text, ok := s.Address(); ok {
		return text
	}
	switch s.Driver {
	case "redis":
		return s.Redis.Mode + " " + cmp.Or(s.Redis.Stream, s.Redis.List, s.Redis.Channel, s.Redis.Queue)
	case "nats":
		if s.NATS.Core {
			return "core subject " + s.NATS.Subject
		}
		return "JetStream subject " + s.NATS.Subject
	case "http":
		return s.HTTP.Method + " " + s.HTTP.Format
	case "postgres":
		if u, err := url.Parse(s.URL.Reveal()); err == nil {
			return "table " + u.Query().Get("table")
		}
		return "table"
	}
	return "NDJSON"
}
